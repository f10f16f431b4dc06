// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/mps"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// choice is the engine for the cards of a job.
type choice struct {
	engine gpu.Engine
	why    string // gresd took it, for a job that leaves it to gresd; "" where job or site name one
}

// asked is the engine in the words of the request.
func (c choice) asked() gpu.Engine {
	if c.why != "" {
		return gpu.Auto
	}
	return c.engine
}

// addTo adds the choice of gresd to the explanation for a job.
func (c choice) addTo(e *wire.Explanation) {
	if c.why != "" {
		e.Engine, e.EngineWhy = string(c.engine), c.why
	}
}

// auto chooses for a job that leaves it to gresd: concurrent where that can be, unless the card is
// divided otherwise. A card with concurrent jobs of users who are not trusted is refused by checkNeighbors;
// so are, later, others beside this job. The queue is locked.
func (s *Server) auto(facts slurm.JobFacts, share gpu.Share, cards int, card gpu.UUID) choice {
	site, missing := s.config.Get().MPS, s.mps.Available()
	byTime := func(why string, args ...any) choice { return choice{gpu.Time, fmt.Sprintf(why, args...)} }
	switch {
	case !site.Offers(gpu.Concurrent):
		return byTime("this node does not offer concurrent")
	case cards != 1:
		return byTime("concurrent is for one card, and the job has %d on this node", cards)
	case share >= 100:
		return byTime("it has a whole card")
	case card.IsInstance():
		return byTime("concurrent is not for MIG instances")
	case missing != nil:
		return byTime("%v", missing)
	case site.Trust == config.TrustAccount && facts.Account == "":
		return byTime("Slurm names no account of the job, so that nobody trusts it")
	}
	others := s.neighborRecords(facts, card, func(*ledger.Record) bool { return true })
	for _, rec := range others {
		if e := engineOfRecord(&rec); e != gpu.Concurrent {
			return byTime("a job with the engine %s was on the card", e)
		}
	}
	if len(others) == 0 {
		return choice{gpu.Concurrent, "no other job was on the card"}
	}
	return choice{gpu.Concurrent, "all jobs on the card were " + s.trustedWords()}
}

// trusted reports whether the users of two jobs trust each other. An unknown account is equal to no
// account.
func (s *Server) trusted(facts slurm.JobFacts, rec *ledger.Record) bool {
	switch s.config.Get().MPS.Trust {
	case config.TrustAll:
		return true
	case config.TrustUser:
		return facts.UID == rec.UID
	}
	return facts.Account != "" && facts.Account == rec.Account
}

// trustedWords says whose jobs trust each other.
func (s *Server) trustedWords() string {
	return map[string]string{
		config.TrustAll: "of users who all trust each other", config.TrustUser: "of the same user", config.TrustAccount: "of the same account",
	}[s.config.Get().MPS.Trust]
}

// neighborRecords returns the records of other jobs on a card for which holds is true.
func (s *Server) neighborRecords(facts slurm.JobFacts, card gpu.UUID, holds func(*ledger.Record) bool) []ledger.Record {
	return s.ledger.Find(func(rec *ledger.Record) bool {
		return rec.State == ledger.Granted && rec.JobID != facts.JobID &&
			slices.ContainsFunc(rec.Placement.Cards, func(c place.CardShare) bool { return c.UUID == card }) && holds(rec)
	})
}

// engineOf is what divides the compute of a job's cards: what was asked for,
// else the site's choice where the request allows it. A CUDA program talks to
// one MPS daemon, which is for one card, and its percentage is fixed. share is that of the first
// card. The queue is locked.
func (s *Server) engineOf(facts slurm.JobFacts, req request.Request, cards int, first gpu.UUID, share gpu.Share) choice {
	site := s.config.Get().MPS
	switch {
	case req.Engine == gpu.Auto, req.Engine == "" && site.DefaultEngine == gpu.Auto:
		return s.auto(facts, share, cards, first)
	case req.Engine != "":
		return choice{engine: req.Engine}
	case site.DefaultEngine == gpu.MPS && cards == 1 && !first.IsInstance() && req.Mode != gpu.Soft:
		return choice{engine: gpu.MPS}
	}
	return choice{engine: gpu.Time}
}

