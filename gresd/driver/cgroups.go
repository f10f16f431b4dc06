// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// limitsEvery is the time between two checks. Slurm makes a cgroup after the job's grant, with
	// the first step, and can make it again.
	limitsEvery = time.Second
	// LimitMargin is the difference between the driver's limit and the library's. The library must
	// refuse first, because the driver also counts memory that NVML shows for no process.
	LimitMargin = 256 * gpu.MiB
)

// Grants are the open grants.
type Grants interface {
	Open() []uint32
	Spec(jobID uint32) (libvgpu.GrantSpec, bool)
}

// LimitKeeper lets the driver enforce the memory limits of jobs as well, for the cgroups that Slurm
// makes for them (cgroup v2, drivers from r615 on). The kernel then refuses memory to calls that the
// library does not see. A job runs also without these limits. The exported fields must be set.
type LimitKeeper struct {
	Grants Grants
	// Set is [NVML.LimitMemory]. It returns [ErrNoLimits] if the driver has no such limits.
	Set  func(card gpu.UUID, folder string, most gpu.Bytes) error
	Root string // of cgroups: "/sys/fs/cgroup", another folder in tests
	Proc string // "/proc", another folder in tests
	Log  *slog.Logger

	held   map[limit]gpu.Bytes
	jobs   map[uint64]uint32 // of folders whose name does not tell it, by inode
	failed map[limit]bool    // and said
	none   map[gpu.UUID]bool // cards without such limits
}

// limit is one of a cgroup. The inode is that of the folder, which Slurm may make anew.
type limit struct {
	job   uint32
	card  gpu.UUID
	inode uint64
}

// Run sets limits until ctx is done.
func (k *LimitKeeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		k.step()
		wakeup.Wait(ctx, wakeup.Next(limitsEvery))
	}
}

// step sets what is not set. The driver forgets a limit with its cgroup.
func (k *LimitKeeper) step() {
	open := k.Grants.Open()
	held, failed := map[limit]gpu.Bytes{}, map[limit]bool{}
	if len(open) > 0 {
		for _, f := range k.folders() {
			if spec, ok := k.Grants.Spec(f.job); ok && slices.Contains(open, f.job) {
				k.hold(f, spec, held, failed)
			}
		}
	}
	k.held, k.failed = held, failed
}

func (k *LimitKeeper) hold(f folder, spec libvgpu.GrantSpec, held map[limit]gpu.Bytes, failed map[limit]bool) {
	for _, card := range spec.Cards {
		l := limit{f.job, gpu.UUID(card.UUID), f.inode}
		// Of a card that is shared out more than once, what moves to the host is no longer the
		// card's memory, and the driver counts it as the host's.
		if card.MemLimit == 0 || card.MemPhysical != 0 && card.MemPhysical != card.MemLimit || k.none[l.card] {
			continue
		}
		most := gpu.Bytes(card.MemLimit) + LimitMargin
		if k.held[l] == most {
			held[l] = most
			continue
		}
		k.enable(f.path)
		err := k.Set(l.card, f.path, most)
		switch {
		case err == nil:
			held[l] = most
			k.Log.Info("the driver holds the memory limit of a job", "job_id", f.job, "gpu_uuid", l.card, "bytes", uint64(most))
		case errors.Is(err, ErrNoLimits):
			if k.none == nil {
				k.none = map[gpu.UUID]bool{}
			}
			k.none[l.card] = true
			k.Log.Warn("the library alone holds memory limits", "gpu_uuid", l.card, "error", err)
		default: // again with the next look: what a job has already may be above its limit
			if failed[l] = true; !k.failed[l] {
				k.Log.Warn("the driver does not hold the memory limit of a job", "job_id", f.job, "gpu_uuid", l.card, "error", err)
			}
		}
	}
}

// folder is the cgroup of a job.
type folder struct {
	path  string
	job   uint32
	inode uint64
}

// folders are those of all jobs, with all of their steps below.
func (k *LimitKeeper) folders() []folder {
	paths, _ := filepath.Glob(filepath.Join(k.Root, "system.slice/*slurmstepd.scope/*"))
	var found []folder
	jobs := map[uint64]uint32{}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() {
			continue
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			continue
		}
		f := folder{path: path, inode: stat.Ino}
		name, job := process.CgroupOfJob("0::" + strings.TrimPrefix(path, k.Root))
		if f.job = job; job == 0 && name != "" {
			if f.job = k.jobs[f.inode]; f.job == 0 {
				f.job = process.JobOfFolder(k.Proc, name)
			}
			jobs[f.inode] = f.job
		}
		if f.job != 0 {
			found = append(found, f)
		}
	}
	k.jobs = jobs
	return found
}

// enable lets a folder have limits of the kernel's dmem controller, where there is one: it must
// be asked for in each folder above. Without it the driver keeps the limits itself.
func (k *LimitKeeper) enable(path string) {
	if _, err := os.Stat(filepath.Join(path, "dmem.max")); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	text, err := os.ReadFile(filepath.Join(k.Root, "cgroup.controllers"))
	if err != nil || !slices.Contains(strings.Fields(string(text)), "dmem") {
		return
	}
	below, _ := filepath.Rel(k.Root, path)
	above := k.Root
	for name := range strings.SplitSeq(below, "/") {
		// A failed write is not reported here: the driver then refuses the limit, and that is.
		_ = os.WriteFile(filepath.Join(above, "cgroup.subtree_control"), []byte("+dmem"), 0o644)
		above = filepath.Join(above, name)
	}
}
