// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func byGresd(c *config.Config) { c.Placement.By, c.Placement.WaitS = config.PlacementGresd, 0 }

// counted makes a job that slurmctld gave a plain count.
func counted(n gpu.Share) func(*slurm.JobFacts) {
	return func(f *slurm.JobFacts) { f.Units, f.Counted = nil, n }
}

func (n *testNode) explainAs(uid uint32, req wire.Request) *wire.Explanation {
	n.t.Helper()
	req.Op = wire.OpExplain
	rep := n.askAs(uid, req)
	if !rep.OK || rep.Explain == nil {
		n.t.Fatalf("explain %+v: %+v", req, rep)
	}
	return rep.Explain
}

func cardReasons(e *wire.Explanation) string {
	var all []string
	for _, c := range e.Cards {
		all = append(all, c.Reason)
	}
	return strings.Join(all, " ")
}

func TestExplainAJobOfTheUsers(t *testing.T) {
	n := newTestNode(t, byGresd).start()
	n.want(n.job(7, 30, counted(30)), wire.Granted)
	n.want(n.job(8, 80, counted(80), func(f *slurm.JobFacts) { f.UID, f.GID, f.User = 33, 33, "www-data" }), wire.Granted)
	n.want(n.job(9, 90, counted(90), batch), wire.Requeued)

	e := n.explainAs(nobody, wire.Request{JobID: 7})
	if cardReasons(e) != "lower_index taken" || e.Decided == nil || e.Lost || e.Message != "" || e.Placement != "gresd" {
		t.Errorf("job 7: %+v", e)
	}
	if c := e.Cards[1]; c.FreeShare != 100 || c.WantShare != 30 || c.WantBytes != 30<<30 || c.Type != "h200" || c.Why != place.Taken.Words() {
		t.Errorf("job 7, card 1: %+v", c)
	}
	// Its reasons are those of the time when it was decided, although it went
	// back into the queue.
	e = n.explainAs(nobody, wire.Request{JobID: 9})
	if cardReasons(e) != "no_share no_share" || !strings.Contains(e.Message, "want 90 % and 90 GiB on one card") {
		t.Errorf("job 9: %+v", e)
	}
	if e = n.explainAs(0, wire.Request{JobID: 8}); cardReasons(e) != "taken no_share" {
		t.Errorf("job 8: %+v", e)
	}
	// The retry after a look at the world is not counted twice.
	n.count.mu.Lock()
	if got := fmt.Sprint(n.count.cards); got != "map[lower_index:1 no_share:3 taken:2]" {
		t.Errorf("counted %s", got)
	}
	n.count.mu.Unlock()

	// After a restart the placement is known, and the rest is said to be lost.
	n.restart()
	e = n.explainAs(nobody, wire.Request{JobID: 7})
	if cardReasons(e) != "no_share taken" || !e.Lost || e.Decided == nil || e.Cards[1].FreeShare != 100 || !strings.Contains(e.Request, "share=30") {
		t.Errorf("job 7 after a restart: %+v", e)
	}
}

func TestExplainTellsNothingOfOthersJobs(t *testing.T) {
	n := newTestNode(t, byGresd).start()
	n.want(n.job(7, 30, counted(30)), wire.Granted)
	n.want(n.job(8, 60, counted(60), func(f *slurm.JobFacts) { f.UID, f.GID, f.User = 33, 33, "www-data" }), wire.Granted)
	others := n.askAs(nobody, wire.Request{Op: wire.OpExplain, JobID: 8})
	absent := n.askAs(nobody, wire.Request{Op: wire.OpExplain, JobID: 6})
	if others.OK || absent.OK || strings.ReplaceAll(others.Message, "8", "6") != absent.Message {
		t.Errorf("another's job: %q; no job: %q", others.Message, absent.Message)
	}
	now := wire.Request{GRES: "vgpu:20"}
	if e := n.explainAs(nobody, now); e.Cards[1].Jobs != 2 || !slices.Equal(e.Cards[1].JobIDs, []uint32{7}) || e.Decided != nil {
		t.Errorf("what nobody sees: %+v", e.Cards[1])
	}
	if e := n.explainAs(0, now); !slices.Equal(e.Cards[1].JobIDs, []uint32{7, 8}) {
		t.Errorf("what root sees: %+v", e.Cards[1])
	}
	n.restart() // from the ledger, too
	if rep := n.askAs(nobody, wire.Request{Op: wire.OpExplain, JobID: 8}); rep.OK {
		t.Errorf("another's job after a restart: %+v", rep.Explain)
	}
}

