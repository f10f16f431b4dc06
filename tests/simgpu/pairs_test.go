// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Programs that do not keep their queue full, by the measures of rhythm.c: kernels of a step,
// their length, the host's time for a launch and for the rest of a step (all us), and at which
// step they wait. Fitted to a training that waits at every fourth step and to inference of one
// sequence, which waits at each, both in PyTorch on two hosts with an H100.
const (
	trainA = "330 40.7 46 1850 4"
	trainB = "330 40.7 38.7 1850 4"
	inferA = "90 2.2 18.6 60 1"
	inferB = "90 2.2 13.1 60 1"
)

// A beat is what a run of rhythm.c says.
type beat struct {
	Rate  float64 // steps a second
	Still float64 // part of the time in which its host had no processor, though it wanted one
}

// together runs programs beside each other on a card of their own; slices of 0 are left alone.
func together(t *testing.T, programs []string, slices []uint64) []beat {
	t.Helper()
	m, state := newMachine(t, "one-card")
	at := fmt.Sprintf("%.3f", float64(time.Now().UnixMilli())/1000+0.5)
	cmds, beats, errs := make([]*exec.Cmd, len(programs)), make([]beat, len(programs)), make([]error, len(programs))
	var running sync.WaitGroup
	for i, p := range programs {
		cmds[i] = exec.CommandContext(t.Context(), filepath.Join(bin, "simgpu", "bin", "rhythm"), append(strings.Fields(p), at, "1.7")...)
		cmds[i].Env = append(os.Environ(), "SIMGPU_STATE="+state)
		cmds[i].Stderr = os.Stderr
		out, err := cmds[i].StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
		running.Add(1)
		go func() {
			defer running.Done()
			errs[i] = json.NewDecoder(out).Decode(&beats[i])
			if err := cmds[i].Wait(); err != nil {
				errs[i] = err
			}
		}()
	}
	for i, us := range slices {
		if us != 0 {
			waitFor(t, "a context", func() bool { return m.SetSlice(cmds[i].Process.Pid, us) == 1 })
		}
	}
	running.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("%s: %v", programs[i], err)
		}
	}
	return beats
}

// undisturbed is together, again until each host had its processor when it wanted one: hosts
// spin, and a run without that proves nothing.
func undisturbed(t *testing.T, programs []string, slices []uint64, good func([]beat) bool) []beat {
	t.Helper()
	var valid []beat
	for range 8 {
		beats, still := together(t, programs, slices), 0.0
		for _, b := range beats {
			still = max(still, b.Still)
		}
		if still > 0.02 {
			t.Logf("%q: a host stood still for %.0f %% of the time", programs, 100*still)
			time.Sleep(time.Second)
			continue
		}
		if valid = beats; good(beats) {
			return beats
		}
		t.Logf("%q: %v; again", programs, beats)
	}
	if valid == nil {
		t.Skip("this machine is too busy: no run in which each host had its processor")
	}
	return valid
}

// What pairs of them get of what they do alone, against what the cards gave.
func TestPairsThatDoNotKeepTheirQueueFull(t *testing.T) {
	solo := map[string]float64{}
	for _, p := range []string{trainA, trainB, inferA, inferB} {
		solo[p] = undisturbed(t, []string{p}, nil, func([]beat) bool { return true })[0].Rate
	}
	for _, c := range []struct {
		name      string
		programs  [2]string
		slices    []uint64
		want      [2]float64
		tolerance float64 // as a part of want
	}{
		{"inference and training", [2]string{inferA, trainA}, nil, [2]float64{0.62, 0.87}, 0.1},
		{"two trainings", [2]string{trainA, trainA}, nil, [2]float64{0.56, 0.56}, 0.1},
		{"inference and training, host B", [2]string{inferB, trainB}, nil, [2]float64{0.47, 0.76}, 0.1},
		{"slices of 6 and 14 ms", [2]string{inferB, trainB}, []uint64{6000, 14000}, [2]float64{0.11, 0.96}, 0.15},
		{"slices of 5 and 1 ms", [2]string{inferB, trainB}, []uint64{5000, 1000}, [2]float64{0.70, 0.61}, 0.15},
		{"slices of 5 and 0.2 ms", [2]string{inferB, trainB}, []uint64{5000, 200}, [2]float64{0.87, 0.24}, 0.15},
	} {
		t.Run(c.name, func(t *testing.T) {
			low, high := 1-c.tolerance, 1+c.tolerance
			of := func(b []beat, i int) float64 { return b[i].Rate / solo[c.programs[i]] }
			beats := undisturbed(t, c.programs[:], c.slices, func(b []beat) bool {
				for i, want := range c.want {
					if of(b, i) < low*want || of(b, i) > high*want {
						return false
					}
				}
				return true
			})
			t.Logf("%.3f and %.3f of solo, want %.2f and %.2f", of(beats, 0), of(beats, 1), c.want[0], c.want[1])
			for i, want := range c.want {
				within(t, c.programs[i], of(beats, i), low*want, high*want)
			}
		})
	}
}

// A change of a slice costs a card that works its time, and an idle card nothing.
func TestChangesOfSlicesCostTime(t *testing.T) {
	t.Parallel()
	m, state := newMachine(t, "one-card")
	lost := func(of *tenant) float64 {
		before := m.Status()[0]
		for i := range 250 {
			m.SetSlice(of.pid(), 4000+uint64(i%2))
			time.Sleep(time.Millisecond)
		}
		after := m.Status()[0]
		return float64((after.BusyNS-before.BusyNS)-(after.WorkNS-before.WorkNS)) / 1e6
	}
	idle := startTenant(t, state, "--hold", "60")
	idle.next()
	within(t, "ms lost by an idle card", lost(idle), 0, 0)
	worker := saturate(t, m, state, 1, "3", "200")[0]
	waitFor(t, "work", func() bool { return contexts(m, []*tenant{worker})[0].BusyNS > 500e6 })
	within(t, "ms lost by 250 changes", lost(worker), 90, 101)
}
