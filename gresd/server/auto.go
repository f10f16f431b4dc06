// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// choice is what divides the cards of a job.
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

// tell adds gresd's choice to what a job is told.
func (c choice) tell(e *wire.Explanation) {
	if c.why != "" {
		e.Engine, e.EngineWhy = string(c.engine), c.why
	}
}

// auto chooses for a job that leaves it to gresd: concurrent where that can be, unless the card is
// divided otherwise. A card with concurrent jobs of users who are not trusted is refused by company;
// so are, later, others beside this job. s.placing is held.
func (s *Server) auto(facts slurm.JobFacts, share gpu.Share, cards int, card gpu.UUID) choice {
	site, missing := s.cfg().MPS, s.mps.Available()
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
	others := s.others(facts, card, func(*ledger.Record) bool { return true })
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

// trusted says whether the user of a job trusts that of another one. An account that is not known is
// nobody's.
func (s *Server) trusted(facts slurm.JobFacts, rec *ledger.Record) bool {
	switch s.cfg().MPS.Trust {
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
	}[s.cfg().MPS.Trust]
}

// others are the other jobs on a card of which something holds.
func (s *Server) others(facts slurm.JobFacts, card gpu.UUID, holds func(*ledger.Record) bool) []ledger.Record {
	return s.ledger.Find(func(rec *ledger.Record) bool {
		return rec.State == ledger.Granted && rec.JobID != facts.JobID &&
			slices.ContainsFunc(rec.Placement.Cards, func(c place.CardShare) bool { return c.UUID == card }) && holds(rec)
	})
}
