// SPDX-License-Identifier: Apache-2.0

package server

import (
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// explain says of every card why it was or was not taken by a job, or what
// would be decided now. A user other than root learns of own jobs only.
func (s *Server) explain(w wire.Request, cred wire.Cred) wire.Reply {
	if w.JobID != 0 {
		return s.explainJob(w.JobID, cred)
	}
	return s.explainRequest(w, cred)
}

func (s *Server) explainJob(jobID uint32, cred wire.Cred) wire.Reply {
	made, decided := s.decisions.get(jobID)
	rec, others, known := s.ledger.GetWithOtherUse(jobID)
	uid := made.uid
	if !decided {
		uid = rec.UID
	}
	if !decided && !known || !wire.IsRoot(cred.UID) && uid != cred.UID {
		// The same words for a job that is not there and for somebody else's.
		return wire.UserError("vgpu: explain: job %d: want a job of yours that was placed on this node; "+
			"what would be decided now is told for a request, for example vgpuctl explain --gres=vgpu:30", jobID)
	}
	e := &wire.Explanation{JobID: jobID, Placement: s.config.Get().Placement.By, Cards: []wire.CardVerdict{}}
	switch {
	case decided:
		e.Request, e.Decided = describeRequest(made.request, made.decision.Placement), &made.at
		if made.err != nil {
			e.Message = made.err.Error()
		}
		e.Cards = s.verdicts(made.decision)
		made.engine.addTo(e)
	case rec.State == ledger.Granted:
		e.Request, e.Decided, e.Lost = describeRequest(rec.Request, rec.Placement), &rec.Created, true
		e.Cards = s.verdicts(place.Given(s.cards.Now().Cards, others, rec.Placement))
		choice{engineOfRecord(&rec), rec.EngineWhy}.addTo(e)
	}
	if known && rec.State == ledger.Refused {
		e.Decided, e.Message = &rec.Created, rec.Reason
	}
	return wire.Reply{OK: true, Explain: e}
}

func (s *Server) explainRequest(w wire.Request, cred wire.Cred) wire.Reply {
	cardType, share, err := readGRES(w.GRES)
	var req request.Request
	if err == nil { // read as a job's would be
		words := optionsOf(w.Options)
		words["share"] = share
		req, err = s.read(words, false)
	}
	if err != nil {
		return wire.UserError("vgpu: explain: %v", err)
	}
	e := &wire.Explanation{Request: request.FormatToken(req.Options()), Placement: s.config.Get().Placement.By}
	d, err := s.wouldPlace(cardType, req)
	if err != nil {
		e.Message = err.Error()
	}
	e.Cards = s.verdicts(d)
	s.nameJobs(e.Cards, cred)
	return wire.Reply{OK: true, Explain: e}
}

// readGRES takes "vgpu[:TYPE]:N" apart, in each spelling that Slurm allows.
func readGRES(text string) (cardType, share string, err error) {
	rest := strings.TrimPrefix(strings.TrimPrefix(text, "gres:"), "gres/")
	words := strings.Split(strings.Replace(rest, "=", ":", 1), ":")
	if n := len(words); (words[0] == "vgpu" || words[0] == "shard") && (n == 2 || n == 3) {
		return strings.Join(words[1:n-1], ""), words[n-1], nil
	}
	return "", "", &request.Error{Option: "--gres", Given: text, Want: "want vgpu:N or vgpu:TYPE:N, for example vgpu:30"}
}

// wouldPlace is place for a job that is not there. Where slurmctld chooses, the
// cards that it could choose from are all that can be told.
func (s *Server) wouldPlace(cardType string, req request.Request) (place.Decision, error) {
	inUse, _ := s.queue.Lock(0)
	defer s.queue.Unlock()
	now := s.cards.Now()
	var only []string
	if cardType != "" {
		only = []string{cardType}
	}
	d, err := s.chooseOf(0, only, now.Cards, inUse, req, now.Distances)
	if err == nil {
		if err = s.withinLimits(d.Placement, now.Cards); err != nil {
			d.Refuse(place.SiteLimit)
		}
	}
	if s.config.Get().Placement.By == config.PlacementSlurm {
		d.LeaveOpen()
	}
	return d, err
}

// describeRequest returns a request whose share only the shards tell, with that share.
func describeRequest(req request.Request, p place.Placement) string {
	if req.Share == 0 && len(p.Cards) > 0 {
		req.Cards = len(p.Cards)
		for _, c := range p.Cards {
			req.Share += c.Share
		}
	}
	return request.FormatToken(req.Options())
}

func (s *Server) verdicts(d place.Decision) []wire.CardVerdict {
	verdicts := []wire.CardVerdict{}
	for _, v := range d.Verdicts {
		out := wire.CardVerdict{
			UUID: string(v.UUID), Index: v.Index, Reason: string(v.Reason), Why: v.Reason.Words(),
			FreeShare: uint32(v.Free.Units), FreeBytes: uint64(v.Free.Memory),
			WantShare: uint32(v.Want.Units), WantBytes: uint64(v.Want.Memory), Jobs: v.Jobs,
		}
		if card, here := s.cards.Of(v.UUID); here {
			out.Type = card.Type
		}
		verdicts = append(verdicts, out)
	}
	return verdicts
}

// nameJobs adds the jobs on each card that the asker may see.
func (s *Server) nameJobs(cards []wire.CardVerdict, cred wire.Cred) {
	for _, rec := range s.ledger.List() {
		if rec.State != ledger.Granted || !wire.IsRoot(cred.UID) && rec.UID != cred.UID {
			continue
		}
		for _, held := range rec.Placement.Cards {
			i := slices.IndexFunc(cards, func(c wire.CardVerdict) bool { return c.UUID == string(held.UUID) })
			if i >= 0 {
				cards[i].JobIDs = append(cards[i].JobIDs, rec.JobID)
			}
		}
	}
}