// checkEngine is what divides the cards of a placement, or says why they cannot be
// divided as the job asks. The error is a [*request.Error].
func (s *Server) checkEngine(facts slurm.JobFacts, req request.Request, p place.Placement) (choice, error) {
	chosen := s.engineOf(facts, req, len(p.Cards), p.Cards[0].UUID, p.Cards[0].Share)
	if chosen.engine != gpu.Time {
		if err := s.checkServed(chosen.engine, req, len(p.Cards)); err != nil {
			return choice{}, err
		}
	}
	for _, c := range p.Cards {
		if err := s.checkNeighbors(facts, chosen, c.UUID, c.Index); err != nil {
			return choice{}, err
		}
	}
	return chosen, nil
}

// checkServed holds a request for an engine that has an MPS server against what that
// and the site can do.
func (s *Server) checkServed(engine gpu.Engine, req request.Request, cards int) error {
	switch err := s.mps.Available(); {
	case !s.config.Get().MPS.Offers(engine):
		return engineError(engine, "this node does not offer it; want --vgpu-engine=time")
	case cards != 1:
		return engineError(engine, "it serves one card, and the job has %d on this node; want --vgpu-engine=time, or one card", cards)
	case engine == gpu.MPS && req.Mode == gpu.Soft:
		return engineError(engine, "it gives no idle compute to others, as --vgpu-mode=soft would; want --vgpu-mode=hard, or --vgpu-engine=time")
	case err != nil:
		return engineError(engine, "%v; want --vgpu-engine=time, or another node", err)
	}
	return nil
}

// engineOfRecord is what divides the cards of a granted job.
func engineOfRecord(rec *ledger.Record) gpu.Engine { return cmp.Or(rec.Request.Engine, gpu.Time) }

// shared says how jobs of an engine share a card, for messages.
var shared = map[gpu.Engine]string{gpu.Time: "shared by time with", gpu.MPS: "divided by MPS for", gpu.Concurrent: "shared by the engine concurrent with"}

// checkNeighbors returns an error if a job cannot share a card with the jobs there. To the card, an
// MPS server is one process, and no client can set its time slice. Next to it, no job would have its
// share. Call it with the queue locked.
func (s *Server) checkNeighbors(facts slurm.JobFacts, chosen choice, card gpu.UUID, index int) error {
	engine := chosen.engine
	if engine != gpu.Time && card.IsInstance() {
		return engineError(engine, "card %d is a MIG instance, on which gresd does not start it; want --vgpu-engine=time", index)
	}
	rivals := s.neighborRecords(facts, card, func(rec *ledger.Record) bool {
		return engineOfRecord(rec) != engine || engine == gpu.MPS && rec.UID != facts.UID && !s.config.Get().MPS.AllowAcrossUsers ||
			engine == gpu.Concurrent && (chosen.why != "" || rec.EngineWhy != "") && !s.trusted(facts, rec)
	})
	if len(rivals) == 0 {
		return nil
	}
	rec := rivals[0]
	whose := "a job of another user" // Slurm may keep its number and its user private (PrivateData)
	if rec.UID == facts.UID {
		whose = fmt.Sprintf("job %d of user %s", rec.JobID, cmp.Or(rec.User, fmt.Sprint(rec.UID)))
	}
	is := fmt.Sprintf("card %d is %s %s", index, shared[engineOfRecord(&rec)], whose)
	switch {
	case engineOfRecord(&rec) == engine && engine == gpu.Concurrent:
		return engineError(chosen.asked(), "%s, and --vgpu-engine=auto is for jobs %s there; "+
			"want a whole card (--gres=vgpu:100), or submit again when that job has ended", is, s.trustedWords())
	case engineOfRecord(&rec) == engine:
		return engineError(engine, "%s, and its programs would not be safe from yours; "+
			"want --vgpu-engine=time on another card, or submit again when that job has ended", is)
	case engine == gpu.Time:
		return engineError(chosen.asked(), "%s; want a whole card (--gres=vgpu:100), or submit again when that job has ended", is)
	}
	return engineError(engine, "%s; want --vgpu-engine=%s, a whole card (--gres=vgpu:100), or submit again when that job has ended", is, engineOfRecord(&rec))
}

