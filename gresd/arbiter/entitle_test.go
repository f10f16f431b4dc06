// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	msec = time.Millisecond
	sec  = time.Second
)

// What an H100 gave to a training (62 steps a second alone) and inference (741), with slices
// set by hand, in percent of that.
func TestTheModelIsTheCard(t *testing.T) {
	solo := []float64{solo(training(70, 4)), solo(inference(30))}
	for i, want := range []float64{62, 741} {
		if math.Abs(solo[i]/want-1) > 0.1 {
			t.Errorf("alone: %.1f steps a second, the card %.1f", solo[i], want)
		}
	}
	for _, c := range []struct {
		slices [2]time.Duration
		want   [2]float64
	}{
		{[2]time.Duration{14 * msec, 6 * msec}, [2]float64{100, 23}},
		{[2]time.Duration{4 * msec, 5 * msec}, [2]float64{95, 29}},
		{[2]time.Duration{2 * msec, 5 * msec}, [2]float64{88, 48}},
		{[2]time.Duration{1 * msec, 5 * msec}, [2]float64{72, 70}},
		{[2]time.Duration{700 * usec, 5 * msec}, [2]float64{60, 90}},
		{[2]time.Duration{500 * usec, 5 * msec}, [2]float64{52, 77}},
	} {
		card := newCard([]workload{training(70, 4), inference(30)})
		for i := range c.slices {
			card.jobs[i].slice = c.slices[i]
		}
		card.run(4 * sec)
		for i, j := range card.jobs {
			if got := 100 * j.rate(sec, 4*sec) / solo[i]; math.Abs(got-c.want[i]) > 12 {
				t.Errorf("slices %v: job %d did %.0f %% of solo, the card %.0f", c.slices, i+1, got, c.want[i])
			}
		}
	}
}

// decode makes tokens one after another; batches are inference of larger ones; bursts are
// requests of a service; graph is a training of which each step is one graph.
func decode(share uint32) workload {
	return workload{share: share, mode: hard, kernels: 60, kernel: 5 * usec, launch: 12 * usec, gap: 200 * usec, waits: 1}
}

func batches(share uint32) workload {
	return workload{share: share, mode: hard, kernels: 100, kernel: 80 * usec, launch: 12 * usec, gap: 500 * usec, waits: 1}
}

func bursts(share uint32) workload {
	return workload{share: share, mode: hard, kernels: 20, kernel: 100 * usec, launch: 5 * usec, gap: 23 * msec, waits: 1}
}

func graph(share uint32, waits int) workload {
	return workload{share: share, mode: hard, kernels: 1, kernel: 13500 * usec, launch: 20 * usec, gap: 100 * usec, waits: waits}
}

func slowHost(share uint32) workload {
	return workload{share: share, mode: hard, kernels: 40, kernel: 5 * usec, launch: 20 * usec, gap: 500 * usec, waits: 1}
}

func lateData(share uint32) workload {
	j := training(share, 1)
	j.pause, j.pauseOf = 80*msec, 60
	return j
}

// kept is what a job does in company of what it does alone under its limit: in all, and in the
// worst second but the first.
func kept(jobs []workload, c *model) (all, worst []float64) {
	for i, j := range c.jobs {
		entitled, least := alone(jobs[i]), math.Inf(1)
		for s := sec; s+sec <= c.now; s += sec {
			least = min(least, j.rate(s, s+sec)/entitled)
		}
		all, worst = append(all, j.rate(0, c.now)/entitled), append(worst, least)
	}
	return all, worst
}