func TestExplainARequest(t *testing.T) {
	n := newTestNode(t, byGresd, func(c *config.Config) { c.Limits.MaxMem = "60G" })
	n.cards.cards[1].Type = "a100"
	n.start()
	n.want(n.job(7, 30, ofType(30, "h200")), wire.Granted)
	for name, c := range map[string]struct {
		req     wire.Request
		reasons string
		message string
	}{
		"best fit":          {wire.Request{GRES: "vgpu:20"}, "taken leaves_more", ""},
		"Slurm's spelling":  {wire.Request{GRES: "gres/vgpu=20"}, "taken leaves_more", ""},
		"spread":            {wire.Request{GRES: "gres:vgpu:20", Options: wire.Options{Policy: "spread"}}, "leaves_less taken", ""},
		"exclusive":         {wire.Request{GRES: "vgpu:20", Options: wire.Options{Policy: "exclusive"}}, "occupied taken", ""},
		"a type":            {wire.Request{GRES: "vgpu:a100:20"}, "other_type taken", ""},
		"a type of nowhere": {wire.Request{GRES: "vgpu:b200:20"}, "other_type other_type", `--gres=vgpu: "b200": want a type of card that this node has: a100, h200, for example --gres=vgpu:`},
		"no room":           {wire.Request{GRES: "vgpu:h200:80"}, "no_share other_type", "want 80 % and 80 GiB on one card"},
		"the site's limit":  {wire.Request{GRES: "vgpu:70"}, "site_limit site_limit", "this site allows no more than 60 GiB"},
	} {
		e := n.explainAs(nobody, c.req)
		if cardReasons(e) != c.reasons || !strings.Contains(e.Message, c.message) || (c.message == "") != (e.Message == "") {
			t.Errorf("%s: got %q, %q; want %q, %q", name, cardReasons(e), e.Message, c.reasons, c.message)
		}
	}
	for gres, want := range map[string]string{
		"vgpu": "want vgpu:N", "gpu:1": "want vgpu:N", "vgpu:a:b:3": "want vgpu:N", "vgpu:x": "want 1 to 100",
		"vgpu:150": "want 1 to 100",
	} {
		if rep := n.askAs(nobody, wire.Request{Op: wire.OpExplain, GRES: gres}); rep.OK || !strings.Contains(rep.Message, want) {
			t.Errorf("%s: %+v", gres, rep)
		}
	}
	if len(n.ledger.List()) != 1 {
		t.Error("a question changed the ledger")
	}
}

func TestExplainLeavesTheChoiceToSlurmctld(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 90), wire.Granted)
	if e := n.explainAs(nobody, wire.Request{GRES: "vgpu:20"}); cardReasons(e) != "no_share fits" || e.Placement != "slurm" {
		t.Errorf("a request: %+v", e)
	}
	if e := n.explainAs(nobody, wire.Request{JobID: 7}); cardReasons(e) != "taken not_named" || !strings.Contains(e.Request, "(share=90,cards=1,") {
		t.Errorf("a job: %+v", e)
	}
	// A job that was refused before any card was looked at.
	bad := n.job(8, 10)
	bad.Options.Mem = "much"
	n.want(bad, wire.Refused)
	if e := n.explainAs(nobody, wire.Request{JobID: 8}); len(e.Cards) != 0 || !strings.Contains(e.Message, "--vgpu-mem") {
		t.Errorf("a mistake: %+v", e)
	}
}

func TestOldDecisionsAreForgotten(t *testing.T) {
	var d decisions
	for id := range uint32(maxDecisions + 10) {
		at := time.Unix(int64(id), 0)
		d.put(decided{jobID: id + 1, at: at})
		d.put(decided{jobID: id + 1, uid: 5, at: at})
	}
	if _, known := d.get(10); known || len(d.byJob) != maxDecisions {
		t.Errorf("%d jobs, job 10 known: %v", len(d.byJob), known)
	}
	if made, known := d.get(11); !known || made.uid != 5 {
		t.Errorf("job 11: %+v, %v", made, known)
	}
}
