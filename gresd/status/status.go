// SPDX-License-Identifier: Apache-2.0

// Package report is what gresd tells of its cards and jobs: to users and administrators at its
// socket, to Prometheus, and of a job that ends to what keeps it.
package status

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/endedjobs"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Commands are Slurm's, as gresd finds them.
type Commands interface {
	Scontrol() string // its path; "" where it is not found
	Problem() string  // why they do not work; "" if they do
}

// Parts are the sources of a Reporter. All but Samples, Commands, Usage, Past, Work and Slices must be set.
type Parts struct {
	Config   *config.InForce
	Cards    *cards.Cards
	Node     *node.Node
	Ledger   *ledger.Ledger
	Grants   *grant.Store
	InUse    func() place.InUse      // of each card
	ByMPS    func(jobID uint32) bool // the job computes through an MPS server
	Samples  Samples                 // nil: not known
	Commands Commands                // nil: not known
	Usage    *endedjobs.Writer       // nil: no accounting
	Past     *endedjobs.Store        // nil: no reports of ended jobs
	Problems []func() []string       // what else an administrator should look at
	Private  []func() []string       // and what names jobs or processes of users: for root alone
	Version  string
	Log      *slog.Logger

	Work   func(arbiter.Key) (arbiter.Work, bool) // of a job on a card; nil: not known
	Slices func(gpu.UUID) (probe.Verdict, string) // whether a card obeys time slices, and why this was not tested; nil: not known
}

// Reporter is made with [New].
type Reporter struct {
	Parts
	started time.Time

	rateCache  rateCache
	gpuSeconds gpuSeconds
}

// New returns a Reporter of a gresd that starts now.
func New(parts Parts) *Reporter { return &Reporter{Parts: parts, started: time.Now()} }

// viewAge is how old an answer about a job's processes may be. Whatever the
// number of scrapes and clients, each cache file is read no more often.
const viewAge = time.Second

// Snapshot returns the cards and the granted jobs of the node, for metrics.
func (r *Reporter) Snapshot() ([]wire.Card, []wire.Job) {
	jobs := slices.DeleteFunc(r.jobs(r.Config.Get().Metrics.Processes), func(j wire.Job) bool { return j.State != string(ledger.Granted) })
	return r.cardsInUse(), jobs
}

// Status is for root with all, for others without what names jobs or processes of users, which
// Slurm may keep private (PrivateData).
func (r *Reporter) Status(ctx context.Context, root bool) *wire.Status {
	st := &wire.Status{
		Version: r.Version, Node: strings.Join(r.Node.List(), ","), Started: r.started,
		Placement: r.Config.Get().Placement.By, Jobs: r.Ledger.Len(), Cards: r.cardsInUse(),
	}
	r.addCardRates(ctx, st.Cards)
	if err := r.Cards.Now().Err; err != nil {
		st.Problems = append(st.Problems, err.Error())
	}
	if r.Commands != nil {
		st.Scontrol, st.SlurmProblem = r.Commands.Scontrol(), r.Commands.Problem()
		if st.SlurmProblem != "" {
			st.Problems = append(st.Problems, st.SlurmProblem)
		}
	}
	more := r.Problems
	if root {
		more = slices.Concat(more, r.Private, []func() []string{r.deprived, r.unwatched})
	}
	for _, of := range more {
		st.Problems = append(st.Problems, of()...)
	}
	return st
}

// Jobs are those that a user may see: all for root, else one's own.
func (r *Reporter) Jobs(ctx context.Context, cred wire.Cred, processes bool) []wire.Job {
	jobs := r.jobs(processes)
	r.addJobRates(ctx, jobs)
	if !wire.IsRoot(cred.UID) {
		jobs = slices.DeleteFunc(jobs, func(j wire.Job) bool { return j.UID != cred.UID })
	}
	return jobs
}

