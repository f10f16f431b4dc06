// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// meter has a process on some cards.
type meter struct{ used []gpu.UUID }

func (m meter) Processes(uuid gpu.UUID) ([]driver.Process, error) {
	if slices.Contains(m.used, uuid) {
		return []driver.Process{{PID: 7}}, nil
	}
	return nil, nil
}

func (m meter) MemoryUsed(gpu.UUID) (gpu.Bytes, error) { return 0, nil }

var nodeCards = []gpu.Card{
	{UUID: "A", Name: "H200", Healthy: true},
	{UUID: "B", Name: "H200", Healthy: true},
	{UUID: "C", Name: "L40", Healthy: true},
	{UUID: "D", Name: "A100", Healthy: true, MIG: true},
	{UUID: "E", Name: "T4"},
}

// learner counts what was measured.
type learner struct {
	asked  []gpu.UUID
	figure Figure
	err    error
}

func (l *learner) measure(_ context.Context, uuid gpu.UUID) (Figure, error) {
	l.asked = append(l.asked, uuid)
	return l.figure, l.err
}

var h200 = Figure{518 * gpu.MiB, 9 * gpu.MiB, true}

func openCosts(path, driver string) *Costs {
	return OpenCosts(path, driver, slog.New(slog.DiscardHandler))
}

// tryOnce lets Learn make its first try.
func tryOnce(t *testing.T, c *Costs, m CardMemory, l *learner) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.Learn(ctx, m, nodeCards, l.measure); close(done) }()
	select {
	case <-c.settled:
	case <-time.After(10 * time.Second):
		t.Fatal("no first try")
	}
	cancel()
	<-done
}

func TestEachModelIsMeasuredOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "context.json")
	c, l := openCosts(path, "580"), &learner{figure: h200}
	if c.Of("H200") != (Figure{}) {
		t.Error("a figure from nowhere")
	}
	// Learn ends by itself: nothing is missing. The idle card is taken.
	c.Learn(t.Context(), meter{used: []gpu.UUID{"A"}}, nodeCards, l.measure)
	if !slices.Equal(l.asked, []gpu.UUID{"B", "C"}) || c.Of("H200") != h200 || c.Of("H200").Total() != 527*gpu.MiB {
		t.Errorf("asked %v, figure %+v", l.asked, c.Of("H200"))
	}
	again := openCosts(path, "580")
	again.Learn(t.Context(), meter{}, nodeCards, l.measure)
	if len(l.asked) != 2 || again.Of("L40") != h200 {
		t.Errorf("asked %v after a restart, figure %+v", l.asked, again.Of("L40"))
	}
	newer := openCosts(path, "590")
	if newer.Of("H200") != (Figure{}) {
		t.Error("the figure of another driver counts")
	}
	newer.Learn(t.Context(), meter{}, nodeCards, l.measure)
	if len(l.asked) != 4 {
		t.Errorf("asked %v after a new driver", l.asked)
	}
}

func TestACardInUseIsLeftAloneOnceSomethingIsKnown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "context.json")
	busy := meter{used: []gpu.UUID{"A", "B", "C"}}
	rough := Figure{Context: 518 * gpu.MiB}
	l := &learner{figure: rough}
	c := openCosts(path, "580")
	tryOnce(t, c, busy, l) // nothing is known: measured all the same
	if len(l.asked) != 2 || c.Of("H200") != rough {
		t.Errorf("asked %v, figure %+v", l.asked, c.Of("H200"))
	}
	tryOnce(t, openCosts(path, "580"), busy, l)
	if len(l.asked) != 2 {
		t.Errorf("asked %v of a card in use, with a figure known", l.asked)
	}
	l.figure = h200
	idle := openCosts(path, "580")
	tryOnce(t, idle, meter{}, l)
	if len(l.asked) != 4 || idle.Of("H200") != h200 {
		t.Errorf("asked %v of idle cards, figure %+v", l.asked, idle.Of("H200"))
	}
}

func TestAFailureIsZero(t *testing.T) {
	path := filepath.Join(t.TempDir(), "context.json")
	c := openCosts(path, "580")
	tryOnce(t, c, meter{}, &learner{err: errors.New("no context")})
	if c.Of("H200") != (Figure{}) {
		t.Errorf("figure %+v", c.Of("H200"))
	}
	if err := os.WriteFile(path, []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := openCosts(path, "580"); c.Of("H200") != (Figure{}) {
		t.Errorf("figure %+v from a torn file", c.Of("H200"))
	}
}

func TestAwait(t *testing.T) {
	waits := func(c *Costs) bool {
		done := make(chan struct{})
		go func() { c.Await(t.Context()); close(done) }()
		select {
		case <-done:
			return false
		case <-time.After(50 * time.Millisecond):
			return true
		}
	}
	c := openCosts(filepath.Join(t.TempDir(), "context.json"), "580")
	if !waits(c) {
		t.Error("a grant did not wait for the first try")
	}
	late := openCosts(filepath.Join(t.TempDir(), "context.json"), "580")
	late.until = time.Now().Add(-time.Second)
	if waits(late) {
		t.Error("a grant waits long after the start")
	}
	learned := openCosts(filepath.Join(t.TempDir(), "context.json"), "580")
	learned.Learn(t.Context(), meter{}, nodeCards, (&learner{figure: h200}).measure)
	if waits(learned) {
		t.Error("a grant waits though all is known")
	}
}
