// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
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

// together runs programs beside each other on a card of their own, in the card's time, and returns the
// steps of each in a second; slices of 0 are left alone.
func together(t *testing.T, programs []string, slices []uint64) (rates []float64) {
	t.Helper()
	_, state := newMachine(t, "one-card")
	args := []string{state, "5"}
	for i, p := range programs {
		args = append(append(args, fmt.Sprint(slices[i])), strings.Fields(p)...)
	}
	out, err := exec.Command(filepath.Join(bin, "simgpu", "bin", "rhythm"), args...).CombinedOutput()
	if err == nil {
		err = json.Unmarshal(out, &rates)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return rates
}

// What pairs of them get of what they do alone, against what the cards gave.
func TestPairsThatDoNotKeepTheirQueueFull(t *testing.T) {
	solo := map[string]float64{}
	for _, p := range []string{trainA, trainB, inferA, inferB} {
		solo[p] = together(t, []string{p}, []uint64{0})[0]
	}
	for _, c := range []struct {
		name      string
		programs  [2]string
		slices    [2]uint64
		want      [2]float64
		tolerance float64 // as a part of want
	}{
		{"inference and training", [2]string{inferA, trainA}, [2]uint64{}, [2]float64{0.62, 0.87}, 0.1},
		{"two trainings", [2]string{trainA, trainA}, [2]uint64{}, [2]float64{0.56, 0.56}, 0.1},
		{"inference and training, host B", [2]string{inferB, trainB}, [2]uint64{}, [2]float64{0.47, 0.76}, 0.1},
		{"slices of 6 and 14 ms", [2]string{inferB, trainB}, [2]uint64{6000, 14000}, [2]float64{0.11, 0.96}, 0.15},
		{"slices of 5 and 1 ms", [2]string{inferB, trainB}, [2]uint64{5000, 1000}, [2]float64{0.70, 0.61}, 0.15},
		{"slices of 5 and 0.2 ms", [2]string{inferB, trainB}, [2]uint64{5000, 200}, [2]float64{0.87, 0.24}, 0.15},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i, rate := range together(t, c.programs[:], c.slices[:]) {
				part := rate / solo[c.programs[i]]
				t.Logf("%.3f of solo, want %.2f", part, c.want[i])
				within(t, c.programs[i], part, (1-c.tolerance)*c.want[i], (1+c.tolerance)*c.want[i])
			}
		})
	}
}

// A change of a slice costs a card that works its time, and an idle card nothing.
func TestChangesOfSlicesCostTime(t *testing.T) {
	t.Parallel()
	m, state := newMachine(t, "one-card")
	lost := func(of *tenant) (ms, late float64) {
		before, waited, began := m.Status()[0], m.Late(of.pid()), time.Now()
		for i := range 250 {
			m.SetSlice(of.pid(), 4000+uint64(i%2))
			time.Sleep(time.Millisecond)
		}
		after := m.Status()[0]
		late = float64(m.Late(of.pid())-waited) / float64(time.Since(began))
		return float64((after.BusyNS-before.BusyNS)-(after.WorkNS-before.WorkNS)) / 1e6, min(1, late)
	}
	idle := startTenant(t, state, "--hold", "60")
	idle.next()
	ms, _ := lost(idle)
	within(t, "ms lost by an idle card", ms, 0, 0)
	worker := saturate(t, m, state, 1, "600", "200")[0] // the changes take long on a busy machine
	waitFor(t, "work", func() bool { return contexts(m, []*tenant{worker})[0].BusyNS > 500e6 })
	ms, late := lost(worker)
	within(t, "ms lost by 250 changes", ms, 90*(1-late), 101) // a change costs an idle card nothing
}
