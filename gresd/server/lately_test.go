// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/binary"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// fakeUses is a driver that has seen this process, and another one, on every card.
type fakeUses struct{ asked atomic.Int32 }

func (f *fakeUses) Usage(gpu.UUID) (driver.Usage, error) { return driver.Usage{}, nil }

func (f *fakeUses) Utilization(gpu.UUID, time.Time) ([]driver.Use, error) {
	f.asked.Add(1)
	pid := uint32(os.Getpid())
	return []driver.Use{{PID: pid, Percent: 30}, {PID: pid, Percent: 34}, {PID: 1, Percent: 50}}, nil
}

// putOwner makes the slot that putSlot wrote one that the kernel knows: this pid
// with its start time.
func putOwner(t *testing.T, path string) {
	t.Helper()
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	after := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	start, err := strconv.ParseUint(after[19], 10, 64) // field 22; the first here is 3
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	words := binary.LittleEndian.AppendUint64(nil, 0x3ff<<54|uint64(os.Getpid())<<32|uint64(uint32(start)))
	if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(words, start), 2097152+3072); err != nil {
		t.Fatal(err)
	}
}

// putWait writes how long launches of a job were held back.
func putWait(t *testing.T, path string, waited time.Duration) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(waited)), 2097152+960+32); err != nil {
		t.Fatal(err)
	}
}

func is(v *float64, want float64) bool { return v != nil && *v > want-0.01 && *v < want+0.01 }

func TestRatesOfTheLastSecond(t *testing.T) {
	n := newTestNode(t).start()
	uses := &fakeUses{}
	n.report.Samples = gputime.NewSampler(uses, func(time.Duration) {})
	n.want(n.job(7, 30), wire.Granted)
	putSlot(t, n.file(7, "cache"), 5<<30, 2e9)
	putOwner(t, n.file(7, "cache"))

	card := func() wire.JobCard {
		t.Helper()
		rep, err := n.ask(wire.Request{Op: wire.OpJobs})
		if err != nil || len(rep.Jobs) != 1 {
			t.Fatalf("%v, %d jobs", err, len(rep.Jobs))
		}
		return rep.Jobs[0].Cards[0]
	}
	begin := time.Now()
	c := card()
	if !is(c.GotPercent, 32) || !is(c.ThrottledPercent, 0) {
		t.Errorf("first answer: compute %v, wait %v; want 32 and 0", *c.GotPercent, *c.ThrottledPercent)
	}
	if took := time.Since(begin); took < 250*time.Millisecond {
		t.Errorf("answered after %s, before anything could be measured", took)
	}
	putWait(t, n.file(7, "cache"), 600*time.Millisecond)
	before := uses.asked.Load()
	if card(); uses.asked.Load() != before {
		t.Errorf("the driver was asked %d times within a second", uses.asked.Load())
	}
	time.Sleep(time.Second)
	if c = card(); c.ThrottledPercent == nil || *c.ThrottledPercent < 20 || *c.ThrottledPercent > 60 {
		t.Errorf("600 ms in a little more than 1 s: wait %v", c.ThrottledPercent)
	}
	rep, err := n.ask(wire.Request{Op: wire.OpStatus})
	if err != nil || rep.Status.Cards[0].Throttled != 1 || !is(rep.Status.Cards[0].ComputePercent, 32) || !is(rep.Status.Cards[1].ComputePercent, 0) {
		t.Errorf("%v, cards %+v; want one job of card 0 held back", err, rep.Status)
	}

	// A job's user can write any number.
	putWait(t, n.file(7, "cache"), 1<<62)
	time.Sleep(time.Second)
	if c = card(); c.ThrottledPercent == nil || *c.ThrottledPercent != 100*64 {
		t.Errorf("an absurd wait: got %v, want at most %d", c.ThrottledPercent, 100*64)
	}
	putWait(t, n.file(7, "cache"), 0)
	time.Sleep(time.Second)
	if c = card(); c.ThrottledPercent != nil {
		t.Errorf("a counter that fell: got %v, want not known", *c.ThrottledPercent)
	}
}

// Nobody charges a job that nothing need hold: its time is what the driver saw.
func TestTimeThatNobodyCharges(t *testing.T) {
	n := newTestNode(t).start()
	n.report.Samples = gputime.NewSampler(&fakeUses{}, func(time.Duration) {})
	n.want(n.job(7, 30), wire.Granted)
	putSlot(t, n.file(7, "cache"), 5<<30, 2e9)
	putOwner(t, n.file(7, "cache"))
	seconds := func() float64 {
		_, jobs := n.report.Snapshot()
		return *jobs[0].Cards[0].GPUSeconds
	}
	const span = 2500 * time.Millisecond
	now := time.Now()
	n.report.Count(t.Context(), now)
	n.report.Count(t.Context(), now.Add(span))
	if s := seconds(); s < 1.99 || s > 2.01 {
		t.Errorf("%.2f s, want the 2 s that were charged: more than was seen", s)
	}
	for i := range 4 {
		n.report.Count(t.Context(), now.Add(time.Duration(i+2)*span))
	}
	n.report.Count(t.Context(), now.Add(time.Hour)) // stopped meanwhile: 5 s count
	if s, want := seconds(), 0.32*(7*span).Seconds(); s < want-0.01 || s > want+0.01 {
		t.Errorf("%.2f s, want 32 %% of the time: %.2f", s, want)
	}
	again := n.job(7, 30) // requeued, and the Epilog was lost
	again.Restart = 1
	if n.want(again, wire.Granted); seconds() != 0 {
		t.Errorf("the next run begins with %.2f s", seconds())
	}
}