// In company a program does what it does alone under the same limit.
func TestAShareIsKeptWhateverTheProgramDoes(t *testing.T) {
	type pair struct {
		name string
		jobs []workload
		kept []float64 // at least
	}
	both := func(f func(share uint32) workload) []workload { return []workload{f(30), f(70)} }
	waiting := func(n int) func(uint32) workload { return func(share uint32) workload { return training(share, n) } }
	list := []pair{
		{"inference beside a training", []workload{inference(30), training(70, 4)}, []float64{0.75, 0.8}},
		{"inference of 50", []workload{inference(50), training(50, 4)}, []float64{0.8, 0.95}},
		{"inference of 70", []workload{inference(70), training(30, 4)}, []float64{0.8, 0.95}},
		{"inference beside a full queue", []workload{inference(30), filled(70, msec)}, []float64{0.7, 0.8}},
		{"inference beside kernels of 20 ms", []workload{inference(30), filled(70, 20*msec)}, []float64{0.7, 0.8}},
		{"inference of 70 beside a full queue", []workload{inference(70), filled(30, msec/5)}, []float64{0.85, 0.95}},
		{"a slow host of 70", []workload{slowHost(70), training(30, 4)}, []float64{0.85, 0.95}},
		{"two of inference", both(inference), []float64{0.85, 0.85}},
		{"decoding beside a training", []workload{decode(30), training(70, 4)}, []float64{0.65, 0.8}},
		{"bursts beside a full queue", []workload{bursts(30), filled(70, msec)}, []float64{0.95, 0.95}},
		{"batches beside a training", []workload{batches(30), training(70, 4)}, []float64{0.9, 0.95}},
		{"batches of 70", []workload{batches(70), filled(30, msec)}, []float64{0.95, 0.94}},
		{"data that is late", both(lateData), []float64{0.9, 0.95}},
		{"full queues", both(func(share uint32) workload { return filled(share, msec) }), []float64{0.95, 0.95}},
		{"full queues of 20 us", both(func(share uint32) workload { return filled(share, 20*usec) }), []float64{0.95, 0.95}},
		{"three full queues", []workload{filled(10, msec/5), filled(30, msec/5), filled(60, msec/5)}, []float64{0.965, 0.965, 0.965}},
		{"a training beside a full queue", []workload{training(30, 1), filled(70, msec)}, []float64{0.93, 0.95}},
		{"a full queue beside a training", []workload{filled(30, msec), training(70, 1)}, []float64{0.93, 0.95}},
		{"three", []workload{inference(10), training(30, 4), training(60, 4)}, []float64{0.7, 0.8, 0.8}},
		{"inference beside two trainings", []workload{inference(30), training(35, 4), training(35, 4)}, []float64{0.42, 0.85, 0.85}},
		{"four trainings", []workload{training(25, 4), training(25, 1), training(25, 16), filled(25, msec)}, []float64{0.93, 0.93, 0.93, 0.93}},
		{"inference beside three", []workload{inference(25), training(25, 1), graph(25, 1), filled(25, msec)}, []float64{0.37, 0.8, 0.8, 0.8}},
	}
	for _, n := range []int{0, 1, 4, 16} {
		list = append(list, pair{fmt.Sprintf("trainings that wait at step %d", n), both(waiting(n)), []float64{0.93, 0.95}})
	}
	for _, n := range []int{1, 4} {
		list = append(list, pair{
			fmt.Sprintf("graphs, waits at step %d", n),
			both(func(share uint32) workload { return graph(share, n) }),
			[]float64{0.93, 0.95},
		})
	}
	for _, c := range list {
		card := playOn(c.jobs, 8*sec, nil)
		all, worst := kept(c.jobs, card)
		changes := float64(card.changes) / 8
		t.Logf("%-32s kept %.2f, worst second %.2f, %.1f changes a second", c.name, all, worst, changes)
		for i := range all {
			if all[i] < c.kept[i] || worst[i] < c.kept[i]-0.1 {
				t.Errorf("%s: job %d kept %.2f, in its worst second %.2f, want %.2f", c.name, i+1, all[i], worst[i], c.kept[i])
			}
		}
		if changes > 8 { // each costs the card 0.4 msec
			t.Errorf("%s: slices are changed %.1f times a second", c.name, changes)
		}
	}
}

// Hosts differ in how long they launch for a step: a neighbour's slice that is a little too short
// for it costs inference a turn of its neighbour at each step.
func TestInferenceOfSlowAndFastHosts(t *testing.T) {
	for launch := 8 * usec; launch <= 22*usec; launch += usec {
		j := inference(30)
		j.launch = launch
		jobs := []workload{j, training(70, 4)}
		card := playOn(jobs, 6*sec, nil)
		all, _ := kept(jobs, card)
		t.Logf("%v: kept %.2f, slices %v, %d changes", launch, all, card.jobs[1].slice, card.changes)
		if all[0] < 0.65 || all[1] < 0.82 {
			t.Errorf("a launch takes %v: kept %.2f, want 0.65 and 0.82", launch, all)
		}
	}
}

// A neighbour that has its share is seen from the first moments of contention on.
func TestAShareIsKeptFromTheStart(t *testing.T) {
	jobs := []workload{training(30, 4), training(70, 4)}
	both := playOn(jobs, 2*sec, nil)
	one, two := both.jobs[0].had, both.jobs[1].had
	if part := 100 * float64(one) / float64(one+two); math.Abs(part-30) > 2 {
		t.Errorf("two trainings: %.1f %% of the first two seconds, want 30 ± 2", part)
	}
	jobs = []workload{inference(30), training(70, 4)}
	var early *int
	playOn(jobs, 2*sec, func(c *model, slices []uint32) {
		if early == nil && slices[1] < 2000 {
			at := int(c.now / msec)
			early = &at
		}
	})
	if early == nil || *early > 1200 {
		t.Errorf("inference: its neighbour's slices are not short after 1200 ms")
	}
	// Before anything is known of it, it waits for a slice as short as the driver's.
	for _, share := range []uint32{30, 50, 70} {
		jobs = []workload{inference(share), training(100-share, 4)}
		card := playOn(jobs, sec/2, nil)
		got, want := card.jobs[0].rate(0, sec/2)/alone(jobs[0]), map[uint32]float64{30: 0.35, 50: 0.48, 70: 0.65}[share]
		t.Logf("inference of %d: kept %.2f in the first half second", share, got)
		if got < want {
			t.Errorf("inference of %d: kept %.2f in the first half second, want %.2f", share, got, want)
		}
	}
}

