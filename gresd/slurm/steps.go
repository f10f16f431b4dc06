// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Steps finds jobs by the slurmstepd processes of this host: a job that has one lives, and
// nobody needs to ask slurmctld about it. The zero value is ready.
type Steps struct {
	Proc string // "" for /proc

	mu   sync.Mutex
	seen map[uint32]string // a slurmstepd of a job: its folder in Proc
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
	proc := s.Proc
	if proc == "" {
		proc = "/proc"
	}
	s.seen = map[uint32]string{}
	eachStepd(proc, func(dir string, job uint32) { s.seen[job] = dir })
}

const stepd = "slurmstepd"

func eachStepd(proc string, f func(dir string, job uint32)) {
	names, _ := filepath.Glob(proc + "/[0-9]*/comm")
	for _, name := range names {
		dir := filepath.Dir(name)
		if comm, _ := os.ReadFile(name); string(comm) == stepd+"\n" {
			if job := jobOfProcess(dir); job != 0 {
				f(dir, job)
			}
		}
	}
}

// JobOfFolder finds the job of a cgroup whose name does not tell it, by the slurmstepd that is in there; 0: there is none.
func JobOfFolder(proc, folder string) (jobID uint32) {
	eachStepd(proc, func(dir string, job uint32) {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if its, _ := CgroupOfJob(string(text)); its == folder {
			jobID = job
		}
	})
	return jobID
}

// jobOfProcess is the job of a slurmstepd, 0 for another process. Everybody can have its title:
// so it must be Slurm's program, and root's.
func jobOfProcess(dir string) uint32 {
	if dir == "" {
		return 0
	}
	title, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	job := JobOfStepd(strings.TrimRight(string(title), "\x00"))
	if err != nil || job == 0 {
		return 0
	}
	// Debian calls it slurmstepd-wlm; " (deleted)" follows where Slurm was upgraded below it.
	program, err := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil || !strings.HasPrefix(filepath.Base(program), stepd) {
		return 0
	}
	status, _ := os.ReadFile(filepath.Join(dir, "status"))
	_, rest, _ := strings.Cut(string(status), "\nUid:")
	uids := strings.Fields(rest)
	if len(uids) == 0 {
		return 0
	}
	if uid, err := strconv.ParseUint(uids[0], 10, 32); err != nil || uid != 0 {
		return 0
	}
	return job
}
