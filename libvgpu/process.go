// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// life is what the kernel says of a pid.
type life int

const (
	unseen life = iota // it cannot be looked at: no descriptor is left, or /proc hides it
	lives
	over // there is none, or it only waits for its parent
)

// startTime returns field 22 of /proc/<pid>/stat.
func startTime(pid uint32) (uint64, life) {
	var buf [1024]byte // a line of 52 numbers and a name is shorter
	line, ok := readSmall("/proc/"+strconv.FormatUint(uint64(pid), 10)+"/stat", buf[:])
	if start, l := parseStat(line); ok && l != unseen {
		return start, l
	}
	if pid == 0 || unix.Kill(int(pid), 0) == unix.ESRCH {
		return 0, over
	}
	return 0, unseen
}

// parseStat reads the line of /proc/<pid>/stat. The name of the process, in field 2,
// may hold spaces and brackets: count from the last bracket.
func parseStat(buf []byte) (uint64, life) {
	rest := buf[bytes.LastIndexByte(buf, ')')+1:]
	var fields [20][]byte // from field 3 on
	for i := range fields {
		rest = bytes.TrimLeft(rest, " ")
		var more bool
		if fields[i], rest, more = bytes.Cut(rest, []byte(" ")); !more {
			return 0, unseen // there are more fields than these
		}
	}
	// A first thread that has ended while others run looks like a zombie.
	zombie := fields[0][0] == 'Z' || fields[0][0] == 'X'
	if threads, err := strconv.Atoi(string(fields[17])); zombie && (err != nil || threads <= 1) {
		return 0, over
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0, unseen
	}
	return start, lives
}

type mapping int

const (
	notSeen mapping = iota
	mapped
	unmapped
)

// mapsFile looks for a file, by its inode, in the mappings of a process.
func mapsFile(process string, inode uint64) mapping {
	text, err := os.ReadFile("/proc/" + process + "/maps")
	if err != nil || len(text) == 0 { // of a thread of the kernel, or one that ends
		return notSeen
	}
	want := strconv.FormatUint(inode, 10)
	for line := range bytes.Lines(text) {
		// address permissions offset device inode path
		if fields := bytes.Fields(line); len(fields) >= 5 && string(fields[4]) == want {
			return mapped
		}
	}
	return unmapped
}

// mappedInode is a file's inode, if a mapping of it is shown with that one: on an overlay
// it may be another. The page is never touched: whoever owns the file may cut it.
func mappedInode(f *os.File) uint64 {
	var st unix.Stat_t
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Munmap(page) }()
	if unix.Fstat(int(f.Fd()), &st) != nil || mapsFile("self", st.Ino) != mapped {
		return 0
	}
	return st.Ino
}
