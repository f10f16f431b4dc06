// SPDX-License-Identifier: Apache-2.0

// Package linger keeps the death of one client of an MPS server from ending the others.
//
// When a client is killed, the server lets run what it had launched, but the kernel takes its
// address space off the card at once. That work then reads memory that is not there, and for such
// a fault of the card all clients of the server get an error (docs/adr/0013 has figures). The
// address space belongs to the open file of nvidia-uvm, and ends with the last descriptor of it.
// So gresd has a descriptor of its own of each client's, and closes it when what the client had
// launched must have ended. Until then the card keeps the client's memory: it counts for
// the job ([Keeper.Memory]), and an Epilog waits for it ([Keeper.Wait]).
package linger

import (
	"context"
	"log/slog"
	"math"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/timeout"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// every is the time between two looks while jobs work, and seldom while clients only live.
	every  = 50 * time.Millisecond
	seldom = time.Second
	// lately is for how long what a client had launched counts: a look may come after its last launch.
	lately = time.Second
	// After its death, what a client had in flight gets slower times what that takes alone, and atLeast:
	// others run beside it. unmeasured is for launches that nobody measured, as with the engine mps, or
	// before the job had company; longest bounds all.
	slower     = 10
	atLeast    = 250 * time.Millisecond
	unmeasured = 2 * time.Second
	longest    = 10 * time.Second
	// mostMemory is more than a card has: a job's user can write anything into its slots.
	mostMemory = 1 << 50
	// epilogWaits bounds what [Keeper.Wait] waits: less than an Epilog waits for its answer.
	epilogWaits = 1500 * time.Millisecond
	// device is how the file is called whose descriptors are kept, in whatever folder: the root of a
	// container is not ours.
	device = "nvidia-uvm"
	// mostOfJob are the descriptors that gresd keeps for one job: a server has at most some sixty clients,
	// and each a few.
	mostOfJob = 256
	// patience is how long all processes together can delay one look at their open files. All jobs wait
	// for the look.
	patience = 250 * time.Millisecond
	// mostLookedAt are the descriptors of a process that are looked at: the driver opens its own early.
	mostLookedAt = 4096
)

// Grants is what a keeper needs of the open grants.
type Grants interface {
	Open() []uint32
	Spec(jobID uint32) (libvgpu.GrantSpec, bool)
	Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error)
}

// Keeper keeps descriptors of the clients of all servers of the node. [Keeper.Wait] may be called
// while [Keeper.Run] runs.
type Keeper struct {
	grants Grants
	served func(jobID uint32) bool // its programs are clients of a server
	log    *slog.Logger
	wake   wakeup.Bell
	warned bool
	stuck  *timeout.Calls[uint32] // users whose files let who looks at them wait

	mu       sync.Mutex
	deadline time.Time // of the questions of one look; zero: none
	clients  map[name]*client
	ended    []*client // whose files are kept for a while
}

// name is a process of a job.
type name struct {
	job   uint32
	owner uint64 // of its slot
}

type client struct {
	job      uint32
	pid      int
	pidfd    int
	files    map[int]int // by their descriptors in the process, ours
	listed   time.Time   // when they were last looked for
	memory   []uint64    // bytes that it announced, on each card of its job
	launches uint64
	charged  uint64        // GPU time, in nanoseconds
	flight   time.Duration // of work in flight, as estimated
	syncs    uint32
	moved    time.Time // when launches last grew
	waited   time.Time // when syncs did: the host has waited for all work
	measured time.Time // when charged last grew
	ended    bool
	final    bool      // this is how its slot was after its end
	until    time.Time // of one that has ended: when its files are closed
}

// New returns a keeper that does nothing before [Keeper.Run]. served says whether the programs of a
// job are clients of a server.
func New(grants Grants, served func(jobID uint32) bool, log *slog.Logger) *Keeper {
	return &Keeper{grants: grants, served: served, log: log, wake: wakeup.NewBell(), stuck: timeout.New[uint32](1, math.MaxInt), clients: map[name]*client{}}
}

// Wake tells the keeper that jobs have come, gone or begun to work, or have a server or none. It never blocks.
func (k *Keeper) Wake() { k.wake.Ring() }

