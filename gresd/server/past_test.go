// SPDX-License-Identifier: Apache-2.0

package server

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/past"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// What a job did is told to its user and to root, while it runs and after its end.
func TestReportOfAJob(t *testing.T) {
	n := newTestNode(t)
	n.work = func(arbiter.Key) (arbiter.Work, bool) {
		return arbiter.Work{Busy: true, Bound: arbiter.ByProgram, Had: 0.1}, true
	}
	var err error
	if n.past, err = past.Open(filepath.Join(t.TempDir(), "past")); err != nil {
		t.Fatal(err)
	}
	n.start()
	const other = 33
	report := wire.Request{Op: wire.OpReport, JobID: 7}
	absent := n.askAs(other, report)
	req := n.job(7, 30)
	n.want(req, wire.Granted)
	putSlot(t, n.file(7, "cache"), 5<<30, 2e9)
	const span = 2500 * time.Millisecond
	now := time.Now()
	for i := range 3 {
		n.report.Count(t.Context(), now.Add(time.Duration(i)*span))
	}
	check := func(ended bool) {
		t.Helper()
		rep, err := n.ask(report)
		if err != nil || rep.Report == nil {
			t.Fatalf("%v: %s", err, rep.Message)
		}
		r := rep.Report
		if (r.Ended != nil) != ended || r.Job.JobID != 7 || r.Job.Cards[0].Share != 30 || len(r.Cards) != 1 ||
			r.Cards[0].LimitedBySeconds["program"] != (2*span).Seconds() {
			t.Errorf("got %+v", r)
		}
		// Whoever it is not of learns no more than of a job that there never was.
		if rep := n.askAs(other, report); rep.OK || rep.Report != nil || rep.Message != absent.Message {
			t.Errorf("another user: %+v", rep)
		}
	}
	check(false)
	n.want(wire.Request{Op: wire.OpRelease, JobID: 7}, wire.Released)
	check(true)
	if rep := n.askAs(nobody, report); !rep.OK || rep.Report == nil {
		t.Errorf("the job's user: %s", rep.Message)
	}
	if !strings.Contains(absent.Message, "none of yours") {
		t.Errorf("got %q", absent.Message)
	}
}
