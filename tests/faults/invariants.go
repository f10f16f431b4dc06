// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/storm"
)

// Want is what a job asked for: a share of one card.
type Want struct {
	UID    uint32
	Share  int    // hundredths of the card
	Memory uint64 // bytes
}

// Slack of the checks, for what no limit promises to the last bit.
const (
	// memorySlack is what the audit tolerates by default.
	memorySlack = 64 << 20
	// A budget that was saved may be spent at once, and work in flight ends.
	computeWindow = 3 * time.Second
	computePoints = 5 // hundredths of the card
	computeBurst  = 300 * time.Millisecond
	aloneBelow    = 2 // hundredths of the card that all others have
	// What two readings that are not one may differ in.
	announcedTimes = 5
)

// Invariants holds one observation after the other against what must always be.
// It keeps what it has seen: a grant can only be lost where there was one.
type Invariants struct {
	Checked int // invariants that were looked at, over all observations
	Alone   int // of them, compute limits of jobs that had their card alone
	// Over is the most that a job had in a window beyond its share alone, in GPU time:
	// alone on its card, and beside others, which is looked at only.
	Over struct {
		Alone, Beside time.Duration
		BesideTold    string // of the job that had it
	}

	want    map[uint32]Want
	exempt  map[uint32]bool // jobs whose processes nobody looks after
	ended   map[uint32]bool // jobs whose Epilog has begun, whatever a slurmctld says that forgot it
	drainOK string          // a reason that the fault under way must give; "": none

	ledger  map[uint32]storm.Entry // last seen
	run     map[uint32]int         // restarts of the run that the grant in the ledger is for
	missing map[uint32]gone        // granted once, and not in the ledger
	busy    map[uint32]*use
	silent  map[uint32]int // observations in a row with memory that is not announced
}

// gone is when a grant was first seen missing.
type gone struct {
	at       time.Time
	restarts int
	told     bool // that it is lost
}

// use is GPU time of a job.
type use struct {
	total  time.Duration
	others time.Duration    // of all other jobs, on the same card
	last   map[place]uint64 // busy_ns
	points []point
}

// place is the n-th context of a process on a card.
type place struct{ pid, card, n int }

type point struct {
	at            time.Time
	total, others time.Duration
	schedule      libvgpu.Schedule
	budget        libvgpu.Budget
}

// NewInvariants knows of no job.
func NewInvariants() *Invariants {
	return &Invariants{
		want: map[uint32]Want{}, exempt: map[uint32]bool{}, ended: map[uint32]bool{}, ledger: map[uint32]storm.Entry{},
		run: map[uint32]int{}, missing: map[uint32]gone{}, busy: map[uint32]*use{}, silent: map[uint32]int{},
	}
}

// invariant is one of those that are checked in every observation.
type invariant struct {
	name  string
	check func(Observation) []string
}

func (inv *Invariants) all() []invariant {
	return []invariant{
		{"memory limit", inv.memory},
		{"compute limit", inv.compute},
		{"announced", inv.announced},
		{"grant file", inv.grants},
		{"ledger", inv.record},
		{"lost", inv.lost},
		{"doubled", inv.doubled},
		{"100 %", inv.full},
		{"drained", inv.drained},
		{"stuck", inv.stuck},
	}
}

// Check returns what is wrong with an observation, each with the name of the
// invariant in front.
func (inv *Invariants) Check(o Observation) []string {
	var wrong []string
	for _, c := range inv.all() {
		inv.Checked++
		for _, text := range c.check(o) {
			wrong = append(wrong, c.name+": "+text)
		}
	}
	if o.LedgerErr == nil {
		inv.ledger = o.Ledger
	}
	return wrong
}

// held is what the card says that each job holds, by card.
func held(o Observation) map[uint32]map[int]uint64 {
	out := map[uint32]map[int]uint64{}
	for _, card := range o.Cards {
		seen := map[int]bool{}
		for _, c := range card.Contexts {
			job := o.Jobs[c.PID]
			if seen[c.PID] || job == 0 {
				continue
			}
			seen[c.PID] = true
			if out[job] == nil {
				out[job] = map[int]uint64{}
			}
			out[job][card.Index] += c.MemUsed
		}
	}
	return out
}

