// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// reclaimEvery is the time between two polls.
	reclaimEvery = time.Second
	// reclaimPause is the time without a child for a job after a child failed for it.
	reclaimPause = 30 * time.Second
)

// openGrants is the part of [Store] that a reclaimer needs.
type openGrants interface {
	Open() []uint32
	Spec(jobID uint32) (libvgpu.GrantSpec, bool)
	Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error)
	OpenCache(jobID uint32) (*os.File, error)
}

// ClearSlots clears slots of a cache file, as that user.
type ClearSlots func(ctx context.Context, cache *os.File, uid, gid uint32, dead []libvgpu.SlotOwner) (int, error)

// SlotReclaimer frees the slots of processes that died without freeing them. The processes of a job
// also do this for each other when they need room. The reclaimer keeps the reported numbers true for
// jobs whose processes do not.
//
// A child process clears the slots. Before the write that clears a slot, a new process of the job can
// take it over. Clearing it then would hide the memory of the new process from the limit. Only a
// compare-and-swap prevents this, and it needs the file mapped. gresd must not map a file that its
// owner can truncate (SIGBUS). So a short-lived child maps it, as the job's user, with no other file
// open.
//
// A process is dead if libvgpu/hostpid.go proves it in two polls at least a second apart.
type SlotReclaimer struct {
	grants openGrants
	clear  ClearSlots
	log    *slog.Logger
	wake   wakeup.Bell
	first  map[victim]time.Time // when a dead process was first seen dead
	shun   map[uint32]time.Time // jobs to leave alone until then
	warned bool
}

type victim struct {
	job  uint32
	slot libvgpu.SlotOwner
}

// NewSlotReclaimer returns a reclaimer that does nothing before [SlotReclaimer.Run].
func NewSlotReclaimer(grants openGrants, clear ClearSlots, log *slog.Logger) *SlotReclaimer {
	return &SlotReclaimer{
		grants: grants, clear: clear, log: log, wake: wakeup.NewBell(),
		first: map[victim]time.Time{}, shun: map[uint32]time.Time{},
	}
}

// Wake tells the reclaimer that jobs have come or gone. It never blocks.
func (r *SlotReclaimer) Wake() { r.wake.Ring() }

// Run looks while jobs are awake, until ctx is done.
func (r *SlotReclaimer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		awake, took := r.step(ctx, began), time.Since(began)
		if awake == 0 {
			select {
			case <-ctx.Done():
			case <-r.wake:
			}
		}
		wakeup.Wait(ctx, max(wakeup.Next(reclaimEvery), wakeup.Rest(took))) // however often jobs come and go
	}
}

// step looks once and returns the number of jobs that are awake.
func (r *SlotReclaimer) step(ctx context.Context, now time.Time) int {
	jobs, awake := r.grants.Open(), 0
	first := map[victim]time.Time{}
	for _, job := range jobs {
		var ripe []libvgpu.SlotOwner
		dead, asleep := r.dead(job)
		if !asleep {
			awake++
		}
		for _, slot := range dead {
			v := victim{job, slot}
			seen, known := r.first[v]
			if !known {
				seen = now
			}
			first[v] = seen
			if now.Sub(seen) >= reclaimEvery {
				ripe = append(ripe, slot)
			}
		}
		if len(ripe) > 0 && now.After(r.shun[job]) {
			r.reclaim(ctx, job, ripe, now)
		}
	}
	r.first = first
	maps.DeleteFunc(r.shun, func(job uint32, _ time.Time) bool { return !slices.Contains(jobs, job) })
	return awake
}

// dead returns the slots of processes of a job that are surely dead.
func (r *SlotReclaimer) dead(job uint32) (dead []libvgpu.SlotOwner, asleep bool) {
	view, err := r.grants.Cache(job, reclaimEvery/2)
	if err != nil {
		return nil, false // the arbiter says it
	}
	for _, slot := range view.Slots {
		if slot.Gone {
			dead = append(dead, slot.SlotOwner)
		}
	}
	return dead, view.Asleep
}

