// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Load is a load on gresd: clients that each start a job, end it, and start the
// next, beside jobs that only live.
type Load struct {
	Clients int
	Live    int           // jobs beside those of the clients
	Rate    float64       // grants and releases a second, of all clients together; 0: as fast as they are answered
	For     time.Duration // how long
}

// Figures are what was measured. Times are those that a client waits.
type Figures struct {
	Grants, Releases int
	Took             time.Duration
	Grant, Release   Times
	GresdCPU         float64 // cores of gresd itself
	ChildrenCPU      float64 // cores of the programs that gresd starts (scontrol)
	ClientsCPU       float64 // cores of the clients, that is of this process
	RSS              int64   // bytes, at the end
}

// Rate is grants and releases a second.
func (f Figures) Rate() float64 { return float64(f.Grants+f.Releases) / f.Took.Seconds() }

// Times are percentiles of how long answers took.
type Times struct{ P50, P99, Max time.Duration }

func timesOf(all []time.Duration) Times {
	if len(all) == 0 {
		return Times{}
	}
	slices.Sort(all)
	at := func(q float64) time.Duration { return all[min(len(all)-1, int(q*float64(len(all))))] }
	return Times{at(0.50), at(0.99), all[len(all)-1]}
}

// firstLive is the first id of jobs that only live; those of clients are below.
const firstLive = 1 << 30

// Fill makes jobs live, each with one hundredth of a card.
func (n *Node) Fill(jobs int) error {
	for i := range jobs {
		job := Job{ID: uint32(firstLive + i), UID: 1000, Card: i % n.Cards, Share: 1}
		if err := n.Submit(job); err != nil {
			return err
		}
		rep, err := n.Prolog(context.Background(), job)
		if err != nil || rep.Result != wire.Granted {
			return fmt.Errorf("job %d of %d that live: %w", i+1, jobs, saidNo(rep, err))
		}
	}
	return nil
}

// Empty ends jobs of [Node.Fill], from the first-th on.
func (n *Node) Empty(first, jobs int) error {
	for i := first; i < jobs; i++ {
		id := uint32(firstLive + i)
		if rep, err := n.Epilog(context.Background(), id); err != nil || rep.Result != wire.Released {
			return fmt.Errorf("end of job %d of %d that live: %w", i+1, jobs, saidNo(rep, err))
		}
		if err := n.End(id); err != nil {
			return err
		}
	}
	return nil
}

// Beside is how many jobs can live beside those of the clients.
func (l Load) Beside(cards int) int {
	ofClients := (l.Clients + cards - 1) / cards // on one card
	return min(l.Live, cards*(100-ofClients))
}

