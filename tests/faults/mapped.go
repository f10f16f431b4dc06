// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"os"
	"strings"
)

// MappedPages is how much address space of a process is mapped files and shared
// memory, in pages, by what /proc/PID/maps or smaps tells: also of files that have
// been deleted, which exist for as long as they are mapped.
//
// It counts what is mapped, not what of it has been touched (RssShmem). Of a file that
// is mapped once and for all, as the simulated cards are, pages are touched for the
// first time for as long as it is used; and a mapping that has been forgotten counts,
// touched or not.
func MappedPages(maps string) (pages float64, err error) {
	var bytes uint64
	for line := range strings.Lines(maps) {
		f := strings.Fields(line)
		if len(f) < 5 || strings.HasSuffix(f[0], ":") {
			continue // of smaps, about the mapping above
		}
		var from, to, inode uint64
		if _, err := fmt.Sscanf(f[0]+" "+f[4], "%x-%x %d", &from, &to, &inode); err != nil || to < from {
			return 0, fmt.Errorf("not a line of /proc/PID/maps: %q", line)
		}
		if inode != 0 || strings.HasSuffix(f[1], "s") {
			bytes += to - from
		}
	}
	if bytes == 0 {
		return 0, fmt.Errorf("no program is mapped: %.200q", maps)
	}
	return float64(bytes) / float64(os.Getpagesize()), nil
}
