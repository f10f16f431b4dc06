// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// second is what is told of one second of a card.
type second struct {
	samples map[uint32]uint32  // percent by pid
	there   map[uint32]float64 // parts by pid, by the records; nil: they tell nothing
}

// watched is a card on which job 7, of process 10, has a limit of 20 %, beside job 8, of process 20.
type watched struct {
	work   gputime.Jobs
	judge  *judge
	sum    gputime.Account
	now    time.Time
	jobs   []Job
	card   Card
	fresh  []int // looks in which job 7 was named for the first time
	stands bool
	looks  int
}

func newWatched(processes ...Process) *watched {
	limited := func(id uint32, cores gpu.Share) Job {
		return with(job(id, "GPU-a"), func(j *Job) { j.Shares[0].Cores, j.Shares[0].Capped, j.Shares[0].Known = cores, true, false })
	}
	return &watched{
		judge: newJudge(limits{}), now: start, jobs: []Job{limited(7, 20), limited(8, 40)}, card: card(processes...),
		sum: gputime.Account{Uses: map[uint32]gputime.Use{}, At: time.Hour},
	}
}

func (w *watched) pass(seconds ...second) {
	for _, s := range seconds {
		look := gputime.Look{Since: w.now.Add(-time.Second), Until: w.now, Percent: map[uint32]float64{}}
		for pid, percent := range s.samples {
			look.Percent[pid] = float64(percent)
		}
		uses := map[uint32]gputime.Use{}
		for pid, use := range w.sum.Uses {
			uses[pid] = use
		}
		for pid, part := range s.there {
			use := uses[pid]
			use.Had += time.Duration(part * float64(time.Second))
			uses[pid] = use
		}
		w.sum = gputime.Account{Uses: uses, At: w.sum.At + time.Second}
		records := new(w.sum)
		if s.there == nil {
			records = nil
		}
		w.card.Least = leastOf(w.work.Add(viewOf(w.card, w.jobs), []gputime.Look{look}, records))
		fresh, standing := w.judge.look(w.now, []Card{w.card}, w.jobs)
		w.stands = false
		for _, f := range standing {
			w.stands = w.stands || f.Kind == Overlimit && f.Job == 7
		}
		for _, f := range fresh {
			if f.Kind == Overlimit && f.Job == 7 {
				w.fresh = append(w.fresh, w.looks)
			}
		}
		w.now, w.looks = w.now.Add(time.Second), w.looks+1
	}
}

func times(n int, all ...second) (list []second) {
	for range n {
		list = append(list, all...)
	}
	return list
}

func at(percent uint32) second { return second{samples: map[uint32]uint32{10: percent}} }

// both is a second in which the processes of two jobs worked, and were on the card.
func both(work, other uint32, there, otherThere float64) second {
	return second{map[uint32]uint32{10: work, 20: other}, map[uint32]float64{10: there, 20: otherThere}}
}

func TestOverlimit(t *testing.T) {
	own, others := process(10, 7, 1), process(20, 8, 1)
	beside := []Process{own, others}
	unknown := both(60, 40, 0, 0)
	unknown.there = nil
	for _, c := range []struct {
		name      string
		processes []Process
		told      []second
		named     bool
	}{
		{"alone, at all of the card", []Process{own}, times(22, at(99)), true},
		{"not yet for so long", []Process{own}, times(20, at(99)), false},
		{"at its limit", []Process{own}, times(60, at(20)), false},
		{"above it by what is forgiven", []Process{own}, times(60, at(25)), false},
		{"above it by more", []Process{own}, times(60, at(26)), true},
		{"on average", []Process{own}, times(20, at(4), at(50)), true},
		{"launches of unknown cost at its start", []Process{own}, append(times(7, at(100)), times(60, at(20))...), false},
		{"kernels of five seconds, paid for later", []Process{own}, times(6, append(times(5, at(100)), times(20, at(0))...)...), false},
		{"nothing is known of the driver's", []Process{own}, times(60, second{}), false},
		{"beside one who works", beside, times(30, both(60, 40, 0.6, 0.4)), true},
		{"beside one, at its limit, whoever the samples name", beside, times(30, both(90, 10, 0.22, 0.78)), false},
		// Two hard jobs of 20 and 30 on an H200: who is done stays on the card until the other comes.
		{"on the card without work", beside, times(60, both(22, 33, 0.662, 0.314)), false},
		{"on the card with work of its own", beside, times(60, both(90, 5, 0.95, 0.05)), true},
		{"beside one, without records", beside, times(60, unknown), false},
		{"records now and then", beside, times(30, unknown, both(60, 40, 0.6, 0.4)), false},
		{"beside one who does nothing", beside, times(60, both(20, 0, 1, 0)), false},
		{"beside one who has come and gone between looks", []Process{own}, times(60, second{map[uint32]uint32{10: 60}, map[uint32]float64{10: 0.5, 21: 0.5}}), false},
		{"beside one who has not come", []Process{own}, times(30, second{map[uint32]uint32{10: 60}, map[uint32]float64{}}), true},
		{"beside one of no job", []Process{own, process(30, 0, 1)}, times(60, at(99)), false},
		{"with MPS", []Process{with(own, func(p *Process) { p.Kind = driver.MPSClient })}, times(60, at(99)), false},
		{"several processes", []Process{own, process(11, 7, 1)}, times(30, second{samples: map[uint32]uint32{10: 15, 11: 15}}), true},
		{"one that is not listed", []Process{own}, times(30, second{samples: map[uint32]uint32{10: 15, 11: 15}}), false},
	} {
		w := newWatched(c.processes...)
		for _, s := range c.told { // records are only asked for of cards that are shared
			w.card.Shared = w.card.Shared || s.there != nil
		}
		w.card.Shared = w.card.Shared || len(c.processes) > 1 && c.processes[1].Job == 8
		w.pass(c.told...)
		if named := len(w.fresh) > 0; named != c.named {
			t.Errorf("%s: named in looks %v, want %v", c.name, w.fresh, c.named)
		}
	}
}

