// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// program launches kernels one after another on a card on which work runs side by side.
type program struct {
	kernel float64 // what one costs alone, ms
	part   float64 // of the card that one needs for that
	pause  float64 // of its host after each, ms
	from   float64 // s: earlier it does nothing
	until  float64 // s; 0: the end

	left, wait, balance float64
	did                 float64 // work since the last look, ms
	elapsed             float64
	held                bool
	sum                 float64 // of work, since measured
}

func (p *program) runs(s float64) bool { return s >= p.from && (p.until == 0 || s < p.until) }

// step is a tenth of a millisecond: kernels share the card in proportion where they need more
// than all of it.
func stepAll(programs []*program, gates []libvgpu.Schedule, now float64) {
	const dt = 0.1
	wanted := 0.0
	for i, p := range programs {
		if gates[i].Gate == libvgpu.GateBudget {
			p.balance = min(5, p.balance+dt*float64(gates[i].Cores)/100)
		} else {
			p.balance = max(-5, min(5, p.balance))
		}
		if p.left <= 0 && p.wait <= 0 && p.runs(now) {
			if gates[i].Gate == libvgpu.GateBudget && p.balance <= 0 {
				p.held = true
			} else if gates[i].Gate != libvgpu.GateShut {
				p.left = p.kernel
				p.balance -= p.kernel
			}
		}
		if p.left > 0 {
			wanted += p.part
		}
	}
	for _, p := range programs {
		if p.left <= 0 {
			p.wait -= dt
			continue
		}
		did := min(p.left, dt*min(1, 1/wanted))
		p.left -= did
		p.did, p.elapsed, p.sum = p.did+did, p.elapsed+dt, p.sum+did
		if p.left < 1e-9 {
			p.left, p.wait = 0, p.pause
		}
	}
}

// beSide lets programs run for some seconds and returns what each had of the last half of them.
func beSide(b *crowd, programs []*program, claims []Claim, seconds float64) (parts []float64, quiet int) {
	gates, alone := make([]libvgpu.Schedule, len(claims)), false
	for ms := 0.0; ms < 1000*seconds; ms += 50 {
		if ms == 500*seconds {
			for _, p := range programs {
				p.sum = 0
			}
		}
		var used []usage
		for i, p := range programs {
			used = append(used, usage{
				ns: p.did * 1e6, elapsed: p.elapsed * 1e6, held: p.held, span: 50 * time.Millisecond, look: 50 * time.Millisecond, inflight: p.left > 0,
			})
			p.did, p.elapsed, p.held = 0, 0, false
			claims[i].Busy, claims[i].Kernel = 0, uint32(p.kernel*1e6)
			if p.runs(ms / 1000) {
				claims[i].Busy = 1
			}
		}
		plan := map[Key]libvgpu.Schedule{}
		b.look(claims, used, time.Unix(1000, 0).Add(time.Duration(ms*1e6)), uint64(ms*1e6), plan)
		was := alone
		alone = false
		for i, c := range claims {
			gates[i] = plan[c.Key]
			alone = alone || c.Busy > 0 && gates[i].Others == 0
		}
		if alone && !was {
			quiet++
		}
		for t := 0.0; t < 49.95; t += 0.1 {
			stepAll(programs, gates, (ms+t)/1000)
		}
	}
	for _, p := range programs {
		parts = append(parts, p.sum/(500*seconds))
	}
	return parts, quiet
}

func softClaims(shares ...uint32) []Claim {
	var list []Claim
	for i, share := range shares {
		list = append(list, Claim{Key: Key{uint32(i + 1), "GPU-1"}, Cores: share, Mode: libvgpu.ModeSoft})
	}
	return list
}

