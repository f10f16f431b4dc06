// SPDX-License-Identifier: Apache-2.0

// Package slicetest finds out whether cards obey time slices.
//
// What the driver answers when it is asked for a slice is its own note of what was set, and no
// word of the card. So two processes of gresd's own keep an idle card busy for a tenth of a
// second, with slices of 1 to 3 that libvgpu sets as it does for jobs, and the card's records of
// its context switches tell what each had. Jobs of a card that ignores slices take turns.
//
// A card is tested once, while it has no jobs. Where that cannot be done, nothing changes.
package slicetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ctxswitch"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/inventory"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

const (
	measureFor = 100 * time.Millisecond // what is judged
	lookEvery  = 5 * time.Millisecond   // between two looks at the records
	testFor    = 10 * time.Second       // at most, of which most is for the contexts
	// A card in use is looked at again after firstRetry, which grows to lastRetry where tests
	// fail for another reason.
	firstRetry, lastRetry = 10 * time.Second, time.Hour
)

// Meter tells how long processes had a card.
type Meter interface {
	OnCard(gpu.UUID) (ctxswitch.Account, bool)
	Refused(gpu.UUID) bool
}

// Parts are what a tester is made of. All must be set.
type Parts struct {
	Off       func() string // why nothing is tested; "": it is
	Cards     func() []gpu.Card
	Jobs      func() map[string]int // on each card, by UUID
	Processes func(gpu.UUID) ([]inventory.Process, error)
	Meter     Meter
	Library   string   // libvgpu.so
	Child     []string // command line of a program that calls [libcuda.Work]
	Dir       string   // that a test makes, for root alone, and removes
	Path      string   // of the file that keeps the verdicts
	Driver    string   // its version: they hold for no other
	Log       *slog.Logger
}

// Tester tests cards. It is safe for concurrent use.
type Tester struct {
	Parts

	mu       sync.Mutex
	verdicts map[string]Verdict  // by key, also of an earlier gresd
	why      map[gpu.UUID]string // it was not tested
	testing  gpu.UUID            // that is tested now; "": none
	giveUp   context.CancelCauseFunc
}

// New returns a tester that knows what an earlier gresd found out.
func New(parts Parts) *Tester {
	t := &Tester{Parts: parts, why: map[gpu.UUID]string{}}
	// A file that is not there, or makes no sense, is made anew.
	if t.verdicts, _ = atomicfile.ReadJSON[map[string]Verdict](parts.Path, parts.Log); t.verdicts == nil {
		t.verdicts = map[string]Verdict{}
	}
	maps.DeleteFunc(t.verdicts, func(_ string, v Verdict) bool { return v != Obeyed && v != Ignored })
	return t
}

func (t *Tester) key(card gpu.UUID) string { return t.Driver + "/" + string(card) }

// Of returns what is known of a card, and where it was not tested by this gresd, why.
func (t *Tester) Of(card gpu.UUID) (v Verdict, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.verdicts[t.key(card)], t.why[card]
}

// JobsChanged is called when a job has come or gone: a test beside a job is given up.
func (t *Tester) JobsChanged() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.testing != "" && t.Jobs()[string(t.testing)] > 0 {
		t.giveUp(fmt.Errorf("%w: a job has come", errInUse))
	}
}

// Run tests every card once, and those that come later. It returns when ctx is done.
func (t *Tester) Run(ctx context.Context) {
	tested := map[gpu.UUID]bool{}
	for pause := firstRetry; ctx.Err() == nil; {
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
			pause = firstRetry
		}
	}
}

// note keeps what came of a test, and says it.
func (t *Tester) note(card gpu.UUID, v Verdict, err error) {
	t.mu.Lock()
	if err != nil {
		t.why[card] = err.Error()
		if errors.Is(err, errRefused) { // an earlier verdict no longer holds
			delete(t.verdicts, t.key(card))
		}
	} else {
		t.verdicts[t.key(card)] = v
		delete(t.why, card)
	}
	keep := maps.Clone(t.verdicts)
	t.mu.Unlock()
	switch {
	case err != nil:
		t.Log.Debug("whether a card obeys time slices is not known", "gpu_uuid", card, "error", err)
		if !errors.Is(err, errRefused) {
			return
		}
	case v == Ignored:
		t.Log.Warn("a card does not obey time slices: its jobs take turns", "gpu_uuid", card)
	default:
		t.Log.Info("a card obeys time slices", "gpu_uuid", card)
	}
	if err := atomicfile.WriteJSON(t.Path, keep); err != nil {
		t.Log.Debug("whether cards obey time slices is not remembered", "error", err)
	}
}

// test lets two processes work on a card and judges what they had.
func (t *Tester) test(ctx context.Context, card gpu.UUID) (v Verdict, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, testFor, errors.New("the processes of the test did not get their slices, or its records did not show them, in time"))
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	t.setTesting(card, giveUp)
	defer t.setTesting("", nil)
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
	short, err := t.start(filepath.Join(t.Dir, "short"), card, shortUS)
	if err != nil {
		return Unknown, err
	}
	defer short.end()
	long, err := t.start(filepath.Join(t.Dir, "long"), card, longUS)
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

func (t *Tester) setTesting(card gpu.UUID, giveUp context.CancelCauseFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.testing, t.giveUp = card, giveUp
}

// idle says why a card cannot be tested now.
func (t *Tester) idle(card gpu.UUID) error {
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
func (t *Tester) compare(ctx context.Context, card gpu.UUID, short, long *worker) (Verdict, error) {
	before, err := t.account(ctx, card, short, long, func(a ctxswitch.Account) bool {
		return a.Uses[short.pid()].Turns > 0 && a.Uses[long.pid()].Turns > 0
	})
	if err != nil {
		return Unknown, err
	}
	after, err := t.account(ctx, card, short, long, func(a ctxswitch.Account) bool { return a.At >= before.At+measureFor })
	if err != nil {
		return Unknown, err
	}
	had := map[uint32]ctxswitch.Use{}
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
func (t *Tester) account(ctx context.Context, card gpu.UUID, short, long *worker, ok func(ctxswitch.Account) bool) (ctxswitch.Account, error) {
	for {
		s, shortErr := short.sliced()
		l, longErr := long.sliced()
		a, known := t.Meter.OnCard(card)
		err := errors.Join(shortErr, longErr)
		switch {
		case err != nil:
		case s && l && known && ok(a):
			return a, nil
		case t.Meter.Refused(card):
			err = errNoRecords
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		}
		if err != nil {
			return ctxswitch.Account{}, err
		}
		time.Sleep(lookEvery)
	}
}