// Run looks while there are clients, until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		awake := k.look(began)
		k.mu.Lock()
		ended, living := len(k.ended), len(k.clients)
		k.mu.Unlock()
		pause := every
		if !awake && ended == 0 {
			pause = seldom
			if living == 0 {
				pause = time.Hour // or when woken
			}
		}
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-time.After(max(wakeup.Next(pause), wakeup.Rest(time.Since(began)))):
		}
	}
}

// Wait waits until nothing is kept any more of what a job had launched whose processes have ended:
// then the card has its memory back.
func (k *Keeper) Wait(ctx context.Context, jobID uint32) {
	ctx, cancel := context.WithTimeout(ctx, epilogWaits)
	defer cancel()
	for k.keeps(jobID, time.Now()) && wakeup.Wait(ctx, every) {
	}
}

func (k *Keeper) keeps(jobID uint32, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.deadline = time.Now() // The Epilog waits: only a look of Run lists open files.
	k.lookAt(jobID, now)
	k.close(now)
	for _, c := range k.ended {
		if c.job == jobID {
			return true
		}
	}
	return false
}

// Memory is what the card still has of processes of a job that have ended, in bytes; card is its
// place in the grant. For a moment their slots count it, too.
func (k *Keeper) Memory(jobID uint32, card int) (bytes int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.ended {
		if c.job == jobID && card < len(c.memory) {
			bytes += int64(min(c.memory[card], mostMemory))
		}
	}
	return bytes
}

// look follows the clients of all jobs and says whether any job is awake.
func (k *Keeper) look(now time.Time) (awake bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.deadline = time.Now().Add(patience)
	open := k.grants.Open()
	for _, job := range open {
		if k.lookAt(job, now) {
			awake = true
		}
	}
	for n, c := range k.clients { // a process can outlive its job
		c.ended = c.ended || !slices.Contains(open, n.job)
	}
	k.close(now)
	return awake
}

// lookAt is look for one job.
func (k *Keeper) lookAt(job uint32, now time.Time) (awake bool) {
	spec, ok := k.grants.Spec(job)
	served, age := ok && k.served(job), every/2
	for n, c := range k.clients {
		if n.job == job && !c.ended && (!served || hasEnded(c.pidfd)) {
			c.ended, age = true, 0 // what its slot says from now on is the last word
		}
	}
	if !served {
		return false
	}
	view, err := k.grants.Cache(job, age)
	if err != nil {
		return false // the arbiter says it
	}
	for _, slot := range view.Slots {
		k.see(name{job, slot.Owner}, spec.UID, slot, now)
	}
	return !view.Asleep
}

// see follows one process.
func (k *Keeper) see(n name, uid uint32, slot libvgpu.SlotView, now time.Time) {
	c := k.clients[n]
	if c == nil {
		if !slot.Alive || slot.HostPID == 0 || k.descriptors(n.job) >= mostOfJob {
			return
		}
		if c = k.meet(n.job, int(slot.HostPID), uid); c == nil {
			return
		}
		k.clients[n] = c
	}
	if launchesOf(slot) < c.launches {
		k.part(c, now) // it is another program now, which has no part in that address space
	}
	c.follow(slot, now)
	c.final = c.ended
	if !c.ended && (len(c.files) == 0 || now.Sub(c.listed) >= seldom) {
		k.list(c, uid, now)
	}
}

// meet returns a process of that user, or of root, as a client; nil where it is gone or somebody
// else's: the job's user can write into its slots.
func (k *Keeper) meet(job uint32, pid int, uid uint32) *client {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		k.refused(err)
		return nil
	}
	if owner, ok := process.Of(pid).UID(); !ok || owner != uid && owner != 0 {
		_ = unix.Close(pidfd)
		return nil
	}
	return &client{job: job, pid: pid, pidfd: pidfd, files: map[int]int{}}
}

// refused says once that the kernel does not let us, but for a process that has ended.
func (k *Keeper) refused(err error) {
	if err == unix.ESRCH || err == unix.EBADF || k.warned { //nolint:errorlint // an errno
		return
	}
	k.warned = true
	k.log.Warn("a killed program of an MPS server can end the others: gresd cannot keep what it had launched", "error", err)
}

func launchesOf(slot libvgpu.SlotView) (launches uint64) {
	for _, card := range slot.Cards {
		launches += card.Launches
	}
	return launches
}

