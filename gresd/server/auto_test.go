// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// engineJob is a small job of one card that asks for an engine.
type engineJob struct {
	engine  gpu.Engine
	uid     uint32
	account string
}

func (n *testNode) withEngine(id uint32, j engineJob, change ...func(*slurm.JobFacts)) wire.Request {
	req := n.job(id, 10, append([]func(*slurm.JobFacts){user(j.uid, fmt.Sprint("user", j.uid)), func(f *slurm.JobFacts) { f.Account = j.account }}, change...)...)
	req.Options.Engine = string(j.engine)
	return req
}

func TestAutoIsConcurrentBesideTrustedUsersOnly(t *testing.T) {
	const (
		phys, chem = "phys", "chem"
		alone      = "no other job was on the card"
		refused    = gpu.Engine("")
	)
	auto := func(uid uint32, account string) engineJob { return engineJob{gpu.Auto, uid, account} }
	concurrent := func(uid uint32, account string) engineJob { return engineJob{gpu.Concurrent, uid, account} }
	for name, c := range map[string]struct {
		change func(*config.MPS)
		there  []engineJob
		job    engineJob
		facts  func(*slurm.JobFacts)
		want   gpu.Engine
		why    string // of the engine, or in the refusal
	}{
		"the first on a card":                 {job: auto(5, phys), want: gpu.Concurrent, why: alone},
		"a whole card":                        {job: auto(5, phys), facts: func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{0: 100} }, want: gpu.Time, why: "whole card"},
		"beside the same account":             {there: []engineJob{auto(5, phys)}, job: auto(6, phys), want: gpu.Concurrent, why: "all jobs on the card were of the same account"},
		"beside another account":              {there: []engineJob{auto(5, phys)}, job: auto(6, chem), why: `"auto": card 0 is shared by the engine concurrent with a job of another user, and --vgpu-engine=auto is for jobs of the same account there`},
		"beside two, one of another account":  {there: []engineJob{concurrent(5, phys), concurrent(6, chem)}, job: auto(5, phys), why: "with a job of another user, and"},
		"one's own job of another account":    {there: []engineJob{auto(5, phys)}, job: auto(5, chem), why: "of the same account"},
		"concurrent beside another account's": {there: []engineJob{auto(5, phys)}, job: concurrent(6, chem), why: `"concurrent": card 0 is shared`},
		"concurrent beside the same account":  {there: []engineJob{auto(5, phys)}, job: concurrent(6, phys), want: gpu.Concurrent},
		"an account that is not known":        {job: auto(5, ""), want: gpu.Time, why: "Slurm names no account of the job"},
		"beside an account not known":         {there: []engineJob{concurrent(5, "")}, job: auto(6, phys), why: "with a job of another user"},
		"two accounts that are not known":     {there: []engineJob{concurrent(5, "")}, job: auto(6, ""), why: `"auto": card 0 is shared by the engine concurrent with a job of another user`},
		"beside a job by time":                {there: []engineJob{{gpu.Time, 5, phys}}, job: auto(5, phys), want: gpu.Time, why: "a job with the engine time was on the card"},
		"beside a job that says nothing":      {there: []engineJob{{"", 5, phys}}, job: auto(5, phys), want: gpu.Time, why: "a job with the engine time was on the card"},
		"beside MPS":                          {there: []engineJob{{gpu.MPS, 5, phys}}, job: auto(5, phys), why: `"auto": card 0 is divided by MPS for job 1 of user user5`},
		"time beside auto":                    {there: []engineJob{auto(5, phys)}, job: engineJob{gpu.Time, 5, phys}, why: "shared by the engine concurrent with job 1 of user user5"},
		"trust of one user": {
			func(m *config.MPS) { m.Trust = config.TrustUser },
			[]engineJob{auto(5, phys)},
			auto(5, chem), nil, gpu.Concurrent, "all jobs on the card were of the same user",
		},
		"trust of one user, and another": {
			func(m *config.MPS) { m.Trust = config.TrustUser },
			[]engineJob{auto(5, phys)},
			auto(6, phys), nil, refused, "is for jobs of the same user there",
		},
		"trust of all": {
			func(m *config.MPS) { m.Trust = config.TrustAll },
			[]engineJob{auto(5, phys)},
			auto(6, ""), nil, gpu.Concurrent, "of users who all trust each other",
		},
		"the site's choice": {
			func(m *config.MPS) { m.DefaultEngine = gpu.Auto },
			nil,
			engineJob{"", 5, phys},
			nil, gpu.Concurrent, alone,
		},
		"another word than the site's choice": {
			func(m *config.MPS) { m.DefaultEngine = gpu.Auto },
			nil,
			engineJob{gpu.Time, 5, phys},
			nil, gpu.Time, "",
		},
		"concurrent is not offered": {
			func(m *config.MPS) { m.Engines = nil },
			nil, auto(5, phys), nil, gpu.Time, "this node does not offer concurrent",
		},
		"no MPS": {
			func(*config.MPS) { t.Setenv("PATH", "/nonexistent") },
			nil, auto(5, phys), nil, gpu.Time, "is not installed here",
		},
		"two cards": {
			nil, nil, auto(5, phys), func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{0: 10, 1: 10} },
			gpu.Time, "concurrent is for one card, and the job has 2 on this node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := newMPSNode(t, offersConcurrent, func(cfg *config.Config) {
				if c.change != nil {
					c.change(&cfg.MPS)
				}
			})
			n.start()
			for i, j := range c.there {
				n.want(n.withEngine(uint32(i)+1, j), wire.Granted)
			}
			const id = 9
			n.asks(id, byTask(10))
			var change []func(*slurm.JobFacts)
			if c.facts != nil {
				change = append(change, c.facts)
			}
			req := n.withEngine(id, c.job, change...)
			if c.want == refused {
				wantMessage(t, n.want(req, wire.Refused), c.why)
				return
			}
			n.want(req, wire.Granted)
			n.wantEngine(id, c.want, c.why)
			n.restart() // the choice is durable
			n.wantEngine(id, c.want, c.why)
		})
	}
}