// No cliff: where the rhythm of a program changes by little, what it keeps does.
func TestNoCliff(t *testing.T) {
	type point struct {
		name string
		jobs []workload
	}
	for name, points := range map[string][]point{
		"waits":  nil,
		"kernel": nil,
		"share":  nil,
		"gap":    nil,
	} {
		switch name {
		case "waits":
			for n := 1; n <= 20; n++ {
				points = append(points, point{fmt.Sprint("every ", n), []workload{training(30, n), training(70, 4)}})
			}
		case "kernel":
			for k := 10 * usec; k < 200*usec; k = k * 5 / 4 {
				j := batches(30)
				j.kernel = k
				points = append(points, point{k.String(), []workload{j, training(70, 4)}})
			}
		case "share":
			for s := uint32(10); s <= 90; s += 5 {
				points = append(points, point{fmt.Sprint(s, " %"), []workload{batches(s), training(100-s, 4)}})
			}
		case "gap":
			for g := 100 * usec; g < 50*msec; g = g * 3 / 2 {
				j := batches(30)
				j.gap = g
				points = append(points, point{g.String(), []workload{j, training(70, 4)}})
			}
		}
		before := []float64{}
		for _, p := range points {
			all, _ := kept(p.jobs, playOn(p.jobs, 5*sec, nil))
			for i := range all {
				all[i] = min(all[i], 1.05) // idle time of others is not its share
				if len(before) > 0 && math.Abs(all[i]-before[i]) > 0.12 {
					t.Errorf("%s, %s: job %d kept %.2f, one step before %.2f", name, p.name, i+1, all[i], before[i])
				}
			}
			before = all
		}
	}
}

// Whoever goes first, and whatever a job had too much or lacks: no slice is below the
// smallest that an administrator allows, and a turn of all is no longer than the longest.
func TestSlicesAreNeverBelowTheSmallest(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		claims, gains := someJobs(random)
		sum := uint32(0)
		var c card
		c.found(claims, nil)
		for _, j := range c.list {
			j.told = gains[j.JobID]
		}
		for i, s := range c.slices(params).slices {
			if s < params.MinSlice-1 {
				t.Fatalf("%+v: slice %d us, want at least %d", claims[i], s, params.MinSlice)
			}
			sum += s * claims[i].Busy
		}
		if len(claims) > 1 && sum > params.MaxPeriod*6/5 { // gains do not shorten the smallest
			t.Fatalf("%+v: a turn of all is %d us", claims, sum)
		}
	}
}

// someJobs are jobs that share a card, of at least 5 % and at most two processes each.
func someJobs(random *rand.Rand) (claims []Claim, gains map[uint32]float64) {
	gains = map[uint32]float64{}
	for left := uint32(100); len(claims) < 8 && left >= 5; {
		c := claim(uint32(len(claims)+1), 5+random.Uint32N(min(left, 60)-4), hard, 1+random.Uint32N(2))
		c.Priority = []uint32{libvgpu.PrioLow, libvgpu.PrioNormal, libvgpu.PrioHigh}[random.IntN(3)]
		gains[c.JobID] = []float64{0, -1, -0.1, 0.1, 4}[random.IntN(5)]
		left -= c.Cores
		claims = append(claims, c)
	}
	return claims, gains
}

// A job that sleeps keeps its gain: what it is due is not learned anew at each request. After a
// longer pause it is forgotten: the job may do other work then.
func TestASleeperKeepsItsGain(t *testing.T) {
	var c card
	look := func(busy uint32, part float64) (gain float64, young bool) {
		used := make([]usage, 2)
		for i, p := range []float64{part, 1 - part} {
			used[i] = usage{ns: p * 50e6, span: 50 * msec, exact: true, wants: 1, turns: 10}
		}
		c.found([]Claim{claim(1, 50, hard, busy), claim(2, 50, hard, 1)}, used)
		c.entitle()
		c.divide(params, time.Now(), 0)
		return c.jobs[1].told, c.young
	}
	if _, young := look(1, 0.1); !young {
		t.Error("jobs of which nothing is known: slices are not short")
	}
	for range 39 {
		look(1, 0.1)
	}
	awake, _ := look(1, 0.1)
	asleep, _ := look(0, 0)
	if _, young := look(1, 0.1); young {
		t.Error("after a pause it counts as a job of which nothing is known")
	}
	if awake < 1 || asleep != awake {
		t.Errorf("gain %.2f, and %.2f asleep", awake, asleep)
	}
	for range 300 {
		asleep, _ = look(0, 0)
	}
	if asleep > 0.2 {
		t.Errorf("gain %.2f after 15 s asleep", asleep)
	}
}
