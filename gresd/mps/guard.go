// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"log/slog"
	"maps"
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
	// guardEvery is the time between two polls while jobs work, and guardIdleEvery while clients only
	// live.
	guardEvery     = 50 * time.Millisecond
	guardIdleEvery = time.Second
	// recentLaunch is how long the last launch of a client counts. A poll can follow it late.
	recentLaunch = time.Second
	// After the death of a client, the guard keeps its descriptors for minKeep plus slowdownFactor times
	// the estimated solo time of the work in flight, because other clients run next to it. Launches
	// without a measured cost get keepUnmeasured. maxKeep limits all of these.
	slowdownFactor = 10
	minKeep        = 250 * time.Millisecond
	keepUnmeasured = 2 * time.Second
	maxKeep        = 10 * time.Second
	// maxMemory is more than a card has. A job's user can write any number into the slots.
	maxMemory = 1 << 50
	// epilogTimeout limits [ClientGuard.Wait]. An Epilog waits longer for its answer.
	epilogTimeout = 1500 * time.Millisecond
	// uvmDevice is the name of the device file, in any folder: a container has its own root.
	uvmDevice = "nvidia-uvm"
	// maxKept limits the descriptors that gresd keeps for one job. A server has about sixty clients at
	// most, with a few descriptors each.
	maxKept = 256
	// listTimeout limits how long all processes together can delay one poll of their open files.
	listTimeout = 250 * time.Millisecond
	// maxListed limits the descriptors that a poll reads of a process. The driver opens its own early.
	maxListed = 4096
)

// openGrants is the part of the grants that a guard needs.
type openGrants interface {
	Open() []uint32
	Spec(jobID uint32) (libvgpu.GrantSpec, bool)
	Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error)
}

// ClientGuard prevents that the death of one client of an MPS server crashes the other clients.
//
// When a client is killed, its running kernels go on, but the kernel driver removes its address space
// at once. These kernels then fault, and all clients of the server get an error (docs/adr/0013 has
// figures). The address space belongs to the open file of nvidia-uvm, and ends with the last
// descriptor of that file. So gresd has a descriptor of each client's file, and closes it when the
// kernels must have finished. Until then the card keeps the client's memory: it counts for the job
// ([ClientGuard.Memory]), and an Epilog waits for it ([ClientGuard.Wait]).
//
// [ClientGuard.Wait] and [ClientGuard.Memory] can be called while [ClientGuard.Run] runs.
type ClientGuard struct {
	grants openGrants
	served func(jobID uint32) bool // its programs are clients of a server
	log    *slog.Logger
	wake   wakeup.Bell
	warned bool
	stuck  *timeout.Calls[uint32] // users whose files let who looks at them wait

	mu       sync.Mutex
	deadline time.Time // of the questions of one look; zero: none
	clients  map[slotID]*client
	ended    []*client // whose files are kept for a while
}

// slotID is a process of a job.
type slotID struct {
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

// NewClientGuard returns a guard that does nothing before [ClientGuard.Run]. served reports whether the
// programs of a job are clients of a server.
func NewClientGuard(grants openGrants, served func(jobID uint32) bool, log *slog.Logger) *ClientGuard {
	return &ClientGuard{grants: grants, served: served, log: log, wake: wakeup.NewBell(), stuck: timeout.New[uint32](1, math.MaxInt), clients: map[slotID]*client{}}
}

// Wake starts a poll. Call it when jobs come, go or begin to work, or get or lose a server. It never
// blocks.
func (k *ClientGuard) Wake() { k.wake.Ring() }

// Run polls while there are clients, until ctx is done.
func (k *ClientGuard) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, k.wake.Ring)()
	for ctx.Err() == nil {
		began := time.Now()
		awake := k.look(began)
		k.mu.Lock()
		ended, living := len(k.ended), len(k.clients)
		k.mu.Unlock()
		pause := guardEvery
		if !awake && ended == 0 {
			pause = guardIdleEvery
			if living == 0 {
				pause = time.Hour // or when woken
			}
		}
		k.wake.Sleep(max(wakeup.Next(pause), wakeup.Rest(time.Since(began))))
	}
}

// Wait waits until no ended process of a job has kept memory.
func (k *ClientGuard) Wait(ctx context.Context, jobID uint32) {
	ctx, cancel := context.WithTimeout(ctx, epilogTimeout)
	defer cancel()
	for k.keeps(jobID, time.Now()) && wakeup.Wait(ctx, guardEvery) {
	}
}