// wantEngine holds what was recorded and is explained against what was to be chosen.
func (n *testNode) wantEngine(id uint32, engine gpu.Engine, why string) {
	n.t.Helper()
	rec, _ := n.ledger.Get(id)
	rep, err := n.ask(wire.Request{Op: wire.OpExplain, JobID: id})
	if err != nil {
		n.t.Fatal(err)
	}
	told := gpu.Engine(rep.Explain.Engine)
	if engineOfRecord(&rec) != engine || (why != "") != (told == engine) || !strings.Contains(rep.Explain.EngineWhy, why) || why == "" && rep.Explain.EngineWhy != "" {
		n.t.Errorf("engine %q, and explained: %q, %q; want %q, %q", rec.Request.Engine, told, rep.Explain.EngineWhy, engine, why)
	}
}

// Whether a job was promised trusted users only is not known without the ledger: it counts as if it was.
func TestAutoAfterTheLedgerWasLost(t *testing.T) {
	n, _ := newMPSNode(t, offersConcurrent)
	n.start()
	n.want(n.withEngine(1, engineJob{gpu.Auto, 5, "phys"}), wire.Granted)
	n.loseLedger()
	n.wantEngine(1, gpu.Concurrent, "the ledger that said why was lost")
	wantMessage(t, n.want(n.withEngine(2, engineJob{gpu.Concurrent, 6, "chem"}), wire.Refused), "of the same account")
}

// gresd chooses a card on which the users trust each other.
func TestAutoWhereGresdPlaces(t *testing.T) {
	n, _ := newMPSNode(t, offersConcurrent, gresdPlaces, func(c *config.Config) { c.MPS.DefaultEngine = gpu.Auto })
	n.start()
	counted := func(f *slurm.JobFacts) { f.Units, f.Counted = nil, 10 }
	on := func(id uint32) gpu.UUID {
		rec, _ := n.ledger.Get(id)
		return rec.Placement.Cards[0].UUID
	}
	for id, account := range map[uint32]string{1: "phys", 2: "chem", 3: "phys", 4: "chem"} {
		n.want(n.withEngine(id, engineJob{"", 10 + id, account}, counted), wire.Granted)
	}
	if on(1) != on(3) || on(2) != on(4) || on(1) == on(2) {
		t.Errorf("cards %s, %s, %s, %s; want one for each account", on(1), on(2), on(3), on(4))
	}
	wantMessage(t, n.want(n.withEngine(5, engineJob{"", 5, "bio"}, counted), wire.Refused), "of the same account")
}