// memory: on the card, the processes of a job never hold more than its limit.
func (inv *Invariants) memory(o Observation) (wrong []string) {
	for job, cards := range held(o) {
		w, known := inv.want[job]
		if !known {
			continue
		}
		if len(cards) > 1 {
			wrong = append(wrong, fmt.Sprintf("job %d is on %d cards, want one", job, len(cards)))
		}
		for card, bytes := range cards {
			if bytes > w.Memory {
				wrong = append(wrong, fmt.Sprintf("job %d holds %d MiB of card %d, want at most %d", job, bytes>>20, card, w.Memory>>20))
			}
		}
	}
	return wrong
}

// compute: over some seconds in which no other job computes, a job in hard mode
// has no more of the card's time than its share. (What jobs that compete get is
// for the tests of shares: here, no limit may open.)
func (inv *Invariants) compute(o Observation) (wrong []string) {
	for _, card := range o.Cards {
		inv.add(o, card)
	}
	for job, u := range inv.busy {
		if _, there := o.Files[job]; !there && !slices.Contains(slices.Collect(maps.Values(o.Jobs)), job) {
			delete(inv.busy, job) // has ended
			continue
		}
		f := o.Files[job]
		u.points = append(u.points, point{o.At, u.total, u.others, f.Schedule, f.Budget})
		for len(u.points) > 2 && o.At.Sub(u.points[1].at) >= computeWindow {
			u.points = u.points[1:]
		}
		first := u.points[0]
		span, used, others := o.At.Sub(first.at), u.total-first.total, u.others-first.others
		w, known := inv.want[job]
		if !known || span < computeWindow {
			continue
		}
		over := used - span*time.Duration(w.Share)/100
		if others > span*aloneBelow/100 {
			if over > inv.Over.Beside {
				inv.Over.Beside = over
				inv.Over.BesideTold = fmt.Sprintf("job %d of %d %%: %s beside %s", job, w.Share, told(u.points), inv.sharesOf(o))
			}
			continue
		}
		inv.Over.Alone = max(inv.Over.Alone, over)
		inv.Alone++
		if most := span*time.Duration(w.Share+computePoints)/100 + computeBurst; used > most {
			wrong = append(wrong, fmt.Sprintf("job %d, alone on its card, had %.0f %% of it for %.1f s, want at most %d %% and a burst of %s; %s",
				job, 100*used.Seconds()/span.Seconds(), span.Seconds(), w.Share+computePoints, computeBurst, told(u.points)))
			u.points = u.points[len(u.points)-1:]
		}
	}
	return wrong
}

// sharesOf lists the jobs that compute, each with its share and what it had so far.
func (inv *Invariants) sharesOf(o Observation) string {
	var text []string
	for job, u := range inv.busy {
		if len(u.points) == 0 {
			continue // seen for the first time, and not yet looked at
		}
		f := o.Files[job]
		text = append(text, fmt.Sprintf("job %d of %d %% (%d ms; gate %d, slice %d us, balance %d ms)", job, inv.want[job].Share,
			(u.total-u.points[0].total).Milliseconds(), f.Schedule.Gate, f.Schedule.SliceUS, f.Budget.BalanceNS/int64(time.Millisecond)))
	}
	slices.Sort(text)
	return strings.Join(text, ", ")
}

// told is what there is to find out why a job had more than its share: over the
// observations of a window, what it was charged and had saved up by its own account,
// and what gresd had told it.
func told(points []point) string {
	first, last := points[0], points[len(points)-1]
	ms := func(ns int64) int64 { return ns / int64(time.Millisecond) }
	text := fmt.Sprintf("%d looks; charged %d ms, balance %d to %d ms;", len(points),
		ms(int64(last.budget.ChargedNS-first.budget.ChargedNS)), ms(first.budget.BalanceNS), ms(last.budget.BalanceNS))
	for i, p := range points {
		if i > 0 && p.schedule == points[i-1].schedule {
			continue
		}
		text += fmt.Sprintf(" at %.1f s: had %d ms, others %d ms, gate %d, busy others %d, weight %d %%, slice %d us;", p.at.Sub(first.at).Seconds(),
			(p.total - first.total).Milliseconds(), (p.others - first.others).Milliseconds(), p.schedule.Gate, p.schedule.Others,
			p.schedule.WeightPPM/10000, p.schedule.SliceUS)
	}
	return text
}

