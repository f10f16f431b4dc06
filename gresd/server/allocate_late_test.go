// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Only a full file system is tried again, for a while.
func TestWhileFull(t *testing.T) {
	full := fmt.Errorf("write: %w", unix.ENOSPC)
	for name, c := range map[string]struct {
		answers []error
		want    error
		calls   int
	}{
		"room":           {nil, nil, 1},
		"room at last":   {[]error{full, full, full}, nil, 4},
		"another error":  {[]error{unix.EIO, nil}, unix.EIO, 1},
		"another, later": {[]error{full, unix.EIO, nil}, unix.EIO, 2},
	} {
		calls := 0
		err := whileFull("run_dir", func() error {
			calls++
			if calls > len(c.answers) {
				return nil
			}
			return c.answers[calls-1]
		})
		if !errors.Is(err, c.want) || calls != c.calls {
			t.Errorf("%s: %v after %d calls, want %v after %d", name, err, calls, c.want, c.calls)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := whileFull("run_dir", func() error { return full }); !errors.Is(err, unix.ENOSPC) || time.Since(began) > 2*fullDiskTimeout {
			t.Errorf("full for ever: %v after %s", err, time.Since(began))
		}
	})
}

func TestCountersOfResults(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(1, 30), wire.Granted)
	bad := n.job(2, 30)
	bad.Options.Mem = "x"
	n.want(bad, wire.Refused)
	n.count.mu.Lock()
	defer n.count.mu.Unlock()
	if got := fmt.Sprint(n.count.counts); got != "map[granted:1 refused:1]" {
		t.Errorf("counted %s", got)
	}
}

// The Epilog comes while somebody still asks for the job: a Prolog that was killed, or a task.
func TestWhatIsDecidedAfterItsJobHasEndedLeavesNothing(t *testing.T) {
	n := newTestNode(t).start()
	refused := n.job(1, 30)
	refused.Options.Mem = "x"
	for name, w := range map[string]wire.Request{"refused": refused, "granted": n.job(2, 30)} {
		ctx, done := n.deciding.begin(t.Context(), w.JobID, 0)
		if name == "refused" {
			o := n.decide(ctx, w)
			n.want(wire.Request{Op: wire.OpRelease, JobID: w.JobID}, wire.None)
			if rep := n.settle(ctx, o); rep.OK || rep.Kind != wire.KindUser {
				t.Errorf("%s: %+v, want a mistake of the user's", name, rep)
			}
		} else {
			n.want(wire.Request{Op: wire.OpRelease, JobID: w.JobID}, wire.None)
			if rep := n.grant(ctx, w); rep.OK {
				t.Errorf("%s: %+v, want an error", name, rep)
			}
		}
		done()
		if rec, known := n.ledger.Get(w.JobID); known {
			t.Errorf("%s: left the record %+v", name, rec)
		}
		n.want(w, map[string]wire.Result{"refused": wire.Refused, "granted": wire.Granted}[name]) // asked anew
	}
	if len(n.deciding.jobs) != 0 {
		t.Errorf("left %v", n.deciding.jobs)
	}
}