func TestWorkThatRunsSideBySideIsDividedByShares(t *testing.T) {
	hard := func(claims []Claim) []Claim {
		for i := range claims {
			claims[i].Mode = libvgpu.ModeHard
		}
		return claims
	}
	off := softClaims(30, 70)
	off[0].Mode = libvgpu.ModeOff
	busy := func(part, kernel float64) *program { return &program{kernel: kernel, part: part} }
	for name, c := range map[string]struct {
		programs []*program
		claims   []Claim
		want     []float64 // of the card
		within   float64
	}{
		"each fills the card":        {[]*program{busy(1, 1), busy(1, 1)}, softClaims(30, 70), []float64{0.30, 0.70}, 0.02},
		"short beside long":          {[]*program{busy(1, 0.2), busy(1, 20)}, softClaims(30, 70), []float64{0.30, 0.70}, 0.03},
		"long beside short":          {[]*program{busy(1, 20), busy(1, 0.2)}, softClaims(30, 70), []float64{0.30, 0.70}, 0.03},
		"three":                      {[]*program{busy(1, 1), busy(1, 2), busy(1, 1)}, softClaims(20, 30, 50), []float64{0.20, 0.30, 0.50}, 0.025},
		"alone in soft mode":         {[]*program{busy(1, 1)}, softClaims(30), []float64{1}, 0.01},
		"the card has room for both": {[]*program{busy(0.5, 1), busy(0.5, 1)}, softClaims(30, 70), []float64{0.98, 0.98}, 0.03},
		"both need two thirds":       {[]*program{busy(2./3, 1), busy(2./3, 1)}, softClaims(30, 70), []float64{0.375, 0.86}, 0.025},
		"alone in hard mode":         {[]*program{busy(1, 1)}, hard(softClaims(30)), []float64{0.30}, 0.01},
		"hard, and room for both":    {[]*program{busy(0.3, 1), busy(0.3, 1)}, hard(softClaims(30, 50)), []float64{0.30, 0.50}, 0.02},
		"one that nothing holds":     {[]*program{busy(1, 1), busy(1, 1)}, off, []float64{0.5, 0.5}, 0.02},
		"the neighbour has ended":    {[]*program{busy(1, 1), {kernel: 1, part: 1, until: 8}}, softClaims(30, 70), []float64{1, 0}, 0.01},
		"who waits for results has its share": {
			[]*program{{kernel: 0.5, part: 0.7, pause: 0.5}, busy(0.8, 1)}, softClaims(30, 70), []float64{0.325, 0.795}, 0.015,
		},
		"what one leaves the other has": {[]*program{busy(1, 1), {kernel: 1, part: 1, pause: 9}}, softClaims(30, 70), []float64{0.90, 0.095}, 0.03},
	} {
		t.Run(name, func(t *testing.T) {
			got, quiet := beSide(&crowd{}, c.programs, c.claims, 20)
			t.Logf("%.3f of the card, want %.3f; a job was alone %d times", got, c.want, quiet)
			for i, want := range c.want {
				if math.Abs(got[i]-want) > c.within {
					t.Errorf("job %d of %d had %.3f of the card, want %.3f", i+1, c.claims[i].Cores, got[i], want)
				}
			}
		})
	}
}

// Each job is without company soon after it has some, and then ever more seldom; and a job without
// company is told so, which is when its processes learn.
func TestJobsAreWithoutCompanyForMoments(t *testing.T) {
	programs := []*program{{kernel: 1, part: 1}, {kernel: 1, part: 1}}
	_, soon := beSide(&crowd{}, programs, softClaims(30, 70), 2)
	if soon < 2 {
		t.Errorf("in two seconds a job was alone %d times, want each once", soon)
	}
	b := &crowd{}
	_, whole := beSide(b, programs, softClaims(30, 70), 60)
	if whole < 6 || whole > 10 {
		t.Errorf("in a minute a job was alone %d times, want 8 or so", whole)
	}
	off := softClaims(30, 70)
	off[1].Mode = libvgpu.ModeOff // cannot be held
	if _, n := beSide(&crowd{}, programs, off, 10); n == 0 {
		t.Error("the job that nothing holds was never alone")
	}
	if longer := b.jobs[Key{1, "GPU-1"}].longer; longer > 1.1 {
		t.Errorf("alone its work takes %.2f times as long as it costs, want 1", longer)
	}
}

// A host that launches late has its work on the card for longer than that costs, with or without
// company: that is no reason to hold others.
func TestALateHostIsNoLack(t *testing.T) {
	c := &crowd{jobs: map[Key]*party{}, lacked: time.Unix(1000, 0)}
	claims := softClaims(30, 70)
	second := float64(time.Second)
	c.jobs[claims[0].Key] = &party{work: 0.8 * second, elapsed: 0.8 * second, time: second, longer: 1}
	c.jobs[claims[1].Key] = &party{work: 0.4 * second, elapsed: 0.8 * second, time: second, longer: 2}
	for i := range claims {
		claims[i].Busy = 1
	}
	c.steer(claims, make([]usage, 2), time.Unix(1000, 0))
	if limit := c.jobs[claims[0].Key].limit; limit != 0 {
		t.Errorf("the neighbour is held at %.2f", limit)
	}
	c.jobs[claims[1].Key].longer = 1 // now it is company
	c.steer(claims, make([]usage, 2), time.Unix(1000, 0))
	if limit := c.jobs[claims[0].Key].limit; limit == 0 {
		t.Error("the neighbour is not held")
	}
}

