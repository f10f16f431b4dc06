// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/sample"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/usage"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// viewAge is how old an answer about a job's processes may be. Whatever the
// number of scrapes and clients, each cache file is read no more often.
const viewAge = time.Second

// Snapshot returns the cards and the granted jobs of the node, for metrics.
func (s *Server) Snapshot() ([]wire.Card, []wire.Job) {
	jobs := slices.DeleteFunc(s.jobs(s.cfg().Metrics.Processes), func(j wire.Job) bool { return j.State != string(ledger.Granted) })
	return s.cardsInUse(), jobs
}

// status is for root with all, for others without what names jobs or processes of users, which
// Slurm may keep private (PrivateData).
func (s *Server) status(root bool) *wire.Status {
	st := &wire.Status{
		Version: s.Version, Node: strings.Join(s.node.List(), ","), Started: s.started,
		Placement: s.cfg().Placement.Mode, Jobs: s.Ledger.Len(), Cards: s.cardsInUse(),
	}
	select {
	case <-s.ready:
		st.Ready = true
	default:
	}
	if err := s.Cards.Now().Err; err != nil {
		st.Problems = append(st.Problems, err.Error())
	}
	if s.Commands != nil {
		st.Scontrol, st.SlurmProblem = s.Commands.Scontrol(), s.Commands.Problem()
		if st.SlurmProblem != "" {
			st.Problems = append(st.Problems, st.SlurmProblem)
		}
	}
	st.Problems = append(st.Problems, s.unreconciled.problems()...)
	st.Problems = append(st.Problems, s.Cards.Problems()...)
	more := s.Problems
	if root {
		more = slices.Concat(more, s.Private, []func() []string{s.mps.Problems, s.deprived, s.unwatched})
	}
	for _, of := range more {
		st.Problems = append(st.Problems, of()...)
	}
	return st
}

func (s *Server) cardList() []wire.Card {
	inUse := s.inUse()
	cores := map[string]uint32{}
	for _, rec := range s.Ledger.List() {
		if rec.State == ledger.Granted {
			for _, c := range rec.Placement.Cards {
				cores[string(c.UUID)] += uint32(c.Cores)
			}
		}
	}
	cards := []wire.Card{}
	for _, c := range s.Cards.Now().Cards {
		use := inUse[c.UUID]
		cards = append(cards, wire.Card{
			UUID: string(c.UUID), Index: c.Index, Name: c.Name, Type: c.Type,
			Healthy: c.Healthy && !c.MIG, Why: s.Cards.WhyNot(c), MemoryBytes: uint64(c.Memory), PhysicalBytes: uint64(c.Physical),
			GrantedBytes: uint64(use.Memory), Share: uint32(use.Units),
			Cores: cores[string(c.UUID)], Jobs: use.Jobs, CardUse: wire.CardUse{MIG: c.MIG},
		})
	}
	return cards
}

func (s *Server) jobs(processes bool) []wire.Job {
	jobs := []wire.Job{}
	records := s.Ledger.List()
	samples := s.samplesOfJobs(records)
	for _, rec := range records {
		jobs = append(jobs, s.jobOf(rec, samples, processes))
	}
	return jobs
}

func (s *Server) jobOf(rec ledger.Record, samples map[gpu.UUID]sample.Card, processes bool) wire.Job {
	job := wire.Job{
		JobID: rec.JobID, UID: rec.UID, User: rec.User, Account: rec.Account,
		Partition: rec.Partition, State: string(rec.State), Reason: rec.Reason,
		Mode: string(rec.Mode), Ceiling: uint32(rec.Ceiling), Priority: string(rec.Priority),
		Created: rec.Created,
	}
	if rec.Request.Engine == gpu.MPS {
		job.Engine = string(gpu.MPS)
	}
	job.Cards, job.Messages = s.jobCards(rec, samples, processes), s.Grants.Messages(rec.JobID)
	return job
}

func (s *Server) jobCards(rec ledger.Record, samples map[gpu.UUID]sample.Card, processes bool) []wire.JobCard {
	view, err := s.Grants.Cache(rec.JobID, viewAge)
	known := err == nil && len(view.Cards) == len(rec.Placement.Cards)
	read := &view
	if !known {
		read = nil
	}
	var cards []wire.JobCard
	for i, c := range rec.Placement.Cards {
		sched := s.Grants.Schedule(rec.JobID, i)
		card := wire.JobCard{
			UUID: string(c.UUID), Index: c.Index, Share: uint32(c.Share), Cores: uint32(c.Cores),
			LimitBytes: uint64(c.Memory), PhysicalBytes: uint64(cmp.Or(c.Physical, c.Memory)), SliceUS: sched.SliceUS, Gate: sched.Gate != 0,
			JobUse: s.jobUse(rec, i, read, samples[c.UUID], processes),
		}
		if known {
			used, seconds, procs := with(view.Cards[i].MemUsed, s.Grants.Outside(rec.JobID, i)), s.gpuTime(rec.JobID, c.UUID, view.Cards[i].Budget.ChargedNS).Seconds(), 0
			for _, slot := range view.Slots {
				if slot.Alive && slot.Cards[i].Contexts > 0 {
					procs++
				}
			}
			refused := view.Cards[i].Budget.Refused
			card.UsedBytes, card.GPUSeconds, card.Processes, card.Refused = &used, &seconds, &procs, &refused
		}
		cards = append(cards, card)
	}
	return cards
}

// noteUsage keeps what an ended job has used. s.mu is held.
func (s *Server) noteUsage(jobID uint32) {
	rec, known := s.Ledger.Get(jobID)
	if s.Usage == nil && s.Past == nil || !known || rec.State != ledger.Granted {
		return
	}
	view, err := s.Grants.Cache(jobID, 0)
	if err != nil {
		s.Log.Warn("what a job has used is not known", "job_id", jobID, "error", err)
		return
	}
	s.keepReport(rec)
	used := usage.Used{JobID: jobID, Node: "unknown"}
	if names := s.node.List(); len(names) > 0 {
		used.Node, used.Conf = names[0], s.node.All()[names[0]]
	}
	// The job could write into its cache what it liked: no more than it can have
	// had is believed.
	for i, c := range view.Cards[:min(len(view.Cards), len(rec.Placement.Cards))] {
		used.Memory += min(gpu.Bytes(c.MemPeak), rec.Placement.Cards[i].Memory)
		used.GPU += min(s.gpuTime(jobID, rec.Placement.Cards[i].UUID, c.Budget.ChargedNS), time.Since(rec.Created))
	}
	s.Usage.Note(used)
}

// with adds what the card counts beyond the announced bytes, as libvgpu does
// when it holds a job to its limit. The sum neither wraps nor falls below 0.
func with(announced uint64, outside int64) uint64 {
	if outside < 0 {
		return announced - min(announced, uint64(-outside))
	}
	if sum := announced + uint64(outside); sum >= announced {
		return sum
	}
	return announced
}

func ofUser(jobs []wire.Job, uid uint32) []wire.Job {
	return slices.DeleteFunc(jobs, func(j wire.Job) bool { return j.UID != uid })
}
