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
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/mps"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

// engineOf is what divides the compute of a job's cards: what was asked for,
// else the site's choice where the request allows it. A CUDA program talks to
// one MPS daemon, which is for one card, and its percentage is fixed. share is that of the first
// card. s.placing is held.
func (s *Server) engineOf(facts slurm.JobFacts, req request.Request, cards int, first gpu.UUID, share gpu.Share) choice {
	site := s.cfg().MPS
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
		if err := s.company(facts, chosen, c.UUID, c.Index); err != nil {
			return choice{}, err
		}
	}
	return chosen, nil
}

// checkServed holds a request for an engine that has an MPS server against what that
// and the site can do.
func (s *Server) checkServed(engine gpu.Engine, req request.Request, cards int) error {
	switch err := s.mps.Available(); {
	case !s.cfg().MPS.Offers(engine):
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

// company says why a job cannot share a card with those that are on it. A
// server of MPS is one user of the card's time, with a slice that none of its
// clients can set: beside it no job would have its share. s.placing is held.
func (s *Server) company(facts slurm.JobFacts, chosen choice, card gpu.UUID, index int) error {
	engine := chosen.engine
	if engine != gpu.Time && card.IsInstance() {
		return engineError(engine, "card %d is a MIG instance, on which gresd does not start it; want --vgpu-engine=time", index)
	}
	if engine == gpu.Time && s.ledger.OfEngine(gpu.MPS)+s.ledger.OfEngine(gpu.Concurrent) == 0 {
		return nil // most nodes: not every job is looked at for each grant
	}
	rivals := s.others(facts, card, func(rec *ledger.Record) bool {
		return engineOfRecord(rec) != engine || engine == gpu.MPS && rec.UID != facts.UID && !s.cfg().MPS.AllowAcrossUsers ||
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

// companions are the cards that gresd may choose from for a job. The error says
// why there is none. s.placing is held.
func (s *Server) companions(facts slurm.JobFacts, req request.Request, cards []gpu.Card) ([]gpu.Card, error) {
	var fit []gpu.Card
	var why error
	for _, c := range cards {
		chosen := s.engineOf(facts, req, max(1, req.Cards), c.UUID, req.Share)
		if err := s.company(facts, chosen, c.UUID, c.Index); err != nil {
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

// keepMPS has the daemon of a job started, without waiting for it.
func (s *Server) keepMPS(rec ledger.Record) {
	if key, percent, ok := mpsKey(rec); ok {
		s.mps.Keep(rec.JobID, key, rec.GID, percent)
	}
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

// HeldByMPS says whether MPS holds a job at its compute share, so that the
// arbiter must leave it alone.
func (s *Server) HeldByMPS(jobID uint32) bool { return s.mps.Holds(jobID) }

// environment is what the tasks of a granted job get beside their limits.
func (s *Server) environment(rec ledger.Record) []string {
	if key, percent, ok := mpsKey(rec); ok {
		return mps.Environment(s.cfg().Paths.MPS(), key, percent)
	}
	if rec.State == ledger.Refused {
		return nil
	}
	// slurmd names the job's cards by its numbers, which are CUDA's where no card is a MIG instance.
	mig := slices.ContainsFunc(s.Cards.Now().Cards, gpu.Card.IsInstance)
	if s.cfg().Placement.By != config.PlacementGresd && !mig {
		return nil
	}
	var cards []string
	for _, c := range rec.Placement.Cards {
		cards = append(cards, string(c.UUID))
	}
	return []string{"CUDA_VISIBLE_DEVICES=" + strings.Join(cards, ",")}
}

// engineOfEnvironment reads back what environment wrote for a job of MPS.
func engineOfEnvironment(lines []string) gpu.Engine {
	if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, mps.PipeVariable+"=") }) {
		return gpu.MPS
	}
	return ""
}
