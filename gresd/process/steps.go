// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Steps finds jobs by the slurmstepd processes of this host: a job that has one lives, and
// nobody needs to ask slurmctld about it. The zero value is ready.
type Steps struct {
	Proc string // "" for /proc

	mu   sync.Mutex
	seen map[uint32]Dir // a slurmstepd of a job
}

// Living are those of the jobs that have a slurmstepd here. All processes are looked at only
// where one of the jobs has none that was seen before.
func (s *Steps) Living(jobs []uint32) map[uint32]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	living, looked := map[uint32]bool{}, false
	for _, job := range jobs {
		if jobOfProcess(s.seen[job]) != job && !looked {
			s.look()
			looked = true
		}
		if jobOfProcess(s.seen[job]) == job {
			living[job] = true
		}
	}
	return living
}

// Jobs are all that have a slurmstepd here.
func (s *Steps) Jobs() []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
	var jobs []uint32
	for job := range s.seen {
		jobs = append(jobs, job)
	}
	return jobs
}

// look fills seen anew. s.mu is held.
func (s *Steps) look() {
	s.seen = map[uint32]Dir{}
	eachStepd(cmp.Or(s.Proc, "/proc"), func(dir Dir, job uint32) { s.seen[job] = dir })
}

const stepd = "slurmstepd"

func eachStepd(root string, f func(dir Dir, job uint32)) {
	for _, dir := range All(root) {
		if dir.Comm() == stepd {
			if job := jobOfProcess(dir); job != 0 {
				f(dir, job)
			}
		}
	}
}

// JobOfFolder finds the job of a cgroup whose name does not tell it, by the slurmstepd that is in
// there; 0: there is none. root is /proc.
func JobOfFolder(root, folder string) (jobID uint32) {
	eachStepd(root, func(dir Dir, job uint32) {
		text, _ := os.ReadFile(dir.File("cgroup"))
		if its, _ := CgroupOfJob(string(text)); its == folder {
			jobID = job
		}
	})
	return jobID
}

// jobOfProcess is the job of a slurmstepd, 0 for another process. Its title is read last: that of
// a user's process can make its reader wait for ever.
func jobOfProcess(dir Dir) uint32 {
	if dir == "" || !IsStepd(dir) {
		return 0
	}
	title, _ := os.ReadFile(dir.File("cmdline"))
	return JobOfStepd(strings.TrimRight(string(title), "\x00"))
}

// IsStepd says whether a process is a slurmstepd. Everybody can have its name and its title: so it must
// be Slurm's program, and root's.
func IsStepd(dir Dir) bool {
	uid, ok := dir.UID()
	// Debian calls it slurmstepd-wlm; " (deleted)" follows where Slurm was upgraded below it.
	return ok && uid == 0 && strings.HasPrefix(filepath.Base(dir.Link("exe")), stepd)
}
