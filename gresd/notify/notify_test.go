// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"fmt"
	"log/slog"
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

// fakeSlurm records notices to users.
type fakeSlurm struct {
	node.Slurm
	silent int // so many questions are waited for in vain
	told   []string
}

func (f *fakeSlurm) Notify(_ context.Context, id uint32, text string) error {
	if f.silent > 0 {
		f.silent--
		return slurm.ErrSilent
	}
	f.told = append(f.told, fmt.Sprintf("%d %s", id, text))
	return nil
}

// If slurmctld does not answer, one notice waits for it, and the others are dropped: messages about sick
// cards come from the same goroutine.
func TestASilentSlurmctldIsWaitedForOnce(t *testing.T) {
	names, err := node.LoadNames(t.TempDir())
	if err == nil {
		_, err = names.Enter("n1", "/slurm.conf", "", nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctld := &fakeSlurm{silent: 1}
	o := &Notifier{node: &node.Node{Names: names, Slurm: func(string) node.Slurm { return ctld }}, log: slog.New(slog.DiscardHandler)}
	for id := range uint32(3) {
		o.notices = append(o.notices, notice{id + 1, "x"})
	}
	o.tellNotices(t.Context())
	if len(ctld.told) != 0 {
		t.Errorf("told %q", ctld.told)
	}
}
