// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/storm"
)

const uuid = "GPU-1"

// well is a node where all is as it should be at a time: job 7 has 30 % of the
// only card and one process on it.
func well(at time.Duration) Observation {
	now := time.Unix(1000, 0).Add(at)
	return Observation{
		At: now,
		Cards: []simgpu.CardStatus{{Memory: 80 * gib, UUID: uuid, Used: 2 * gib, Contexts: []simgpu.ContextStatus{
			{PID: 50, MemUsed: 2 * gib, BusyNS: uint64(at.Nanoseconds()) * 30 / 100},
		}}},
		Jobs: map[int]uint32{50: 7},
		Ledger: map[uint32]storm.Entry{7: {Granted: true, UID: 33, Cards: []storm.EntryCard{
			{UUID: uuid, Share: 30, Cores: 30, Memory: 24 * gib},
		}}},
		Files: map[uint32]Files{7: {Announced: 2 * gib, Grant: libvgpu.GrantSpec{
			JobID: 7, UID: 33,
			Cards: []libvgpu.GrantCard{{UUID: uuid, MemLimit: 24 * gib, Share: 30, Cores: 30, Mode: libvgpu.ModeHard}},
		}}},
		Slurm: &SlurmView{Asked: now, Answered: now, State: "MIXED", Jobs: map[uint32]SlurmJob{7: {State: "RUNNING"}}},
	}
}

// seconds is how long the tests look at a node.
const seconds = 10

// found lets the invariants look at a node that is changed from the fifth second
// on, and returns what they say.
func found(change func(*Observation)) []string {
	inv := NewInvariants()
	inv.want[7] = Want{UID: 33, Share: 30, Memory: 24 * gib}
	inv.want[8] = Want{UID: 5, Share: 30, Memory: 24 * gib}
	var wrong []string
	for at := time.Duration(0); at < seconds*time.Second; at += 100 * time.Millisecond {
		o := well(at)
		if at >= seconds/2*time.Second && change != nil {
			change(&o)
		}
		wrong = append(wrong, inv.Check(o)...)
	}
	return wrong
}

func TestInvariantsHold(t *testing.T) {
	if wrong := found(nil); len(wrong) > 0 {
		t.Errorf("a node where all is well: %q", wrong)
	}
	for what, change := range map[string]func(*Observation){
		"slurmctld does not answer": func(o *Observation) { o.Slurm = nil },
		"the job has ended": func(o *Observation) {
			o.Cards[0].Contexts, o.Cards[0].Used, o.Ledger, o.Files = nil, 0, nil, nil
			o.Slurm.Jobs[7] = SlurmJob{State: "COMPLETED"}
		},
		"the job runs for a second time": func(o *Observation) {
			o.Slurm.Jobs[7] = SlurmJob{State: "RUNNING", Restarts: 1}
			o.Cards[0].Contexts[0].BusyNS /= 2 // another process of that number
			if o.At.Sub(time.Unix(1000, 0)) < 7*time.Second {
				o.Cards[0].Contexts, o.Cards[0].Used, o.Ledger, o.Files = nil, 0, nil, nil
				o.Slurm.Jobs[7] = SlurmJob{State: "PENDING", Restarts: 1}
			}
		},
		"jobs come and go beside it": func(o *Observation) { // many: which is looked at first is left to chance
			age := o.At.Sub(time.Unix(1000, 0))
			o.Cards[0].Contexts[0].BusyNS *= 2
			for job := range uint32(20) {
				pid := 100 + int(job) + int(age/time.Second)*100
				o.Jobs[pid] = uint32(pid)
				o.Cards[0].Contexts = append(o.Cards[0].Contexts, simgpu.ContextStatus{PID: pid, BusyNS: uint64(age / 20)})
			}
		},
		"slurmd does not answer": func(o *Observation) { o.Slurm.State, o.Slurm.Reason = "DOWN*", "Not responding" },
	} {
		if wrong := found(change); len(wrong) > 0 {
			t.Errorf("%s: %q", what, wrong)
		}
	}
}