// Inference has work on its way nearly always, and the card waits for its host between kernels. With
// its share of the card it lacks nothing.
func TestAHostBoundJobLacksNothingWithItsShare(t *testing.T) {
	for _, c := range []struct{ part, longer, held float64 }{{0.30, 2.6, 0}, {0.27, 2.6, 0.7}, {0.30, 1.1, 0.7}} {
		now, second := time.Unix(1000, 0), float64(time.Second)
		j := &crowd{jobs: map[Key]*party{}, lacked: now}
		claims := softClaims(30, 70)
		j.jobs[claims[0].Key] = &party{work: c.part * second, elapsed: 0.95 * second, time: second, longer: c.longer}
		j.jobs[claims[1].Key] = &party{work: 0.9 * second, elapsed: 0.98 * second, time: second, longer: 1.05}
		for i := range claims {
			claims[i].Busy = 1
		}
		j.steer(claims, make([]usage, 2), now)
		if limit := j.jobs[claims[1].Key].limit; (limit > 0) != (c.held > 0) || limit > 0 && limit < c.held {
			t.Errorf("%+v: the neighbour is held at %.2f", c, limit)
		}
	}
}

// Launches wait at a gate for their own work that is on its way, also where the budget has enough: such a
// job is not at its limit, and lacks what others have.
func TestWhoWaitsForItsOwnWorkIsNotHeld(t *testing.T) {
	now, second := time.Unix(1000, 0), float64(time.Second)
	c := &crowd{jobs: map[Key]*party{}, lacked: now}
	claims := softClaims(30, 70)
	c.jobs[claims[0].Key] = &party{work: 0.5 * second, elapsed: second, time: second, longer: 1}
	c.jobs[claims[1].Key] = &party{work: 0.5 * second, elapsed: second, time: second, longer: 1, limit: 0.75, held: now}
	for i := range claims {
		claims[i].Busy = 1
	}
	c.steer(claims, make([]usage, 2), now)
	if first, second := c.jobs[claims[0].Key].limit, c.jobs[claims[1].Key].limit; first != 0.3 || second != 0 {
		t.Errorf("held at %.2f and %.2f, want the first at its share and the second not at all", first, second)
	}
}

// What launches cost is learned by one process at a time: of a job of three each is without company before
// the pause, one after the other, and the others of the job are held meanwhile.
func TestProcessesOfAJobAreAloneInTurn(t *testing.T) {
	const tick = 5 * time.Millisecond
	b, now := &crowd{}, time.Unix(1000, 0)
	claims := softClaims(30, 70)
	claims[0].Busy, claims[1].Busy = 3, 1
	used := []usage{{span: tick, look: tick, procs: []uint64{11, 12, 13}}, {span: tick, look: tick, procs: []uint64{21}}}
	var solo []uint64
	for i := range uint64(1500 * time.Millisecond / tick) {
		plan := map[Key]libvgpu.Schedule{}
		b.look(claims, used, now.Add(time.Duration(i)*tick), i*uint64(tick), plan)
		s, other := plan[claims[0].Key], plan[claims[1].Key]
		if s.Solo == 0 || len(solo) > 0 && solo[len(solo)-1] == s.Solo {
			continue
		}
		solo = append(solo, s.Solo)
		if s.Gate&libvgpu.GateShut == 0 || s.Others != 0 || s.LeaseNS == 0 || other.Gate != libvgpu.GateShut || other.Solo != 0 {
			t.Errorf("while %d is alone its job is told %+v, and its neighbour %+v", s.Solo, s, other)
		}
	}
	slices.Sort(solo)
	if !slices.Equal(solo, []uint64{11, 12, 13}) {
		t.Errorf("alone were %d, want each of 11, 12 and 13 once", solo)
	}
}

// A job whose work is always on its way, and ends in batches longer than a look, wants all of the card.
func TestWorkThatIsToldLate(t *testing.T) {
	m := &party{longer: 1}
	for i := range 40 {
		u := usage{span: 50 * time.Millisecond}
		if i%4 == 3 {
			u.ns, u.elapsed = 40e6, 200e6
		}
		m.follow(u)
	}
	if part := m.elapsed / m.time; part < 0.9 {
		t.Errorf("its work was on its way for %.2f of the time, want all", part)
	}
}
