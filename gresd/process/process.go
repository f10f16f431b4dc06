// SPDX-License-Identifier: Apache-2.0

// Package process reads /proc, finds jobs by their slurmstepd processes and cgroups, and starts child
// processes of gresd. Callers read environ, cmdline and maps with package timeout: these files can
// make a reader wait for the user of the process.
package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Dir is the folder of a process in /proc.
type Dir string

// Of is the folder of a process.
func Of(pid int) Dir { return Dir("/proc/" + strconv.Itoa(pid)) }

// All are the folders of all processes in root, "/proc" but for tests.
func All(root string) []Dir {
	names, _ := filepath.Glob(filepath.Join(root, "[0-9]*"))
	dirs := make([]Dir, len(names))
	for i, name := range names {
		dirs[i] = Dir(name)
	}
	return dirs
}

// File is the path of a file of the process.
func (d Dir) File(name string) string { return filepath.Join(string(d), name) }

// Open are the numbers of the descriptors that the process has open, the lowest, at most so many
// (its user may have a million), or all for -1.
func (d Dir) Open(most int) []string {
	dir, err := os.Open(d.File("fd"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(most)
	return names
}

// Link is where a link of the process leads; "" where that cannot be read.
func (d Dir) Link(name string) string {
	to, _ := os.Readlink(d.File(name))
	return to
}

// Comm is the short name of the process, which its user can choose.
func (d Dir) Comm() string {
	name, _ := os.ReadFile(d.File("comm"))
	return strings.TrimSuffix(string(name), "\n")
}

// Stat is what /proc/PID/stat says of a process.
type Stat struct {
	Name                   string // its user can choose it
	Ended                  bool   // a zombie
	Parent, Group, Session int
	Start                  uint64 // clock ticks since boot
}

// Stat reads the file; false where the process is gone.
func (d Dir) Stat() (Stat, bool) {
	text, err := os.ReadFile(d.File("stat"))
	if err != nil {
		return Stat{}, false
	}
	return ParseStat(text)
}

// ParseStat reads the text of the file. The name, in brackets, can hold anything.
func ParseStat(text []byte) (Stat, bool) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Stat{}, false
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 20 {
		return Stat{}, false
	}
	var ids [3]int
	for i := range ids {
		var err error
		if ids[i], err = strconv.Atoi(fields[1+i]); err != nil {
			return Stat{}, false
		}
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return Stat{
		Name: string(text[open+1 : end]), Ended: fields[0] == "Z" || fields[0] == "X",
		Parent: ids[0], Group: ids[1], Session: ids[2], Start: start,
	}, err == nil
}

// UID is the real user of the process.
func (d Dir) UID() (uint32, bool) {
	text, err := os.ReadFile(d.File("status"))
	if err != nil {
		return 0, false
	}
	return ParseUID(text)
}

// ParseUID reads the real user from the text of /proc/PID/status.
func ParseUID(status []byte) (uint32, bool) {
	_, rest, _ := strings.Cut(string(status), "\nUid:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, false
	}
	uid, err := strconv.ParseUint(fields[0], 10, 32)
	return uint32(uid), err == nil
}