func (k *ClientGuard) keeps(jobID uint32, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.deadline = time.Now() // The Epilog waits: only a look of Run lists open files.
	k.lookAt(jobID, now)
	k.close(now)
	return slices.ContainsFunc(k.ended, func(c *client) bool { return c.job == jobID })
}

// Memory returns the kept memory of the ended processes of a job on a card of its grant, in bytes. For
// a moment the slots of these processes count it, too.
func (k *ClientGuard) Memory(jobID uint32, card int) (bytes int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.ended {
		if c.job == jobID && card < len(c.memory) {
			bytes += int64(min(c.memory[card], maxMemory))
		}
	}
	return bytes
}

// look follows the clients of all jobs and says whether any job is awake.
func (k *ClientGuard) look(now time.Time) (awake bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.deadline = time.Now().Add(listTimeout)
	open := k.grants.Open()
	for _, job := range open {
		awake = k.lookAt(job, now) || awake
	}
	for n, c := range k.clients { // a process can outlive its job
		c.ended = c.ended || !slices.Contains(open, n.job)
	}
	k.close(now)
	return awake
}

// lookAt is look for one job.
func (k *ClientGuard) lookAt(job uint32, now time.Time) (awake bool) {
	spec, ok := k.grants.Spec(job)
	served, age := ok && k.served(job), guardEvery/2
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
		k.updateClient(slotID{job, slot.Owner}, spec.UID, slot, now)
	}
	return !view.Asleep
}

// updateClient follows one process.
func (k *ClientGuard) updateClient(n slotID, uid uint32, slot libvgpu.SlotView, now time.Time) {
	c := k.clients[n]
	if c == nil {
		if !slot.Alive || slot.HostPID == 0 || k.descriptors(n.job) >= maxKept {
			return
		}
		if c = k.openClient(n.job, int(slot.HostPID), uid); c == nil {
			return
		}
		k.clients[n] = c
	}
	if launchesOf(slot) < c.launches {
		k.closeClient(c, now) // it is another program now, which has no part in that address space
	}
	c.follow(slot, now)
	c.final = c.ended
	if !c.ended && (len(c.files) == 0 || now.Sub(c.listed) >= guardIdleEvery) {
		k.list(c, uid, now)
	}
}

// openClient returns a process of that user, or of root, as a client; nil where it is gone or somebody
// else's: the job's user can write into its slots.
func (k *ClientGuard) openClient(job uint32, pid int, uid uint32) *client {
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
func (k *ClientGuard) refused(err error) {
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
		c.flight += time.Duration(min(card.InflightNS, uint64(maxKeep)))
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
	measured, waited := c.moved.Sub(c.measured) < 2*guardEvery, c.waited.After(c.moved)
	switch {
	case len(c.files) == 0, c.launches == 0:
		return 0
	case c.flight > 0:
		return min(minKeep+slowdownFactor*c.flight, maxKeep)
	case measured && c.final && (waited || now.Sub(c.moved) > recentLaunch):
		return 0
	case measured || waited:
		return minKeep
	}
	return keepUnmeasured
}

// list keeps what the process has open of the device. Its user can call any file so, and closing one of
// a file system of theirs would wait for them: only what is a device is copied.
func (k *ClientGuard) list(c *client, uid uint32, now time.Time) {
	wait := listTimeout
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
		if k.descriptors(c.job) >= maxKept {
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
func (k *ClientGuard) descriptors(job uint32) (n int) {
	for _, c := range slices.AppendSeq(slices.Clone(k.ended), maps.Values(k.clients)) {
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
	for _, at := range dir.Open(maxListed) {
		theirs, err := strconv.Atoi(at)
		if err == nil && path.Base(dir.Link("fd/"+at)) == uvmDevice && isDevice(unix.AT_FDCWD, dir.File("fd/"+at)) {
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

// closeClient ends what is kept of the program that a process was.
func (k *ClientGuard) closeClient(c *client, now time.Time) {
	k.ended = append(k.ended, &client{job: c.job, pidfd: -1, files: c.files, memory: c.memory, until: now.Add(c.hold(now))})
	c.files, c.memory = map[int]int{}, nil
}

// close notes which clients have ended, and closes the files of those whose work has.
func (k *ClientGuard) close(now time.Time) {
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