// follow notes what a slot says of its process.
func (c *client) follow(slot libvgpu.SlotView, now time.Time) {
	launches, charged, syncs := launchesOf(slot), uint64(0), uint32(0)
	c.flight, c.memory = 0, c.memory[:0]
	for _, card := range slot.Cards {
		charged += card.GPUNS
		syncs += card.Syncs
		c.flight += time.Duration(min(card.InflightNS, uint64(longest)))
		c.memory = append(c.memory, card.Mem)
	}
	if launches != c.launches {
		c.moved = now
	}
	if syncs != c.syncs {
		c.waited = now
	}
	if charged != c.charged || c.flight > 0 {
		c.measured = now
	}
	c.launches, c.charged, c.syncs = launches, charged, syncs
}

// hold is for how long what the client has launched may run after its end.
func (c *client) hold(now time.Time) time.Duration {
	measured, waited := c.moved.Sub(c.measured) < 2*every, c.waited.After(c.moved)
	switch {
	case len(c.files) == 0, c.launches == 0:
		return 0
	case c.flight > 0:
		return min(atLeast+slower*c.flight, longest)
	case measured && c.final && (waited || now.Sub(c.moved) > lately):
		return 0
	case measured || waited:
		return atLeast
	}
	return unmeasured
}

// list keeps what the process has open of the device. Its user can call any file so, and closing one of
// a file system of theirs would wait for them: only what is a device is copied.
func (k *Keeper) list(c *client, uid uint32, now time.Time) {
	wait := patience
	if !k.deadline.IsZero() {
		wait = time.Until(k.deadline)
	}
	if wait <= 0 {
		return // the next look lists it
	}
	c.listed = now
	found, _ := timeout.Run(k.stuck, uid, wait, func() []int { return devices(c.pid) })
	for _, theirs := range found {
		if _, kept := c.files[theirs]; kept {
			continue
		}
		if k.descriptors(c.job) >= mostOfJob {
			return
		}
		ours, err := unix.PidfdGetfd(c.pidfd, theirs, 0)
		if err != nil {
			k.refused(err)
			continue
		}
		if !isDevice(ours, "") { // it was exchanged meanwhile, on purpose
			go func() { _ = unix.Close(ours) }()
			c.listed = now.Add(time.Hour)
			return
		}
		c.files[theirs] = ours
	}
}

// descriptors are how many are kept for a job.
func (k *Keeper) descriptors(job uint32) (n int) {
	for _, c := range k.clients {
		if c.job == job {
			n += 1 + len(c.files)
		}
	}
	for _, c := range k.ended {
		if c.job == job {
			n += 1 + len(c.files)
		}
	}
	return n
}

// devices are the descriptors of the device that a process has open. A file that is called so can let
// who looks at it wait.
func devices(pid int) (all []int) {
	dir := process.Of(pid)
	for _, at := range dir.Open(mostLookedAt) {
		theirs, err := strconv.Atoi(at)
		if err == nil && path.Base(dir.Link("fd/"+at)) == device && isDevice(unix.AT_FDCWD, dir.File("fd/"+at)) {
			all = append(all, theirs)
		}
	}
	return all
}

// isDevice says whether a file is a character device, which no user can make. No file system is asked
// for that, which could make us wait; but NFS may ask its server when the file is looked up. It is a
// variable for tests.
var isDevice = func(dir int, name string) bool {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR
}

// part ends what is kept of the program that a process was.
func (k *Keeper) part(c *client, now time.Time) {
	k.ended = append(k.ended, &client{job: c.job, pidfd: -1, files: c.files, memory: c.memory, until: now.Add(c.hold(now))})
	c.files, c.memory = map[int]int{}, nil
}

// close notes which clients have ended, and closes the files of those whose work has.
func (k *Keeper) close(now time.Time) {
	for n, c := range k.clients {
		if c.ended {
			c.until = now.Add(c.hold(now))
			k.ended = append(k.ended, c)
			delete(k.clients, n)
		}
	}
	left := k.ended[:0]
	for _, c := range k.ended {
		if now.Before(c.until) {
			left = append(left, c)
			continue
		}
		for _, fd := range c.files {
			_ = unix.Close(fd)
		}
		if c.pidfd >= 0 {
			_ = unix.Close(c.pidfd)
		}
	}
	clear(k.ended[len(left):])
	k.ended = left
}

// hasEnded says whether the process of a pidfd has.
func hasEnded(pidfd int) bool {
	set := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(set, 0)
	return err == nil && n > 0
}