func TestOverlimitEnds(t *testing.T) {
	w := newWatched(process(10, 7, 1))
	w.pass(times(30, at(99))...)
	if !w.stands {
		t.Fatal("not named")
	}
	if w.pass(times(10, at(20))...); w.stands {
		t.Error("named 10 s after it came back to its limit")
	}
	w.pass(times(30, at(99))...)
	if w.jobs = w.jobs[1:]; !w.stands {
		t.Fatal("not named again")
	}
	w.card.Processes = nil
	if w.pass(second{}); w.stands {
		t.Error("named after its end")
	}
	if len(w.fresh) != 2 {
		t.Errorf("named in looks %v, want twice", w.fresh)
	}
}

// A limit that is changed counts from then on; a process that has ended still is its job's.
func TestOverlimitOfWhatChanges(t *testing.T) {
	w := newWatched(process(10, 7, 1))
	w.jobs[0].Shares[0].Cores = 90
	w.pass(times(30, at(90))...)
	w.jobs[0].Shares[0].Cores = 20
	w.pass(times(3, at(90))...)
	if w.pass(times(30, at(20))...); len(w.fresh) != 0 {
		t.Errorf("named in looks %v of what it had under another limit", w.fresh)
	}
	for pid := uint32(100); pid < 130; pid++ {
		w.card.Processes = []Process{process(10, 7, 1), process(pid, 7, 1)}
		w.pass(second{samples: map[uint32]uint32{pid: 50, pid - 1: 49}})
	}
	if len(w.fresh) != 1 {
		t.Errorf("many short processes: named in looks %v, want once", w.fresh)
	}
}

// An honest job beside one that comes and goes at random is never named, though the driver's samples
// are late and say at random who worked.
func TestOverlimitOfHonestJobs(t *testing.T) {
	const ticks = 100 // of a second
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := newWatched(process(10, 7, 1), process(20, 8, 1))
		late, other, left, on := r.IntN(ticks/2), false, 0, uint32(10)
		var busy []bool // in each tick
		for range 400 {
			s := second{map[uint32]uint32{}, map[uint32]float64{}}
			for range ticks {
				if left--; left <= 0 {
					other, left = !other, 1+r.IntN(300)
				}
				works := r.IntN(100) < 20
				if works {
					on = 10
				} else if other {
					on = 20
				}
				s.there[on] += 1.0 / ticks
				busy = append(busy, works || other)
			}
			worked := uint32(0)
			for i := max(0, len(busy)-ticks-late); i < len(busy)-late; i++ {
				if busy[i] {
					worked++
				}
			}
			s.samples[10] = uint32(r.IntN(int(worked) + 1))
			s.samples[20] = worked - s.samples[10]
			w.pass(s)
		}
		if len(w.fresh) > 0 {
			t.Errorf("seed %d: named in looks %v", seed, w.fresh)
		}
	}
}

// Only a hard limit of one card that time divides can be told by what its job has of the time.
func TestWhatIsCapped(t *testing.T) {
	card := libvgpu.GrantCard{UUID: "GPU-a", Cores: 30, Mode: libvgpu.ModeHard, Engine: libvgpu.EngineTime}
	for _, c := range []struct {
		name  string
		cards []libvgpu.GrantCard
		want  bool
	}{
		{"hard", []libvgpu.GrantCard{card}, true},
		{"soft", []libvgpu.GrantCard{with(card, func(c *libvgpu.GrantCard) { c.Mode, c.Ceiling = libvgpu.ModeSoft, 50 })}, false},
		{"off", []libvgpu.GrantCard{with(card, func(c *libvgpu.GrantCard) { c.Mode = libvgpu.ModeOff })}, false},
		{"all of the card", []libvgpu.GrantCard{with(card, func(c *libvgpu.GrantCard) { c.Cores = 100 })}, false},
		{"side by side", []libvgpu.GrantCard{with(card, func(c *libvgpu.GrantCard) { c.Engine = libvgpu.EngineConcurrent })}, false},
		{"several cards", []libvgpu.GrantCard{card, with(card, func(c *libvgpu.GrantCard) { c.UUID = "GPU-b" })}, false},
	} {
		j := jobOf(7, libvgpu.GrantSpec{Cards: c.cards}, libvgpu.CacheView{}, false)
		if j.Shares[0].Capped != c.want {
			t.Errorf("%s: %v", c.name, j.Shares[0].Capped)
		}
	}
}

// A process of which nobody knows whose it is may be anybody's.
func TestAProcessThatCannotBeLookedAtIsNobodys(t *testing.T) {
	node := &fakeNode{}
	a := New(Parts{Grants: node, Driver: node, Meter: node, Name: func(gpu.UUID) string { return "0" }})
	a.table = newTable(t.TempDir(), 5)
	for listed, want := range map[int]bool{0: false, 1: true} {
		node.processes = make([]driver.Process, listed)
		held, _ := a.ask()
		if cards := a.cards(held, nil); len(cards) != 1 || cards[0].Shared != want {
			t.Errorf("%d processes: %+v, want shared %v", listed, cards, want)
		}
	}
}
