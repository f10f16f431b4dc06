// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"path/filepath"
	"testing"
	"time"
)

func TestOneTenantAloneGetsTheWholeCard(t *testing.T) {
	t.Parallel()
	m, state := newMachine(t, "one-card")
	did, late := fractions(saturate(t, m, state, 1, "1", "200"))
	bounded(t, did, late, [2]float64{0.985, 1.005})
}

// Without a limiter, whatever shares were meant, each of two gets 45 % (h200.md).
func TestTwoTenantsGetEqualSlices(t *testing.T) {
	for _, us := range []string{"50", "1000", "5000"} {
		t.Run(us+" us kernels", func(t *testing.T) {
			t.Parallel()
			m, state := newMachine(t, "one-card")
			did, late := fractions(saturate(t, m, state, 2, "2", us))
			bounded(t, did, late, [2]float64{0.44, 0.475})
		})
	}
}

// The table of time slices measured on an H200: 28.5 / 66.7 and 9.6 / 28.6 / 57.9.
func TestSlicesDivideTheCardByWeight(t *testing.T) {
	for _, c := range []struct {
		name   string
		slices []uint64
		want   [][2]float64
	}{
		{"3000 and 7000 us", []uint64{3000, 7000}, [][2]float64{{0.275, 0.297}, {0.65, 0.69}}},
		{"1000 and 4000 us", []uint64{1000, 4000}, [][2]float64{{0.17, 0.195}, {0.71, 0.755}}},
		{"2000, 6000 and 12000 us", []uint64{2000, 6000, 12000}, [][2]float64{{0.088, 0.106}, {0.275, 0.30}, {0.56, 0.60}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, state := newMachine(t, "one-card")
			tenants := saturate(t, m, state, len(c.slices), "2", "200")
			for i, us := range c.slices {
				if n := m.SetSlice(tenants[i].pid(), us); n != 1 {
					t.Fatalf("SetSlice changed %d contexts", n)
				}
			}
			did, late := fractions(tenants)
			bounded(t, did, late, c.want...)
		})
	}
}

// A card that ignores slices gives each the same, whatever was set, and is told.
func TestACardCanIgnoreSlices(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	if err := Init(path, Config{Version: 1, Count: 1, Model: CardConfig{IgnoresSlices: true}}); err != nil {
		t.Fatal(err)
	}
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	tenants := saturate(t, m, path, 2, "2", "200")
	slices := []uint64{2000, 6000}
	for i, us := range slices {
		m.SetSlice(tenants[i].pid(), us)
	}
	for i, c := range contexts(m, tenants) {
		if c.SliceUS != slices[i] {
			t.Errorf("tenant %d: the slice is told as %d us, want %d", i+1, c.SliceUS, slices[i])
		}
	}
	did, late := fractions(tenants)
	bounded(t, did, late, [2]float64{0.44, 0.475})
}

// Every way to launch is work of the same kind to the card.
func TestLaunchWaysAreTheSameWork(t *testing.T) {
	for _, way := range []string{"kernel", "ex", "coop", "graph"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			m, state := newMachine(t, "one-card")
			did, late := fractions(saturate(t, m, state, 1, "1", "200", "--launch", way, "--via", "getproc", "--streams", "3"))
			bounded(t, did, late, [2]float64{0.97, 1.01})
		})
	}
}

func TestAnIdleTenantTakesNoTime(t *testing.T) {
	t.Parallel()
	m, state := newMachine(t, "one-card")
	idle := startTenant(t, state, "--alloc", "1G", "--hold", "60")
	idle.next()
	did, late := fractions(saturate(t, m, state, 1, "1", "200"))
	bounded(t, did, late, [2]float64{0.95, 1.005}) // an idle tenant that took time would take half
}

// busyShares measures, in the card's own accounts, what each tenant gets now, and how late it is.
func busyShares(m *Machine, tenants []*tenant, d time.Duration) (had, late []float64) {
	for _, x := range tenants {
		late = append(late, -m.Late(x.pid()).Seconds())
	}
	from, start := contexts(m, tenants), time.Now()
	time.Sleep(d)
	to, took := contexts(m, tenants), time.Since(start)
	for i, x := range tenants {
		had = append(had, float64(to[i].BusyNS-from[i].BusyNS)/float64(took.Nanoseconds()))
		late[i] = min(1, (late[i]+m.Late(x.pid()).Seconds())/took.Seconds())
	}
	return had, late
}

func TestAKilledTenantLosesMemoryAndTurn(t *testing.T) {
	t.Parallel()
	m, state := newMachine(t, "one-card")
	tenants := saturate(t, m, state, 2, "30", "200", "--alloc", "10G")
	waitFor(t, "both busy", func() bool {
		c := contexts(m, tenants)
		return c != nil && c[0].BusyNS > 5e8 && c[1].BusyNS > 5e8
	})
	before := m.Status()[0].Used
	had, late := busyShares(m, tenants, time.Second)
	bounded(t, had, late, [2]float64{0.43, 0.48})
	if err := tenants[0].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = tenants[0].cmd.Wait() // it was killed
	if got := before - m.Status()[0].Used; got != 10<<30+500<<20 {
		t.Errorf("memory freed by the kill: got %d, want 10 GiB and a context", got)
	}
	if contexts(m, tenants[:1]) != nil {
		t.Error("the killed tenant still has a context")
	}
	had, late = busyShares(m, tenants[1:], time.Second)
	bounded(t, had, late, [2]float64{0.96, 1.03})
}

// A holder of the model's lock is killed again and again; the machine goes on.
func TestKillsLeaveTheMachineWhole(t *testing.T) {
	t.Parallel()
	m, state := newMachine(t, "one-card")
	for range 15 {
		x := startTenant(t, state, "--kernel-us", "20", "--inflight", "64", "--saturate", "30")
		waitFor(t, "work", func() bool {
			c := contexts(m, []*tenant{x})
			return c != nil && c[0].BusyNS > 30e6
		})
		if err := x.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = x.cmd.Wait() // it was killed
	}
	s := m.Status()[0]
	if s.Used != 0 || len(s.Contexts) != 0 {
		t.Errorf("left behind: %d bytes, %d contexts", s.Used, len(s.Contexts))
	}
	did, late := fractions(saturate(t, m, state, 1, "1", "200"))
	bounded(t, did, late, [2]float64{0.98, 1.005})
}

// A saturating process must leave the processors to others.
func TestSaturatingCostsLittleProcessorTime(t *testing.T) {
	t.Parallel()
	m, state := newMachine(t, "one-card")
	x := saturate(t, m, state, 1, "2", "200")[0]
	x.next()
	if err := x.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if used := x.cmd.ProcessState.UserTime() + x.cmd.ProcessState.SystemTime(); used > 1500*time.Millisecond {
		t.Errorf("2 s of work and the calibration took %v of processor time", used)
	}
}
