// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

func TestDelayOfARequeuedJob(t *testing.T) {
	var got []time.Duration
	for restarts := range uint32(8) {
		got = append(got, delayOf(restarts)/time.Minute)
	}
	if want := []time.Duration{0, 0, 0, 2, 4, 8, 10, 10}; !slices.Equal(got, want) {
		t.Errorf("got %v minutes, want %v", got, want)
	}
	if got := delayOf(1 << 31); got != longestDelay {
		t.Errorf("after very many: %s", got)
	}
}

// fakeSlurm notes what it is told about jobs, unless it is down.
type fakeSlurm struct {
	node.Slurm
	down   bool
	silent int // so many questions are waited for in vain
	told   []string
}

func (f *fakeSlurm) Delay(_ context.Context, id uint32, by time.Duration) error {
	if f.down {
		return slurm.ErrUnavailable
	}
	if f.silent > 0 {
		f.silent--
		return slurm.ErrSilent
	}
	f.told = append(f.told, fmt.Sprintf("%d later %s", id, by))
	return nil
}

// slurmctld may be away just then: the job is not forgotten.
func TestJobThatWasPutOffIsNotForgottenWithoutSlurmctld(t *testing.T) {
	ctld := &fakeSlurm{down: true}
	o := &Outbox{node: &node.Node{Slurm: func(string) node.Slurm { return ctld }}, log: slog.New(slog.DiscardHandler)}
	if err := o.queued.open(filepath.Join(t.TempDir(), "queued.json"), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if err := o.queued.add(7, putOff{At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	o.well.Store(true)
	o.Retry(t.Context())
	if !o.Waits() || !o.well.Load() {
		t.Error("a job that slurmctld could not be told of is forgotten")
	}
	ctld.down = false
	o.Retry(t.Context())
	if o.Waits() || !slices.Equal(ctld.told, []string{"7 later 0s"}) {
		t.Errorf("then slurmctld was told %q", ctld.told)
	}
}

func (f *fakeSlurm) Notify(_ context.Context, id uint32, text string) error {
	if f.silent > 0 {
		f.silent--
		return slurm.ErrSilent
	}
	f.told = append(f.told, fmt.Sprintf("%d %s", id, text))
	return nil
}

// While slurmctld is silent, what is to be said of many jobs is waited for once, and not as many times:
// sick cards are told of by the same goroutine.
func TestASilentSlurmctldIsWaitedForOnce(t *testing.T) {
	names, err := node.LoadNames(t.TempDir())
	if err == nil {
		_, err = names.Enter("n1", "/slurm.conf", "", nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctld := &fakeSlurm{silent: 1}
	o := &Outbox{node: &node.Node{Names: names, Slurm: func(string) node.Slurm { return ctld }}, log: slog.New(slog.DiscardHandler)}
	if err := o.queued.open(filepath.Join(t.TempDir(), "queued.json"), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for id := range uint32(3) {
		if err := o.queued.add(id+1, putOff{At: time.Now()}); err != nil {
			t.Fatal(err)
		}
		o.notices = append(o.notices, notice{id + 1, "x"})
	}
	o.well.Store(true)
	o.Retry(t.Context())
	if len(ctld.told) != 0 || len(o.queued.all()) != 3 || !o.well.Load() {
		t.Errorf("told %q, left %v", ctld.told, o.queued.all())
	}
	ctld.silent = 1
	o.tellNotices(t.Context())
	if len(ctld.told) != 0 {
		t.Errorf("told %q", ctld.told)
	}
}