// compatibleCards are the cards that gresd may choose from for a job. The error says
// why there is none. The queue is locked.
func (s *Server) compatibleCards(facts slurm.JobFacts, req request.Request, cards []gpu.Card) ([]gpu.Card, error) {
	var fit []gpu.Card
	var why error
	for _, c := range cards {
		chosen := s.engineOf(facts, req, max(1, req.Cards), c.UUID, req.Share)
		if err := s.checkNeighbors(facts, chosen, c.UUID, c.Index); err != nil {
			why = cmp.Or(why, err)
			continue
		}
		fit = append(fit, c)
	}
	if len(fit) > 0 {
		why = nil
	}
	return fit, why
}

func engineError(engine gpu.Engine, want string, args ...any) error {
	return &request.Error{Option: "--vgpu-engine", Given: string(engine), Want: fmt.Sprintf(want, args...)}
}

// mpsKey is the daemon of a granted job, and the part of the card's
// multiprocessors that it gives the job. ok is false for a job without one.
func mpsKey(rec ledger.Record) (key mps.Key, percent gpu.Share, ok bool) {
	if rec.State != ledger.Granted || engineOfRecord(&rec) == gpu.Time || len(rec.Placement.Cards) != 1 {
		return mps.Key{}, 0, false
	}
	c := rec.Placement.Cards[0]
	switch {
	case rec.Request.Engine == gpu.Concurrent:
		return mps.ForEveryone(c.UUID), gpu.FullCard, true
	case rec.Mode == gpu.Off:
		return mps.Key{Card: c.UUID, UID: rec.UID}, gpu.FullCard, true
	}
	return mps.Key{Card: c.UUID, UID: rec.UID}, c.Cores, true
}

// awaitMPS waits for the daemon of a job: a program that finds none starts
// without it, and without its limit. The job's lock is not held.
func (s *Server) awaitMPS(ctx context.Context, jobID uint32) error {
	rec, _ := s.ledger.Get(jobID)
	if _, _, ok := mpsKey(rec); !ok {
		return nil
	}
	err := s.mps.Wait(ctx, jobID)
	if isFull(err) {
		return noRoomIn("run_dir", err)
	}
	if err != nil {
		return engineError(rec.Request.Engine, "it does not start on card %d: %v; want --vgpu-engine=time, or tell the administrator",
			rec.Placement.Cards[0].Index, err)
	}
	return nil
}

// startEngine starts the daemon of a job, without waiting for it. It returns the environment of the
// job's tasks.
func (s *Server) startEngine(rec ledger.Record) (environment []string) {
	if key, percent, ok := mpsKey(rec); ok {
		s.mps.Keep(rec.JobID, key, rec.GID, percent)
		return mps.Environment(s.config.Get().Paths.MPS(), key, percent)
	}
	// slurmd names the job's cards by its numbers, which are CUDA's where no card is a MIG instance.
	mig := slices.ContainsFunc(s.cards.Now().Cards, gpu.Card.IsInstance)
	if s.config.Get().Placement.By != config.PlacementGresd && !mig {
		return nil
	}
	var cards []string
	for _, c := range rec.Placement.Cards {
		cards = append(cards, string(c.UUID))
	}
	return []string{"CUDA_VISIBLE_DEVICES=" + strings.Join(cards, ",")}
}

// create makes the files of a granted job, and has its daemon started.
func (s *Server) create(rec ledger.Record) error {
	environment := s.startEngine(rec)
	spec := grant.SpecOf(rec)
	for i, c := range rec.Placement.Cards {
		spec.Cards[i].MemOverhead = uint64(s.costOn(c.UUID).Total())
	}
	return s.grants.Create(spec, environment)
}

// Uncounted is the memory that a process uses on the card and the card does not count for it.
func (s *Server) Uncounted(uuid gpu.UUID) gpu.Bytes { return s.costOn(uuid).Uncounted }

// costOn returns the memory of a process with one CUDA context on a card.
func (s *Server) costOn(uuid gpu.UUID) probe.Figure {
	card, here := s.cards.Of(uuid)
	if !here {
		return probe.Figure{}
	}
	return s.costs.Of(card.Name)
}

// engineOfEnvironment reads back what environment wrote for a job of MPS.
func engineOfEnvironment(lines []string) gpu.Engine {
	if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, mps.PipeVariable+"=") }) {
		return gpu.MPS
	}
	return ""
}