// add counts the time that each job had of a card since the last observation.
func (inv *Invariants) add(o Observation, card simgpu.CardStatus) {
	contexts, more, sum := map[int]int{}, map[uint32]time.Duration{}, time.Duration(0)
	for _, c := range card.Contexts {
		at := place{c.PID, card.Index, contexts[c.PID]}
		contexts[c.PID]++
		job := o.Jobs[c.PID]
		u := inv.busy[job]
		if u == nil {
			u = &use{last: map[place]uint64{}}
			inv.busy[job] = u
		}
		if c.BusyNS > u.last[at] {
			d := time.Duration(c.BusyNS - u.last[at])
			more[job], sum = more[job]+d, sum+d
		}
		u.last[at] = c.BusyNS // less: another process of that number
	}
	for job := range more {
		inv.busy[job].total += more[job]
	}
	for job, u := range inv.busy {
		u.others += sum - more[job]
	}
}

// announced: what a job holds is in its cache, where its processes and gresd see it.
func (inv *Invariants) announced(o Observation) (wrong []string) {
	for job, cards := range held(o) {
		f, there := o.Files[job]
		sum := uint64(0)
		for _, bytes := range cards {
			sum += bytes
		}
		if !there || inv.exempt[job] || sum <= f.Announced+memorySlack {
			inv.silent[job] = 0
			continue
		}
		if inv.silent[job]++; inv.silent[job] == announcedTimes {
			wrong = append(wrong, fmt.Sprintf("job %d holds %d MiB, its cache says %d", job, sum>>20, f.Announced>>20))
		}
	}
	return wrong
}

// grants: a grant file says what was asked for, and nothing opens it.
func (inv *Invariants) grants(o Observation) (wrong []string) {
	for job, f := range o.Files {
		w, known := inv.want[job]
		switch {
		case f.GrantErr != nil:
			wrong = append(wrong, fmt.Sprintf("job %d: %v", job, f.GrantErr))
		case !known:
		case f.Grant.JobID != job || f.Grant.UID != w.UID || len(f.Grant.Cards) != 1:
			wrong = append(wrong, fmt.Sprintf("job %d: says %+v, want %+v", job, f.Grant, w))
		default:
			c := f.Grant.Cards[0]
			if c.MemLimit != w.Memory || int(c.Share) != w.Share || int(c.Cores) > w.Share || c.Cores == 0 || c.Mode != libvgpu.ModeHard {
				wrong = append(wrong, fmt.Sprintf("job %d: says %+v, want %+v in hard mode", job, c, w))
			}
		}
	}
	return wrong
}

// record: the ledger can always be read, and says what was asked for.
func (inv *Invariants) record(o Observation) (wrong []string) {
	if o.LedgerErr != nil {
		return []string{o.LedgerErr.Error()}
	}
	for job, e := range o.Ledger {
		w, known := inv.want[job]
		if !known || !e.Granted {
			continue
		}
		if e.UID != w.UID || len(e.Cards) != 1 || e.Cards[0].Share != w.Share || e.Cards[0].Memory != w.Memory {
			wrong = append(wrong, fmt.Sprintf("job %d: %+v, want %+v", job, e, w))
		}
		if before, was := inv.ledger[job]; was && before.Granted && len(before.Cards) == 1 && len(e.Cards) == 1 &&
			before.Cards[0].UUID != e.Cards[0].UUID {
			wrong = append(wrong, fmt.Sprintf("job %d was moved from card %d to %d", job, before.Cards[0].Index, e.Cards[0].Index))
		}
	}
	return wrong
}

// lost: a job that Slurm calls running after its grant was missing has lost it.
func (inv *Invariants) lost(o Observation) (wrong []string) {
	if o.LedgerErr != nil || o.Slurm == nil {
		return nil
	}
	for job := range inv.ledger {
		if _, there := o.Ledger[job]; there {
			continue
		}
		if run, seen := inv.run[job]; seen {
			inv.missing[job] = gone{at: o.At, restarts: run}
		}
	}
	for job, e := range o.Ledger {
		if s := o.Slurm.Jobs[job]; e.Granted && s.State == "RUNNING" {
			if _, back := inv.missing[job]; !back { // doubled looks at those
				inv.run[job] = s.Restarts
			}
		}
	}
	for job, g := range inv.missing {
		if _, back := o.Ledger[job]; back || g.told || !o.Slurm.Asked.After(g.at) {
			continue
		}
		if s := o.Slurm.Jobs[job]; s.State == "RUNNING" && s.Restarts == g.restarts && !inv.ended[job] {
			wrong = append(wrong, fmt.Sprintf("job %d runs, and its grant has been missing since %s", job, g.at.Format("15:04:05.000")))
			g.told = true
			inv.missing[job] = g
		}
	}
	return wrong
}

