// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
)

// node is a machine with one card, the grants of its jobs and their arbiter,
// without Slurm.
type node struct {
	t      *testing.T
	m      *Machine
	state  string
	lib    string
	grants *grant.Store
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, lib: filepath.Join(bin, "lib", "libvgpu.so")}
	n.m, n.state = newMachine(t, "one-card")
	dir := t.TempDir()
	var err error
	n.grants, err = grant.NewStore(grant.Layout{
		RunDir: dir, Jobs: filepath.Join(dir, "jobs"), Preload: filepath.Join(dir, "preload"), Library: n.lib,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.grants.Close)
	judge := arbiter.NewRunner(n.grants, arbiter.Params{Period: 20000, MaxPeriod: 50000, MinSlice: 500},
		50*time.Millisecond, slog.New(slog.DiscardHandler))
	n.grants.OnChange(judge.Wake)
	done := make(chan struct{})
	go func() { judge.Run(t.Context()); close(done) }()
	t.Cleanup(func() { <-done })
	return n
}

// job grants a share of the card.
func (n *node) job(id uint32, cores gpu.Share, mode gpu.Mode, priority gpu.Priority) {
	n.t.Helper()
	card := n.m.Status()[0]
	rec := ledger.Record{JobID: id, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), State: ledger.Granted, Mode: mode, Priority: priority, Created: time.Now()}
	rec.Placement.Cards = []place.CardShare{{UUID: gpu.UUID(card.UUID), Share: cores, Cores: cores, Memory: 8 << 30}}
	spec := grant.SpecOf(rec)
	spec.Cards[0].MemOverhead = 500 << 20
	if err := n.grants.Create(spec, nil); err != nil {
		n.t.Fatal(err)
	}
}

// worker starts a process of a job.
func (n *node) worker(job uint32, args ...string) *tenant {
	dir := n.grants.Dir(job)
	return startTenantWith(n.t, n.state, []string{
		"LD_PRELOAD=" + n.lib, "VGPU_GRANT=" + dir + "/grant", "VGPU_CACHE=" + dir + "/cache",
	}, args...)
}

// work lets jobs 1, 2, … with these shares keep the card busy over the same
// seconds and returns what [fractions] does.
func (n *node) work(shares []gpu.Share, kernels []string, seconds int) (did, late []float64) {
	n.t.Helper()
	at := fmt.Sprintf("%.3f", float64(time.Now().UnixMilli())/1000+1+float64(len(shares)))
	var tenants []*tenant
	for i := range shares {
		// A worker measures its kernel first: one after the other, on a whole card.
		n.job(uint32(i+1), 100, gpu.Hard, gpu.Normal)
		tenants = append(tenants, n.worker(uint32(i+1), "--kernel-us", kernels[i%len(kernels)], "--start-at", at, "--saturate", fmt.Sprint(seconds)))
		time.Sleep(time.Second)
	}
	for i, s := range shares {
		n.grants.SetCores(uint32(i+1), s)
	}
	return fractions(tenants)
}

// If slices are refused, exclusive windows give each job its share all the same. All jobs lose alike
// to hand-overs. Six seconds on two
// processors scatter by two to three points: how well it is kept, tests/bench says.
func TestWindowsKeepShares(t *testing.T) {
	for _, c := range []struct {
		shares    []gpu.Share
		kernels   []string
		tolerance float64
	}{
		{[]gpu.Share{30, 70}, []string{"20"}, 0.04},
		{[]gpu.Share{50, 50}, []string{"1000"}, 0.04},
		{[]gpu.Share{30, 70}, []string{"50000"}, 0.05}, // a kernel is as long as a period
		{[]gpu.Share{30, 70}, []string{"50", "20000"}, 0.04},
		{[]gpu.Share{10, 30, 60}, []string{"200"}, 0.04},
		{[]gpu.Share{25, 25, 25, 25}, []string{"5000"}, 0.04},
	} {
		t.Run(fmt.Sprintf("%v at %v us", c.shares, c.kernels), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if err := n.m.RefuseSlices(Fault{Count: -1}); err != nil {
				t.Fatal(err)
			}
			did, late := n.work(c.shares, c.kernels, 6)
			checkShares(t, did, late, c.shares, c.tolerance)
		})
	}
}

// checkShares fails unless the work is divided by shares within the tolerance, and
// most of the card is used.
func checkShares(t *testing.T, did, late []float64, shares []gpu.Share, tolerance float64) {
	t.Helper()
	sum, lost, want := 0.0, 0.0, make([]float64, len(did))
	for i, f := range did {
		want[i] = float64(shares[i]) / 100
		sum += f
		lost += want[i] * late[i]
	}
	t.Logf("%.3f of solo work, in all %.3f; without a processor for %.3f of the time", did, sum, late)
	within(t, "all", sum, 0.88*(1-lost), 1.01)
	for i, f := range did {
		if low, high := processor.Bounds(i, want[i]-tolerance, want[i]+tolerance, want, late); f/sum < low || f/sum > high {
			t.Errorf("job %d: got %.3f of all work, want %.2f +- %.2f", i+1, f/sum, want[i], tolerance)
		}
	}
}

func TestEightJobsHaveWindows(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if err := n.m.RefuseSlices(Fault{Count: -1}); err != nil {
		t.Fatal(err)
	}
	shares := []gpu.Share{13, 13, 12, 12, 13, 13, 12, 12}
	at := fmt.Sprintf("%.3f", float64(time.Now().UnixMilli())/1000+4)
	for i := range shares {
		n.job(uint32(i+1), shares[i], gpu.Soft, gpu.Normal)
		n.worker(uint32(i+1), "--kernel-us", "1000", "--start-at", at, "--saturate", "30")
	}
	waitFor(t, "windows of all", func() bool {
		for i := range shares {
			s := n.grants.Schedule(uint32(i+1), 0)
			if s.Gate != libvgpu.GateWindow || s.Others != 7 || s.SliceUS != 0 {
				return false
			}
		}
		return true
	})
}