// Each invariant finds what it is for, and no other one takes it for something else.
func TestInvariantsFail(t *testing.T) {
	second := func(o *Observation) int { return int(o.At.Sub(time.Unix(1000, 0)).Seconds()) }
	left := names()
	another := storm.Entry{Granted: true, UID: 5, Cards: []storm.EntryCard{{UUID: uuid, Share: 80, Memory: 24 * gib}}}
	for _, c := range []struct {
		name, want string
		change     func(*Observation)
	}{
		{"memory limit", "job 7 holds 25600 MiB of card 0, want at most 24576", func(o *Observation) {
			o.Cards[0].Contexts[0].MemUsed = 25 * gib
			f := o.Files[7]
			f.Announced = 25 * gib
			o.Files[7] = f
		}},
		{"memory limit", "job 7 is on 2 cards", func(o *Observation) {
			o.Cards = append(o.Cards, o.Cards[0])
			o.Cards[1].Index, o.Cards[1].UUID = 1, "GPU-2"
			o.Cards[1].Contexts = []simgpu.ContextStatus{{PID: 50}} // and does nothing there
		}},
		{"compute limit", "want at most 35 %", func(o *Observation) {
			o.Cards[0].Contexts[0].BusyNS *= 2 // from 30 % on, by 3 s more in one step, then 60 %
		}},
		{"announced", "job 7 holds 2048 MiB, its cache says 0", func(o *Observation) {
			f := o.Files[7]
			f.Announced = 0
			o.Files[7] = f
		}},
		{"grant file", "want {UID:33 Share:30", func(o *Observation) {
			f := o.Files[7]
			f.Grant.Cards = slices.Clone(f.Grant.Cards)
			f.Grant.Cards[0].MemLimit = 0
			o.Files[7] = f
		}},
		{"grant file", "in hard mode", func(o *Observation) {
			f := o.Files[7]
			f.Grant.Cards = slices.Clone(f.Grant.Cards)
			f.Grant.Cards[0].Mode = libvgpu.ModeSoft
			o.Files[7] = f
		}},
		{"grant file", "says {JobID:8", func(o *Observation) { // another job's
			f := o.Files[7]
			f.Grant.JobID = 8
			o.Files[7] = f
		}},
		{"grant file", "not a grant", func(o *Observation) {
			f := o.Files[7]
			f.GrantErr = libvgpu.ErrNotGrant
			o.Files[7] = f
		}},
		{"ledger", "torn", func(o *Observation) { o.LedgerErr = errors.New("torn") }},
		{"ledger", "want {UID:33 Share:30", func(o *Observation) {
			e := o.Ledger[7]
			e.Cards = append(e.Cards, e.Cards[0])
			e.Cards[1].UUID = "GPU-2"
			o.Ledger[7] = e
		}},
		{"ledger", "was moved from card", func(o *Observation) {
			o.Ledger[7].Cards[0].UUID = "GPU-2"
			f := o.Files[7]
			f.Grant.Cards = slices.Clone(f.Grant.Cards)
			f.Grant.Cards[0].UUID = "GPU-2"
			o.Files[7] = f
		}},
		{"lost", "job 7 runs, and its grant has been missing", func(o *Observation) { o.Ledger = nil }},
		{"doubled", "job 7 was released", func(o *Observation) {
			if second(o) < 7 {
				o.Ledger = nil
				o.Slurm.Jobs[7] = SlurmJob{State: "COMPLETING"}
			} else {
				o.Slurm.Jobs[7] = SlurmJob{State: "COMPLETED"}
			}
		}},
		{"100 %", "by the ledger: 110 %", func(o *Observation) { o.Ledger[9] = another }},
		{"100 %", "by the grants: 30 % and 92160 of 81920 MiB", func(o *Observation) {
			o.Files[9] = Files{Grant: libvgpu.GrantSpec{Cards: []libvgpu.GrantCard{{UUID: uuid, MemLimit: 66 * gib}}}}
		}},
		{"100 %", "81921 of 81920 MiB are in use", func(o *Observation) { o.Cards[0].Used = 80*gib + 1<<20 }},
		{"drained", "node is IDLE+DRAIN, reason \"Prolog error\"", func(o *Observation) {
			o.Slurm.State, o.Slurm.Reason = "IDLE+DRAIN", "Prolog error"
		}},
		{"stuck", "vgpu-prolog", func(o *Observation) { o.Old = []string{"vgpu-prolog, pid 9, for 61 s"} }},
	} {
		delete(left, c.name)
		wrong := found(c.change)
		if !slices.ContainsFunc(wrong, func(w string) bool { return strings.HasPrefix(w, c.name+": ") && strings.Contains(w, c.want) }) {
			t.Errorf("%s does not say %q; found: %q", c.name, c.want, wrong)
		}
		for _, w := range wrong {
			if !strings.HasPrefix(w, c.name+": ") {
				t.Errorf("%s (%s): found %q, too", c.name, c.want, w)
				break
			}
		}
	}
	if len(left) > 0 {
		t.Errorf("nothing here breaks the invariants %q", sortedKeys(left))
	}
}

// names are those of all invariants that are checked in every observation.
func names() map[string]bool {
	all := map[string]bool{}
	for _, i := range NewInvariants().all() {
		all[i.name] = true
	}
	return all
}

// What is allowed by name is allowed, and no more.
func TestAllowedDrain(t *testing.T) {
	inv := NewInvariants()
	inv.drainOK = "Prolog error"
	o := well(0)
	o.Slurm.State, o.Slurm.Reason = "IDLE+DRAIN", "Prolog error [root@now]"
	if wrong := inv.Check(o); len(wrong) > 0 {
		t.Errorf("an allowed drain: %q", wrong)
	}
	o.Slurm.Reason = "vgpu: card 0"
	if wrong := inv.Check(o); len(wrong) != 1 {
		t.Errorf("another reason: %q", wrong)
	}
}

func TestReleasedFails(t *testing.T) {
	inv := NewInvariants()
	if wrong := inv.Released(Observation{Cards: []simgpu.CardStatus{{Memory: gib}}}); len(wrong) > 0 {
		t.Errorf("an empty node: %q", wrong)
	}
	wrong := inv.Released(well(0))
	for _, want := range []string{"the ledger has jobs [7]", "folders of jobs [7]", "card 0 has 2048 MiB in use"} {
		if !slices.ContainsFunc(wrong, func(w string) bool { return strings.Contains(w, want) }) {
			t.Errorf("%q lacks %q", wrong, want)
		}
	}
}