func (r *SlotReclaimer) reclaim(ctx context.Context, job uint32, dead []libvgpu.SlotOwner, now time.Time) {
	spec, ok := r.grants.Spec(job)
	if !ok {
		return
	}
	cache, err := r.grants.OpenCache(job)
	if err != nil {
		return // cut or removed
	}
	defer cache.Close()
	n, err := r.clear(ctx, cache, spec.UID, spec.GID, dead[:min(len(dead), mostSlots)])
	switch {
	case err == nil && n > 0:
		r.log.Info("slots of dead processes cleared", "job_id", job, "slots", n)
	case err != nil && ctx.Err() == nil:
		r.shun[job] = now.Add(reclaimPause)
		level := slog.LevelDebug // its user can make it fail again and again
		if !r.warned {
			level, r.warned = slog.LevelWarn, true
		}
		r.log.Log(ctx, level, "slots of dead processes are left to the job's own processes", "job_id", job, "error", err)
	}
}

const (
	clearTimeout = 5 * time.Second
	// mostSlots keeps a child's command line short; the rest has its turn at
	// the next look.
	mostSlots = 256
	// cacheFD is where the child finds the file.
	cacheFD = 3
)

// ClearInChild returns a [ClearSlots] that runs a program with args, a word for the job's user
// and one for the slots, as JSON, and with the cache as file 3. The program must call
// [ClearInherited].
//
// It starts as gresd's own user and then changes to the job's user. A process that starts as a user
// can be traced by that user. This process is outside of the job's cgroup and namespaces, and can
// reach other users' cards.
func ClearInChild(program string, args ...string) ClearSlots {
	return func(ctx context.Context, cache *os.File, uid, gid uint32, dead []libvgpu.SlotOwner) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, clearTimeout)
		defer cancel()
		slots, err := json.Marshal(dead)
		if err != nil {
			return 0, err
		}
		words := append(slices.Clone(args), fmt.Sprintf("%d:%d", uid, gid), string(slots))
		out, errs := process.Output{Most: mostSaid}, process.Output{Most: mostSaid}
		cmd := process.Command(ctx, program, words...)
		cmd.Env, cmd.ExtraFiles = []string{"GOMAXPROCS=1"}, []*os.File{cache}
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			reason, _, _ := strings.Cut(errs.String(), "\n")
			return 0, fmt.Errorf("clear slots as user %d: %w: %s", uid, err, reason)
		}
		n, err := strconv.Atoi(strings.TrimSpace(out.String()))
		if err != nil {
			return 0, fmt.Errorf("clear slots as user %d: read answer: %w", uid, err)
		}
		return n, nil
	}
}

// mostSaid limits the kept output of a child, in bytes.
const mostSaid = 4 << 10

// Become gives up root for the user and group of the first word that [ClearInChild] gives.
// Afterwards the process is still not that user's to trace, nor its files.
func Become(word string) error {
	user, group, _ := strings.Cut(word, ":")
	uid, err := strconv.ParseUint(user, 10, 32)
	gid, err2 := strconv.ParseUint(group, 10, 32)
	if err != nil || err2 != nil {
		return fmt.Errorf("user %q: want UID:GID", word)
	}
	if os.Geteuid() != 0 { // a gresd of no rights has no others to give up
		return nil
	}
	for _, give := range []func() error{
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setresgid(int(gid), int(gid), int(gid)) },
		func() error { return syscall.Setresuid(int(uid), int(uid), int(uid)) },
		func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) },
		// The kernel has done it at the change of user, unless fs.suid_dumpable says no.
		func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) },
		// The kernel has also cleared the signal at the death of the parent.
		func() error { return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0) },
	} {
		if err := give(); err != nil {
			return fmt.Errorf("become user %d: %w", uid, err)
		}
	}
	return nil
}

// ClearInherited is the work of the child: words are as [ClearInChild] gives them. It
// returns how many slots were cleared.
func ClearInherited(words []string) (int, error) {
	if len(words) != 2 {
		return 0, errors.New("want UID:GID and slots")
	}
	if err := Become(words[0]); err != nil {
		return 0, err
	}
	var dead []libvgpu.SlotOwner
	if err := json.Unmarshal([]byte(words[1]), &dead); err != nil {
		return 0, fmt.Errorf("read slots: %w", err)
	}
	cache := os.NewFile(cacheFD, "cache")
	if cache == nil {
		return 0, fmt.Errorf("want the cache as file %d", cacheFD)
	}
	defer cache.Close()
	return libvgpu.ClearSlots(cache, dead)
}
