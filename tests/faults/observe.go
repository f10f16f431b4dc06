// SPDX-License-Identifier: Apache-2.0

// Package faults does to a node with running jobs what goes wrong on real ones:
// it kills, stops, restarts and upgrades every program of it, takes away disks,
// descriptors, memory and time, and reboots it. Meanwhile a [Checker] that is no
// part of the node looks at the card, the files, the ledger and Slurm, and holds
// what it sees against what the jobs asked for.
package faults

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/storm"
)

// Observation is what an outsider saw of the node at one time.
type Observation struct {
	At time.Time
	// Cards is the truth: the simulated cards' own account.
	Cards []simgpu.CardStatus
	// Jobs names the job of each process that has a context; 0 is none.
	Jobs map[int]uint32

	Ledger    map[uint32]storm.Entry
	LedgerErr error
	Files     map[uint32]Files // of the job folders

	Slurm *SlurmView // its last answer; nil: none yet
	Old   []string   // programs that run for longer than any of them may
}

// Files is what the two files of a job say.
type Files struct {
	Grant     libvgpu.GrantSpec
	Schedule  libvgpu.Schedule // of the first card, as gresd told it last
	GrantErr  error
	Announced uint64         // bytes, by the slots of the cache
	Budget    libvgpu.Budget // of the first card: what the job says of itself
}

// SlurmView is an answer of slurmctld. What it says was true at some time
// between Asked and Answered.
type SlurmView struct {
	Asked, Answered time.Time
	Jobs            map[uint32]SlurmJob
	State, Reason   string // of the node
}

// SlurmJob is a job that Slurm still knows.
type SlurmJob struct {
	State    string // RUNNING, COMPLETING...
	Restarts int
}

// Observer looks at one node. It is for one goroutine.
type Observer struct {
	machine  *simgpu.Machine
	jobs     map[process]uint32
	patience time.Duration // oldAfter
	oldSince time.Time     // when it looked for programs that are too old: once a second
}

// process is one for all time.
type process struct {
	pid   int
	start uint64 // clock ticks since boot
}

// NewObserver looks at the first node of the cluster that runs.
func NewObserver() (*Observer, error) {
	m, err := simgpu.Open(cluster.SimState)
	if err != nil {
		return nil, err
	}
	return &Observer{machine: m, jobs: map[process]uint32{}, patience: oldAfter}, nil
}

// Look reads everything but what Slurm says, which may take long.
func (o *Observer) Look() Observation {
	obs := Observation{At: time.Now(), Jobs: map[int]uint32{}, Files: map[uint32]Files{}}
	// Memory is announced before it is taken: the card is read first.
	obs.Cards = o.machine.Status()
	for _, card := range obs.Cards {
		for _, c := range card.Contexts {
			obs.Jobs[c.PID] = o.job(c.PID)
		}
	}
	folders, _ := filepath.Glob(cluster.RunDir + "/jobs/[0-9]*")
	for _, folder := range folders {
		id, err := strconv.ParseUint(filepath.Base(folder), 10, 32)
		if err != nil {
			continue
		}
		if f, there := files(folder); there {
			obs.Files[uint32(id)] = f
		}
	}
	obs.Ledger, obs.LedgerErr = storm.ReadLedger(cluster.StateDir + "/ledger.json")
	if obs.At.Sub(o.oldSince) > time.Second {
		obs.Old, o.oldSince = oldPrograms(o.patience), obs.At
	}
	return obs
}

// files reads the files of a job; there is false for a folder that is being
// made or removed, or of a job that was refused.
func files(folder string) (f Files, there bool) {
	var schedules []libvgpu.Schedule
	f.Grant, schedules, f.GrantErr = libvgpu.ReadGrant(folder + "/grant")
	if errors.Is(f.GrantErr, fs.ErrNotExist) {
		return f, false
	}
	if len(schedules) > 0 {
		f.Schedule = schedules[0]
	}
	if view, err := libvgpu.ReadCache(folder + "/cache"); err == nil {
		if len(view.Cards) > 0 {
			f.Budget = view.Cards[0].Budget
		}
		for _, slot := range view.Slots {
			for _, card := range slot.Cards {
				f.Announced += card.Mem
			}
		}
	}
	return f, true
}

// job finds the job of a process in its environment, once: the name of a
// process may be another's later.
func (o *Observer) job(pid int) uint32 {
	p := process{pid, startTime(pid)}
	if p.start == 0 {
		return 0
	}
	if id, known := o.jobs[p]; known {
		return id
	}
	id := uint32(0)
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || len(env) == 0 {
		return 0 // gone meanwhile
	}
	for v := range strings.SplitSeq(string(env), "\x00") {
		if value, ok := strings.CutPrefix(v, "SLURM_JOB_ID="); ok {
			n, _ := strconv.ParseUint(value, 10, 32)
			id = uint32(n)
		}
	}
	o.jobs[p] = id
	return id
}

// stat returns the fields of /proc/PID/stat from the third, the state, on.
func stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	if f := strings.Fields(rest); len(f) > 20 {
		return f
	}
	return nil
}

func startTime(pid int) uint64 {
	f := stat(pid)
	if f == nil {
		return 0
	}
	n, _ := strconv.ParseUint(f[19], 10, 64)
	return n
}

// Programs that answer or end within a time of their own, and how long that may be.
const oldAfter = 60 * time.Second

var shortLived = []string{"vgpu-prolog", "vgpuctl", "scontrol", "squeue", "scancel"}

// oldPrograms lists short-lived programs that are older than they may be.
func oldPrograms(patience time.Duration) []string {
	var old []string
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return nil
	}
	var up float64
	_, _ = fmt.Sscan(string(text), &up)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		comm, err := os.ReadFile(dir + "/comm")
		if err != nil {
			continue
		}
		name := strings.TrimSpace(string(comm))
		for _, want := range shortLived {
			if name != want {
				continue
			}
			pid, _ := strconv.Atoi(filepath.Base(dir))
			const ticks = 100 // of USER_HZ, which is the same on every Linux
			if start := startTime(pid); start != 0 && up-float64(start)/ticks > patience.Seconds() {
				old = append(old, fmt.Sprintf("%s, pid %d, for %.0f s", name, pid, up-float64(start)/ticks))
			}
		}
	}
	return old
}

// AskSlurm asks slurmctld for its jobs and the state of the node.
func AskSlurm(node string) (*SlurmView, error) {
	v := &SlurmView{Asked: time.Now(), Jobs: map[uint32]SlurmJob{}}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "squeue", "-h", "-t", "all", "-O", "JobID:12,State:16,RestartCnt:8").Output()
	if err != nil {
		return nil, fmt.Errorf("squeue: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		id, err1 := strconv.ParseUint(f[0], 10, 32)
		restarts, err2 := strconv.Atoi(f[2])
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("squeue: %q: %w", line, err)
		}
		v.Jobs[uint32(id)] = SlurmJob{f[1], restarts}
	}
	out, err = exec.CommandContext(ctx, "scontrol", "show", "node", "-o", node).Output()
	if err != nil {
		return nil, fmt.Errorf("scontrol show node: %w", err)
	}
	text := strings.TrimSpace(string(out))
	for w := range strings.FieldsSeq(text) {
		if state, ok := strings.CutPrefix(w, "State="); ok && v.State == "" {
			v.State = state
		}
	}
	if _, reason, ok := strings.Cut(text, " Reason="); ok {
		v.Reason = reason
	}
	v.Answered = time.Now()
	return v, nil
}