// doubled: what was released does not come back, unless Slurm starts the job anew.
func (inv *Invariants) doubled(o Observation) (wrong []string) {
	if o.LedgerErr != nil || o.Slurm == nil {
		return nil
	}
	for job, g := range inv.missing {
		if e, back := o.Ledger[job]; !back || !e.Granted || !o.Slurm.Asked.After(o.At.Add(-time.Second)) {
			continue
		}
		delete(inv.missing, job)
		if o.Slurm.Jobs[job].Restarts == g.restarts {
			wrong = append(wrong, fmt.Sprintf("job %d was released at %s and is granted again", job, g.at.Format("15:04:05.000")))
		}
	}
	return wrong
}

// full: by the ledger, by the grant files and by the card's own account, nothing
// is above what there is.
func (inv *Invariants) full(o Observation) (wrong []string) {
	type sum struct {
		share int
		bytes uint64
	}
	for _, card := range o.Cards {
		for what, jobs := range map[string]map[uint32]storm.Entry{"ledger": o.Ledger, "grants": entries(o.Files)} {
			var s sum
			for _, e := range jobs {
				for _, c := range e.Cards {
					if e.Granted && c.UUID == card.UUID {
						s.share, s.bytes = s.share+c.Share, s.bytes+c.Memory
					}
				}
			}
			if s.share > 100 || s.bytes > card.Memory {
				wrong = append(wrong, fmt.Sprintf("card %d, by the %s: %d %% and %d of %d MiB",
					card.Index, what, s.share, s.bytes>>20, card.Memory>>20))
			}
		}
		if card.Used > card.Memory {
			wrong = append(wrong, fmt.Sprintf("card %d: %d of %d MiB are in use", card.Index, card.Used>>20, card.Memory>>20))
		}
	}
	return wrong
}

// entries are the grants that are in force by their files.
func entries(files map[uint32]Files) map[uint32]storm.Entry {
	out := map[uint32]storm.Entry{}
	for job, f := range files {
		if f.GrantErr != nil {
			continue
		}
		e := storm.Entry{Granted: !f.Grant.Revoked, UID: f.Grant.UID}
		for _, c := range f.Grant.Cards {
			e.Cards = append(e.Cards, storm.EntryCard{UUID: c.UUID, Share: int(c.Share), Memory: c.MemLimit})
		}
		out[job] = e
	}
	return out
}

// drained: nothing that gresd or its Prolog did takes a node out of use.
func (inv *Invariants) drained(o Observation) []string {
	if o.Slurm == nil || !strings.Contains(o.Slurm.State, "DRAIN") ||
		inv.drainOK != "" && strings.Contains(o.Slurm.Reason, inv.drainOK) {
		return nil
	}
	return []string{fmt.Sprintf("node is %s, reason %q", o.Slurm.State, o.Slurm.Reason)}
}

// stuck: programs that must be quick have ended.
func (inv *Invariants) stuck(o Observation) []string { return o.Old }

// Released looks at a node without jobs: nothing is held any more.
func (inv *Invariants) Released(o Observation) (wrong []string) {
	inv.Checked++
	if o.LedgerErr != nil || len(o.Ledger) > 0 {
		wrong = append(wrong, fmt.Sprintf("released: the ledger has jobs %v, error %v", slices.Sorted(maps.Keys(o.Ledger)), o.LedgerErr))
	}
	if len(o.Files) > 0 {
		wrong = append(wrong, fmt.Sprintf("released: folders of jobs %v", slices.Sorted(maps.Keys(o.Files))))
	}
	for _, card := range o.Cards {
		if card.Used != 0 || len(card.Contexts) > 0 {
			wrong = append(wrong, fmt.Sprintf("released: card %d has %d MiB in use, contexts %+v", card.Index, card.Used>>20, card.Contexts))
		}
	}
	return wrong
}
