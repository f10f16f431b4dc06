// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

const (
	measureFor = 100 * time.Millisecond // what is judged
	lookEvery  = 5 * time.Millisecond   // between two looks at the records
	// firstTestRetry is the time between two tests. After a test that fails for another reason
	// than a card in use, it doubles, up to lastRetry.
	firstTestRetry = 10 * time.Second
)

// CardTimes reports how long processes had a card.
type CardTimes interface {
	OnCard(gpu.UUID) (gputime.Account, bool)
	Refused(gpu.UUID) bool
}

// SliceTestParts are the parts of a [SliceTester]. All must be set.
type SliceTestParts struct {
	Off       func() string // why nothing is tested; "": it is
	Cards     func() []gpu.Card
	Jobs      func() map[string]int // on each card, by UUID
	Processes func(gpu.UUID) ([]driver.Process, error)
	Meter     CardTimes
	Library   string   // libvgpu.so
	Child     []string // command line of a program that calls [Work]
	Dir       string   // that a test makes, for root alone, and removes
	Path      string   // of the file that keeps the verdicts
	Driver    string   // its version: another version needs new verdicts
	Log       *slog.Logger
}

// SliceTester finds out whether cards obey time slices. It is safe for concurrent use.
//
// The driver reports a slice as set even if the card ignores it. So two child processes keep an idle
// card busy for a tenth of a second, with slices in the ratio 1 to 3. libvgpu sets these slices as it
// does for jobs. The card's records of its context switches show the time of each process. If the card
// ignores slices, its jobs take turns.
//
// A card is tested once, while it has no jobs. If the test is not possible, nothing changes.
type SliceTester struct {
	SliceTestParts

	verdicts store[Verdict]

	mu  sync.Mutex
	why map[gpu.UUID]string // the card was not tested
}

// NewSliceTester returns a tester with the verdicts of an earlier gresd.
func NewSliceTester(parts SliceTestParts) *SliceTester {
	t := &SliceTester{SliceTestParts: parts, why: map[gpu.UUID]string{}}
	t.verdicts.open(parts.Path, parts.Driver, func(v Verdict) bool { return v == Obeyed || v == Ignored }, parts.Log)
	return t
}

// Of returns the verdict on a card. why is set if this gresd has not tested the card.
func (t *SliceTester) Of(card gpu.UUID) (v Verdict, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, _ = t.verdicts.get(string(card))
	return v, t.why[card]
}

// Run tests every card once, and those that come later. It returns when ctx is done.
func (t *SliceTester) Run(ctx context.Context) {
	tested := map[gpu.UUID]bool{}
	for pause := firstTestRetry; ctx.Err() == nil; {
		failed, here := false, map[gpu.UUID]bool{}
		for _, card := range t.Cards() {
			// One that was away may have other firmware.
			here[card.UUID] = tested[card.UUID]
			if !card.Healthy || card.MIG || here[card.UUID] || ctx.Err() != nil {
				continue
			}
			v, err := t.test(ctx, card.UUID)
			t.note(card.UUID, v, err)
			here[card.UUID] = err == nil
			failed = failed || err != nil && !errors.Is(err, errInUse)
		}
		tested = here
		wakeup.Wait(ctx, pause)
		if failed {
			pause = min(2*pause, lastRetry)
		} else {
			pause = firstTestRetry
		}
	}
}

// note saves and logs the result of a test. A failed test keeps an earlier verdict, unless the driver
// refuses slices.
func (t *SliceTester) note(card gpu.UUID, v Verdict, err error) {
	t.mu.Lock()
	delete(t.why, card)
	if err != nil {
		t.why[card] = err.Error()
	}
	t.mu.Unlock()
	result := &v
	switch {
	case err != nil:
		t.Log.Debug("whether a card obeys time slices is not known", "gpu_uuid", card, "error", err)
		if !errors.Is(err, errRefused) {
			return
		}
		result = nil
	case v == Ignored:
		t.Log.Warn("a card does not obey time slices: its jobs take turns", "gpu_uuid", card)
	default:
		t.Log.Info("a card obeys time slices", "gpu_uuid", card)
	}
	if err := t.verdicts.set(string(card), result); err != nil {
		t.Log.Debug("whether cards obey time slices is not remembered", "error", err)
	}
}