func (r *Reporter) cardList() []wire.Card {
	inUse := r.InUse()
	cores := map[string]uint32{}
	for _, rec := range r.Ledger.List() {
		if rec.State == ledger.Granted {
			for _, c := range rec.Placement.Cards {
				cores[string(c.UUID)] += uint32(c.Cores)
			}
		}
	}
	cards := []wire.Card{}
	for _, c := range r.Cards.Now().Cards {
		use := inUse[c.UUID]
		var verdict probe.Verdict
		var why string
		if r.Slices != nil {
			verdict, why = r.Slices(c.UUID)
		}
		cards = append(cards, wire.Card{
			UUID: string(c.UUID), Index: c.Index, Name: c.Name, Type: c.Type,
			Healthy: c.Healthy && !c.MIG, Why: r.Cards.WhyNot(c), MemoryBytes: uint64(c.Memory), PhysicalBytes: uint64(c.Physical),
			GrantedBytes: uint64(use.Memory), Share: uint32(use.Units),
			Cores: cores[string(c.UUID)], Jobs: use.Jobs, CardUse: wire.CardUse{MIG: c.MIG},
			Slices: string(verdict), SlicesWhy: why,
		})
	}
	return cards
}

func (r *Reporter) jobs(processes bool) []wire.Job {
	jobs := []wire.Job{}
	records := r.Ledger.List()
	samples := r.samplesOfJobs(records)
	for _, rec := range records {
		jobs = append(jobs, r.jobOf(rec, samples, processes))
	}
	return jobs
}

func (r *Reporter) jobOf(rec ledger.Record, samples map[gpu.UUID]gputime.Card, processes bool) wire.Job {
	job := wire.Job{
		JobID: rec.JobID, UID: rec.UID, User: rec.User, Account: rec.Account,
		Partition: rec.Partition, State: string(rec.State), Reason: rec.Reason,
		Mode: string(rec.Mode), Ceiling: uint32(rec.Ceiling), Priority: string(rec.Priority),
		Created: rec.Created,
	}
	if e := rec.Request.Engine; e != gpu.Time {
		job.Engine = string(e)
	}
	job.Cards, job.Messages = r.jobCards(rec, samples, processes), r.Grants.Messages(rec.JobID)
	return job
}

func (r *Reporter) jobCards(rec ledger.Record, samples map[gpu.UUID]gputime.Card, processes bool) []wire.JobCard {
	view, err := r.Grants.Cache(rec.JobID, viewAge)
	known := err == nil && len(view.Cards) == len(rec.Placement.Cards)
	var cards []wire.JobCard
	for i, c := range rec.Placement.Cards {
		sched := r.Grants.Schedule(rec.JobID, i)
		card := wire.JobCard{
			UUID: string(c.UUID), Index: c.Index, Share: uint32(c.Share), Cores: uint32(c.Cores),
			LimitBytes: uint64(c.Memory), PhysicalBytes: uint64(cmp.Or(c.Physical, c.Memory)), SliceUS: sched.SliceUS, Gate: sched.Gate != 0,
			JobUse: r.askedOf(rec, i),
		}
		by := r.addWork(&card, rec)
		if known {
			r.addUse(&card, rec, i, view, samples[c.UUID], processes)
			if card.Utilization != nil {
				card.LimitedBy = by.by(new(100 * *card.Utilization))
			}
		}
		cards = append(cards, card)
	}
	return cards
}

// Ended keeps what a job has used that ends. The job's lock is held: the driver is not asked.
func (r *Reporter) Ended(jobID uint32) {
	rec, known := r.Ledger.Get(jobID)
	if r.Usage == nil && r.Past == nil || !known || rec.State != ledger.Granted {
		return
	}
	view, err := r.Grants.Cache(jobID, 0)
	if err != nil {
		r.Log.Warn("what a job has used is not known", "job_id", jobID, "error", err)
		return
	}
	r.keepReport(rec)
	used := endedjobs.Used{JobID: jobID, Node: "unknown"}
	if names := r.Node.List(); len(names) > 0 {
		used.Node, used.Conf = names[0], r.Node.All()[names[0]]
	}
	// The job could write into its cache what it liked: no more than it can have
	// had is believed.
	for i, c := range view.Cards[:min(len(view.Cards), len(rec.Placement.Cards))] {
		used.Memory += min(gpu.Bytes(c.MemPeak), rec.Placement.Cards[i].Memory)
		used.GPU += min(r.gpuTime(rec, rec.Placement.Cards[i].UUID, c.Budget.ChargedNS), max(0, time.Since(rec.Created)))
	}
	r.Usage.Note(used)
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
