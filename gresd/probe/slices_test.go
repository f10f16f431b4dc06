// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
)

func TestJudge(t *testing.T) {
	const ms = time.Millisecond
	had := func(d time.Duration, turns uint64) gputime.Use { return gputime.Use{Had: d, Turns: turns} }
	for name, c := range map[string]struct {
		short, long gputime.Use
		others      time.Duration
		want        Verdict
		err         error
	}{
		"as the simulated card obeys":        {short: had(25*ms, 12), long: had(73*ms, 12), want: Obeyed},
		"one turn more of the short one":     {short: had(27*ms, 13), long: had(70*ms, 12), want: Obeyed},
		"one turn more of the long one":      {short: had(22*ms, 11), long: had(74*ms, 12), want: Obeyed},
		"both the same":                      {short: had(49*ms, 24), long: had(49*ms, 24), want: Ignored},
		"the same, and long turns":           {short: had(60*ms, 3), long: had(40*ms, 3), want: Ignored},
		"the other way round":                {short: had(73*ms, 12), long: had(25*ms, 12), want: Ignored},
		"much more than was set":             {short: had(10*ms, 5), long: had(88*ms, 5), want: Ignored},
		"a little more, which is no obeying": {short: had(39*ms, 12), long: had(59*ms, 12), want: Ignored},
		"the card was idle":                  {short: had(15*ms, 12), long: had(45*ms, 12), err: errTooLittle},
		"one had no turn":                    {short: had(0, 0), long: had(100*ms, 1), err: errTooLittle},
		"two turns":                          {short: had(25*ms, 2), long: had(73*ms, 2), err: errTooLittle},
		"somebody else":                      {short: had(22*ms, 11), long: had(66*ms, 11), others: 8 * ms, err: errInUse},
		"nothing":                            {err: errTooLittle},
	} {
		got, err := judge(100*ms, c.short, c.long, c.others)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: got %q, %v, want %q, %v", name, got, err, c.want, c.err)
		}
	}
}

// everybody is a meter by which each process has just had the card.
type everybody struct{ pids func() []uint32 }

func (everybody) Refused(gpu.UUID) bool { return false }

func (e everybody) OnCard(gpu.UUID) (gputime.Account, bool) {
	a := gputime.Account{Uses: map[uint32]gputime.Use{}, At: time.Second}
	for _, pid := range e.pids() {
		a.Uses[pid] = gputime.Use{Had: time.Millisecond, Turns: 1}
	}
	return a, true
}

// The driver works on the card while it makes a context, which has no slice before it is made.
func TestSlicesAreWaitedFor(t *testing.T) {
	tester := NewSliceTester(SliceTestParts{Child: []string{"/bin/sleep", "60"}, Jobs: func() map[string]int { return nil }, Path: filepath.Join(t.TempDir(), "slices.json"), Log: slog.New(slog.DiscardHandler)})
	workers := make([]*worker, 2)
	for i := range workers {
		w, err := tester.startWorker(filepath.Join(t.TempDir(), "worker"), "GPU-a", shortUS)
		if err != nil {
			t.Fatal(err)
		}
		defer w.end()
		workers[i] = w
	}
	tester.Meter = everybody{func() []uint32 { return []uint32{workers[0].pid(), workers[1].pid()} }}
	late := errors.New("late")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, late)
	defer cancel()
	if _, err := tester.compare(ctx, "GPU-a", workers[0], workers[1]); !errors.Is(err, late) {
		t.Errorf("got %v, want that it waits until it is late", err)
	}
	_ = workers[0].cmd.Process.Kill()
	<-workers[0].ended
	if _, err := tester.compare(t.Context(), "GPU-a", workers[0], workers[1]); err == nil || !strings.Contains(err.Error(), "a process of the test ended") {
		t.Errorf("after the end of one: got %v, want that it is said", err)
	}
}

// A gresd that is started again knows what the last one found out, until there is another driver.
func TestVerdictsAreRemembered(t *testing.T) {
	const card = gpu.UUID("GPU-a")
	path := filepath.Join(t.TempDir(), "slices.json")
	open := func(driver string) *SliceTester {
		return NewSliceTester(SliceTestParts{Path: path, Driver: driver, Log: slog.New(slog.DiscardHandler)})
	}
	first := open("580")
	first.note(card, Unknown, errInUse)
	if v, why := first.Of(card); v != Unknown || why != errInUse.Error() {
		t.Errorf("before the test: %q, %q", v, why)
	}
	first.note(card, Ignored, nil)
	for driver, want := range map[string]Verdict{"580": Ignored, "590": Unknown} {
		again := open(driver)
		again.note(card, Unknown, errInUse) // jobs run
		if v, _ := again.Of(card); v != want {
			t.Errorf("with driver %s: %q, want %q", driver, v, want)
		}
	}
}

// A driver that refuses slices in gresd's own test may refuse slices of jobs.
func TestARefusalEndsAnEarlierVerdict(t *testing.T) {
	const card = gpu.UUID("GPU-a")
	path := filepath.Join(t.TempDir(), "slices.json")
	open := func() *SliceTester {
		return NewSliceTester(SliceTestParts{Path: path, Driver: "580", Log: slog.New(slog.DiscardHandler)})
	}
	open().note(card, Obeyed, nil)
	again := open()
	again.note(card, Unknown, errors.Join(errRefused, nil))
	for _, tester := range []*SliceTester{again, open()} {
		if v, _ := tester.Of(card); v != Unknown {
			t.Errorf("got %q, want it unknown", v)
		}
	}
}

func TestAFileThatMakesNoSense(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slices.json")
	for text, want := range map[string]Verdict{
		"": Unknown, "null": Unknown, "[]": Unknown, `{"580/GPU-a":1}`: Unknown, `{"580/GPU-a":"perhaps"}`: Unknown, `{"580/GPU-a":"ignored"}`: Ignored,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tester := NewSliceTester(SliceTestParts{Path: path, Driver: "580", Log: slog.New(slog.DiscardHandler)})
		if v, _ := tester.Of("GPU-a"); v != want {
			t.Errorf("%s: %q, want %q", text, v, want)
		}
		tester.note("GPU-b", Obeyed, nil)
		if v, _ := tester.Of("GPU-b"); v != Obeyed {
			t.Errorf("%s: what is found out afterwards is %q", text, v)
		}
	}
}
