// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// A cache file belongs to its job's user, who can make it larger than it is, and
// run_dir is memory that the whole node shares. Nobody has a reason to: programs
// map the file. So whoever writes to it with a call, or allocates, wakes cutBack.

// slackBytes is what the file may have allocated beyond its size: whole pages, and
// a filesystem may have large ones.
const slackBytes = 2 << 20

// cutPause bounds how often a file is cut.
const cutPause = time.Millisecond

// cutBack gives the cache file of a job its size again, beside the caller: to free
// gigabytes takes time.
func (s *Store) cutBack(jobID uint32, e *entry) {
	if e.written.Add(1) > 1 {
		return // somebody is at it, and will look once more
	}
	go func() {
		for seen := int32(1); ; seen = e.written.Load() {
			if grown, err := s.cut(jobID); grown && !e.toldGrown.Swap(true) {
				s.log.Warn("a job made its cache file larger: it is cut back", "job_id", jobID, "error", err)
				_, _ = s.Tell(jobID, fmt.Sprintf("vgpu: cache: job %d: its cache file was made larger than its %d bytes: "+
					"it is cut back whenever that happens; no program of a job has to write it", jobID, libvgpu.CacheSize))
			}
			if e.written.CompareAndSwap(seen, 0) {
				return
			}
			time.Sleep(cutPause)
		}
	}()
}

// cut reports whether the file was too large.
func (s *Store) cut(jobID uint32) (grown bool, err error) {
	f, err := s.OpenCache(jobID)
	if err != nil {
		return false, err // gone with its job
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size <= libvgpu.CacheSize && st.Blocks*512 <= libvgpu.CacheSize+slackBytes {
		return false, nil
	}
	// Also frees what was allocated beyond an end that did not move.
	return true, f.Truncate(libvgpu.CacheSize)
}