// Run puts the load on a gresd that runs. Any answer but yes is an error.
func (l Load) Run(n *Node) (Figures, error) {
	var f Figures
	var mu sync.Mutex
	var grants, releases []time.Duration
	var failed error
	var next atomic.Uint32
	var all sync.WaitGroup
	own, children, err := cpuOf(n.PID())
	if err != nil {
		return f, err
	}
	clients, _, err := cpuOf(os.Getpid())
	if err != nil {
		return f, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	start := time.Now()
	end := start.Add(l.For)
	for client := range l.Clients {
		all.Go(func() {
			var granted, released []time.Duration
			err := l.client(ctx, n, client, &next, start, end, &granted, &released)
			mu.Lock()
			defer mu.Unlock()
			grants, releases = append(grants, granted...), append(releases, released...)
			if err != nil && failed == nil {
				failed = err
				cancel()
			}
		})
	}
	all.Wait()
	if failed != nil {
		return f, failed
	}
	f.Took = time.Since(start)
	own2, children2, err := cpuOf(n.PID())
	if err != nil {
		return f, err
	}
	clients2, _, err := cpuOf(os.Getpid())
	if err != nil {
		return f, err
	}
	f.ClientsCPU = (clients2 - clients).Seconds() / f.Took.Seconds()
	f.GresdCPU = (own2 - own).Seconds() / f.Took.Seconds()
	f.ChildrenCPU = (children2 - children).Seconds() / f.Took.Seconds()
	f.Grants, f.Releases = len(grants), len(releases)
	f.Grant, f.Release = timesOf(grants), timesOf(releases)
	f.RSS, err = n.RSS()
	return f, err
}

// client is the life of one: grant, release, grant. It keeps its own pace, so
// that one that is behind catches up.
func (l Load) client(ctx context.Context, n *Node, number int, next *atomic.Uint32, start, end time.Time, granted, released *[]time.Duration) error {
	due := start
	pause := time.Duration(0)
	if l.Rate > 0 {
		pause = time.Duration(float64(l.Clients) / l.Rate * float64(time.Second))
		due = due.Add(pause * time.Duration(number) / time.Duration(l.Clients))
	}
	for time.Now().Before(end) && ctx.Err() == nil {
		job := Job{ID: next.Add(1), UID: 1000, Card: number % n.Cards, Share: 1}
		if err := n.Submit(job); err != nil {
			return err
		}
		time.Sleep(time.Until(due))
		due = due.Add(pause)
		began := time.Now()
		rep, err := n.Prolog(ctx, job)
		if err != nil || rep.Result != wire.Granted {
			return fmt.Errorf("grant of job %d: %w", job.ID, saidNo(rep, err))
		}
		*granted = append(*granted, time.Since(began))
		time.Sleep(time.Until(due))
		due = due.Add(pause)
		began = time.Now()
		if rep, err = n.Epilog(ctx, job.ID); err != nil || rep.Result != wire.Released {
			return fmt.Errorf("release of job %d: %w", job.ID, saidNo(rep, err))
		}
		*released = append(*released, time.Since(began))
		if err := n.End(job.ID); err != nil {
			return err
		}
	}
	return nil
}

func saidNo(rep wire.Reply, err error) error {
	if err == nil {
		err = fmt.Errorf("%s: %s", rep.Result, rep.Message)
	}
	return err
}

// IdleCPU is the part of a core that gresd takes while nobody asks.
func (n *Node) IdleCPU(d time.Duration) (float64, error) {
	before, err := n.ranFor()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	time.Sleep(d)
	after, err := n.ranFor()
	return (after - before).Seconds() / time.Since(start).Seconds(), err
}

// ranFor is the processor time of gresd's threads, to the nanosecond.
func (n *Node) ranFor() (time.Duration, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", n.PID()))
	if err != nil || len(threads) == 0 {
		return 0, fmt.Errorf("no times of threads of process %d: %w", n.PID(), err)
	}
	var sum time.Duration
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			return 0, err
		}
		var ran int64
		if _, err := fmt.Sscan(string(text), &ran); err != nil {
			return 0, fmt.Errorf("read %s: %w", thread, err)
		}
		sum += time.Duration(ran)
	}
	return sum, nil
}

// RSS is what gresd has in memory, in bytes, the grants that it maps included.
func (n *Node) RSS() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			kib, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no VmRSS in the status of process %d", n.PID())
}

// cpuOf is the processor time of a process, and that of its children.
func cpuOf(pid int) (own, children time.Duration, err error) {
	_, own, children, err = timesOfProcess(pid)
	if err != nil {
		return 0, 0, err
	}
	// Children that have not ended yet are in nobody's sum.
	processes, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range processes {
		child, notNumber := strconv.Atoi(filepath.Base(dir))
		if notNumber != nil {
			continue
		}
		if parent, itsOwn, itsChildren, gone := timesOfProcess(child); gone == nil && parent == pid {
			children += itsOwn + itsChildren
		}
	}
	return own, children, err
}

func timesOfProcess(pid int) (parent int, own, children time.Duration, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	// The name, in brackets, may hold spaces. Times are in hundredths of a second.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if parent, err = strconv.Atoi(string(fields[1])); err != nil {
		return 0, 0, 0, err
	}
	var ticks [4]int64
	for i := range ticks {
		if ticks[i], err = strconv.ParseInt(string(fields[11+i]), 10, 64); err != nil {
			return 0, 0, 0, err
		}
	}
	const tick = 10 * time.Millisecond
	return parent, time.Duration(ticks[0]+ticks[1]) * tick, time.Duration(ticks[2]+ticks[3]) * tick, nil
}

// Favour gives the session of a process a priority as that of nice. Where the
// kernel groups processes by session, nice says nothing beside other sessions.
func Favour(pid, priority int) error {
	if priority == 0 {
		return nil
	}
	err := os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), fmt.Append(nil, priority), 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, syscall.Setpriority(syscall.PRIO_PROCESS, pid, priority))
}

// Pin lets all threads of a process run on these processors alone.
func Pin(pid int, cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, thread := range threads {
		id, notNumber := strconv.Atoi(thread.Name())
		err = errors.Join(err, notNumber, unix.SchedSetaffinity(id, &set))
	}
	return err
}
