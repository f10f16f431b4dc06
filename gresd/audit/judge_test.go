// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// process of user 1000, with GiB of memory.
func process(pid, job uint32, gib gpu.Bytes) Process {
	return Process{PID: pid, Start: uint64(pid)*10 + 1<<40, UID: 1000, Name: "python", Memory: gib * gpu.GiB, Kind: driver.Compute, Job: job}
}

func slot(pid uint32) Slot { return Slot{PID: pid, Start: pid * 10, OnHost: true, Counted: true} }

// job holds 8 GiB and 30 % of each card.
func job(id uint32, uuid gpu.UUID, slots ...Slot) Job {
	return Job{ID: id, UID: 1000, Shares: []Share{{UUID: uuid, Limit: 8 * gpu.GiB, Cores: 30, Slots: slots, Known: true}}}
}

func card(processes ...Process) Card {
	return Card{UUID: "GPU-a", Name: "0 (GPU-a)", Processes: processes}
}

func with[T any](v T, change func(*T)) T {
	change(&v)
	return v
}

func TestSuspects(t *testing.T) {
	a := job(7, "GPU-a", slot(10))
	for _, c := range []struct {
		name string
		card Card
		jobs []Job
		want string // "kind pid" of each
	}{
		{"a process with a slot", card(process(10, 7, 1)), []Job{a}, ""},
		{"one without", card(process(10, 7, 1), process(11, 7, 1)), []Job{a}, "unregistered 11"},
		{"one without memory to tell", card(process(11, 7, 0)), []Job{a}, "unregistered 11"},
		{"one of a number used before", card(with(process(10, 7, 1), func(p *Process) { p.Start++ })), []Job{a}, "unregistered 10"},
		{
			"a slot that counts nothing", card(process(10, 7, 1)),
			[]Job{job(7, "GPU-a", with(slot(10), func(s *Slot) { s.Counted = false }))},
			"unregistered 10",
		},
		{
			"a slot that only claims", card(process(10, 7, 1)),
			[]Job{job(7, "GPU-a", with(slot(10), func(s *Slot) { s.OnHost = false }))},
			"unregistered 10",
		},
		{
			"a slot of a process inside a namespace", card(with(process(10, 7, 1), func(p *Process) { p.Inside = true })),
			[]Job{job(7, "GPU-a", Slot{PID: 2, Counted: true})},
			"",
		},
		{
			"which excuses one process", card(with(process(10, 7, 1), func(p *Process) { p.Inside = true }), with(process(11, 7, 1), func(p *Process) { p.Inside = true })),
			[]Job{job(7, "GPU-a", Slot{PID: 2, Counted: true})},
			"unregistered 11",
		},
		{"a slot of another job", card(process(10, 8, 1)), []Job{a, job(8, "GPU-a")}, "unregistered 10"},
		{
			"a cache that cannot be read", card(process(11, 7, 1)),
			[]Job{with(job(7, "GPU-a"), func(j *Job) { j.Shares[0].Known = false })},
			"",
		},
		{"a display server", card(with(process(11, 0, 1), func(p *Process) { p.Kind = driver.Graphics })), []Job{a}, ""},
		{"a process that also draws", card(with(process(11, 0, 1), func(p *Process) { p.Kind |= driver.Graphics })), []Job{a}, "stranger 11"},
		{"an MPS server in a job", card(with(process(11, 7, 1), func(p *Process) { p.Exempt = true })), []Job{a}, ""},
		{"an MPS server", card(with(process(11, 0, 1), func(p *Process) { p.Exempt = true })), []Job{a}, ""},

		{"memory at the limit and what is forgiven", card(with(process(10, 7, 8), func(p *Process) { p.Memory += 64 * gpu.MiB })), []Job{a}, ""},
		{"a byte more", card(with(process(10, 7, 8), func(p *Process) { p.Memory += 64*gpu.MiB + 1 })), []Job{a}, "exceeded 10"},
		{"of all its processes", card(process(10, 7, 4), process(12, 7, 5)), []Job{job(7, "GPU-a", slot(10), slot(12))}, "exceeded 12"},
		{"of its own only", card(process(10, 7, 5), process(12, 8, 5)), []Job{a, job(8, "GPU-a", slot(12))}, ""},
		{"a job without a limit", card(process(10, 7, 50)), []Job{with(a, func(j *Job) { j.Shares = []Share{{UUID: "GPU-a", Slots: []Slot{slot(10)}, Known: true}} })}, ""},

		{"a stranger", card(process(20, 0, 1)), []Job{a}, "stranger 20"},
		{"on a card that no job shares", card(process(20, 0, 1)), []Job{job(7, "GPU-b")}, ""},
		{"of a job without cards", card(process(20, 8, 1)), []Job{a}, "stranger 20"},
		{"of a job that has the whole card", card(with(process(20, 8, 1), func(p *Process) { p.Whole = true })), []Job{a}, ""},
		{"of a job with a share of another card", card(process(20, 8, 1)), []Job{a, job(8, "GPU-b")}, "stranger 20"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJudge(limits{grace: 5 * time.Second, tolerance: 64 * gpu.MiB})
			if got := texts(j.suspects(c.card, c.jobs)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A process in a container of another job of its user has the limits of that job. The text says so. A
// slot in the cache of another user proves nothing.
func TestLimitsOfAnotherJob(t *testing.T) {
	for _, c := range []struct {
		name  string
		other Job
		named bool
	}{
		{"a job of the same user", job(8, "GPU-a", slot(11)), true},
		{"a job of the same user on another card", job(8, "GPU-b", slot(11)), true},
		{"a job of another user", with(job(8, "GPU-a", slot(11)), func(j *Job) { j.UID = 1001 }), false},
		{"a job without this process", job(8, "GPU-a", slot(12)), false},
	} {
		j, p := newJudge(limits{}), process(11, 7, 9)
		p.Library = Loaded
		found := slices.DeleteFunc(j.suspects(card(p), []Job{job(7, "GPU-a"), c.other}), func(f Finding) bool { return f.Kind == Exceeded })
		if got := texts(found); got != "unregistered 11, escaped 11" {
			t.Errorf("%s: found %q", c.name, got)
		}
		for _, f := range found {
			if named := strings.Contains(f.Text, "with the limits of job 8"); named != c.named || named == strings.Contains(f.Text, "without libvgpu") {
				t.Errorf("%s: %q", c.name, f.Text)
			}
		}
	}
}

func texts(found []Finding) string {
	var all []string
	for _, f := range found {
		all = append(all, string(f.Kind)+" "+strings.Fields(f.Process.String())[1])
	}
	return strings.Join(all, ", ")
}

func TestOveruse(t *testing.T) {
	hard := func(id uint32, cores gpu.Share, isHard bool) Job {
		return with(job(id, "GPU-a"), func(j *Job) { j.Shares[0].Cores, j.Shares[0].Hard = cores, isHard })
	}
	for _, c := range []struct {
		name           string
		first, second  Job
		use, otherUse  float64
		mps, unmeasued bool
		want           string
	}{
		{"within its share and what is forgiven", hard(7, 30, true), hard(8, 70, true), 45, 55, false, false, ""},
		{"above it", hard(7, 30, true), hard(8, 70, true), 46, 54, false, false, "overuse 0"},
		{"above it, though the other has its own", hard(7, 30, true), hard(8, 30, true), 50, 40, false, false, "overuse 0"},
		{"alone at work", hard(7, 30, true), hard(8, 70, true), 90, 4, false, false, ""},
		{"a soft share of what is idle", hard(7, 30, false), hard(8, 30, false), 70, 29, false, false, ""},
		{"a soft share of what another waits for", hard(7, 30, false), hard(8, 70, false), 60, 40, false, false, "overuse 0"},
		{"with MPS", hard(7, 30, true), hard(8, 70, true), 80, 50, true, false, ""},
		{"not measured", hard(7, 30, true), hard(8, 70, true), 80, 50, false, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Two processes of the first job share its use.
			on := card(process(10, 7, 1), process(11, 7, 1), process(20, 8, 1))
			if c.mps {
				on.Processes[0].Kind = driver.MPSClient
			}
			if !c.unmeasued {
				on.Percent = map[uint32]float64{10: c.use / 2, 11: c.use / 2, 20: c.otherUse}
			}
			if got := texts(overuse(on, []Job{c.first, c.second})); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// looks runs one look a second and tells in which something was fresh.
func TestTime(t *testing.T) {
	jobs := []Job{job(7, "GPU-a", slot(10))}
	bad, good := card(process(10, 7, 1), process(11, 7, 1)), card(process(10, 7, 1))
	run := func(looks ...[]Card) (fresh, standing []int) {
		j := newJudge(limits{grace: 2 * time.Second})
		for i, cards := range looks {
			f, s := j.look(start.Add(time.Duration(i)*time.Second), cards, jobs)
			if len(f) > 0 {
				fresh = append(fresh, i)
			}
			if len(s) > 0 {
				standing = append(standing, i)
			}
		}
		return fresh, standing
	}
	one := func(c Card) []Card { return []Card{c} }
	for _, c := range []struct {
		name            string
		looks           [][]Card
		fresh, standing []int
	}{
		{"it lasts", [][]Card{one(bad), one(bad), one(bad), one(bad), one(bad)}, []int{2}, []int{2, 3, 4}},
		{"it ends in time", [][]Card{one(bad), one(bad), one(good), one(good)}, nil, nil},
		{"it comes back", [][]Card{one(bad), one(bad), one(good), one(bad), one(bad), one(bad)}, []int{5}, []int{5}},
		{"a card that does not answer", [][]Card{one(bad), nil, one(bad), nil, one(bad)}, []int{2}, []int{2, 4}},
	} {
		if fresh, standing := run(c.looks...); !slices.Equal(fresh, c.fresh) || !slices.Equal(standing, c.standing) {
			t.Errorf("%s: fresh %v, standing %v; want %v, %v", c.name, fresh, standing, c.fresh, c.standing)
		}
	}
}

func TestOveruseMustLast(t *testing.T) {
	jobs := []Job{job(7, "GPU-a", slot(10)), job(8, "GPU-a", slot(20))}
	on := card(process(10, 7, 1), process(20, 8, 1))
	on.Percent = map[uint32]float64{10: 80, 20: 20}
	j := newJudge(limits{grace: time.Second})
	for s := range 40 {
		fresh, _ := j.look(start.Add(time.Duration(s)*time.Second), []Card{on}, jobs)
		if got := len(fresh) > 0; got != (s == 30) {
			t.Errorf("after %d s: %+v", s, fresh)
		}
	}
}

// After a process was killed the job has time to become well, then the next is
// to blame, and is told.
func TestAgain(t *testing.T) {
	jobs := []Job{job(7, "GPU-a", slot(10), slot(11))}
	on := card(process(10, 7, 5), process(11, 7, 6))
	for grace, want := range map[time.Duration][]int{time.Second: {1, 2, 3, 4, 5, 6}, 2 * time.Second: {2, 4, 6}} {
		j := newJudge(limits{grace: grace})
		var at []int
		for s := range 7 {
			now := start.Add(time.Duration(s) * time.Second)
			fresh, _ := j.look(now, []Card{on}, jobs)
			for _, f := range fresh {
				at = append(at, s)
				j.again(f, now)
			}
		}
		if !slices.Equal(at, want) {
			t.Errorf("after %s: fresh at %v, want %v", grace, at, want)
		}
	}
}

func TestWordsNameAllThatAnAdministratorNeeds(t *testing.T) {
	j := newJudge(limits{})
	_, found := j.look(start, []Card{card(process(10, 7, 9), process(11, 7, 1), process(20, 0, 2))}, []Job{job(7, "GPU-a", slot(10))})
	all := ""
	for _, f := range found {
		all += f.Text + "\n"
	}
	for _, want := range []string{
		"process 11 (python) of job 7 uses 1 GiB of card 0 (GPU-a) without libvgpu",
		"job 7 holds 10 GiB of card 0 (GPU-a): its limit is 8 GiB; process 10 (python) has the most, 9 GiB",
		"process 20 (python) of user 1000 uses 2 GiB of card 0 (GPU-a), where jobs have shares, and belongs to no job",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("lacks %q:\n%s", want, all)
		}
	}
}