// test lets two processes work on a card and judges what they had.
func (t *SliceTester) test(ctx context.Context, card gpu.UUID) (v Verdict, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, childTimeout, errors.New("the processes of the test did not get their slices, or its records did not show them, in time"))
	defer cancel()
	if err := t.idle(card); err != nil {
		return Unknown, err
	}
	if err := os.RemoveAll(t.Dir); err != nil { // of a gresd that was killed
		return Unknown, err
	}
	if err := os.Mkdir(t.Dir, 0o700); err != nil {
		return Unknown, err
	}
	defer os.RemoveAll(t.Dir)
	short, err := t.startWorker(filepath.Join(t.Dir, "short"), card, shortUS)
	if err != nil {
		return Unknown, err
	}
	defer short.end()
	long, err := t.startWorker(filepath.Join(t.Dir, "long"), card, longUS)
	if err != nil {
		return Unknown, err
	}
	defer long.end()
	defer short.stop()
	if v, err = t.compare(ctx, card, short, long); err == nil && v == Ignored {
		v, err = t.compare(ctx, card, short, long) // what takes slices from jobs must be seen twice
	}
	return v, err
}

// idle says why a card cannot be tested now.
func (t *SliceTester) idle(card gpu.UUID) error {
	if off := t.Off(); off != "" {
		return errors.New(off)
	}
	if t.Jobs()[string(card)] > 0 {
		return fmt.Errorf("%w: by jobs", errInUse)
	}
	if t.Meter.Refused(card) {
		return errNoRecords
	}
	processes, err := t.Processes(card)
	if err == nil && len(processes) > 0 {
		err = fmt.Errorf("%w: by a process", errInUse) // whose is not for everybody to know
	}
	return err
}

var errNoRecords = errors.New("its records of context switches cannot be read")

// compare judges what two workers have of a card.
func (t *SliceTester) compare(ctx context.Context, card gpu.UUID, short, long *worker) (Verdict, error) {
	before, err := t.account(ctx, card, short, long, func(a gputime.Account) bool {
		return a.Uses[short.pid()].Turns > 0 && a.Uses[long.pid()].Turns > 0
	})
	if err != nil {
		return Unknown, err
	}
	after, err := t.account(ctx, card, short, long, func(a gputime.Account) bool { return a.At >= before.At+measureFor })
	if err != nil {
		return Unknown, err
	}
	had := map[uint32]gputime.Use{}
	others := time.Duration(0)
	for pid, use := range after.Uses {
		had[pid] = use.Since(before.Uses[pid])
		others += had[pid].Had
	}
	s, l := had[short.pid()], had[long.pid()]
	others -= s.Had + l.Had
	t.Log.Debug("what a card made of time slices", "gpu_uuid", card, "of", after.At-before.At, "short", s.Had, "long", l.Had, "others", others)
	return judge(after.At-before.At, s, l, others)
}

// account waits until both workers have their slices, and for an account of the card that will do.
func (t *SliceTester) account(ctx context.Context, card gpu.UUID, short, long *worker, ok func(gputime.Account) bool) (gputime.Account, error) {
	for {
		s, shortErr := short.hasSlice()
		l, longErr := long.hasSlice()
		a, known := t.Meter.OnCard(card)
		err := errors.Join(shortErr, longErr)
		switch {
		case err != nil:
		case t.Jobs()[string(card)] > 0:
			err = fmt.Errorf("%w: a job has come", errInUse)
		case s && l && known && ok(a):
			return a, nil
		case t.Meter.Refused(card):
			err = errNoRecords
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		}
		if err != nil {
			return gputime.Account{}, err
		}
		time.Sleep(lookEvery)
	}
}
