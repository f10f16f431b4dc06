// SPDX-License-Identifier: Apache-2.0

package main

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
)

// scenario is one node under a stream of jobs. Jobs arrive at random (Poisson),
// and one that does not fit at once is refused.
type scenario struct {
	mix   mix
	cards int
	// load is the work that is offered, in parts of what the node can do.
	load float64
	jobs int
	seed uint64
}

// result is what a rule made of a scenario, in percent.
type result struct {
	used    float64 // of the node's card time
	refused float64 // of the work that was offered
}

// ending is a job that runs.
type ending struct {
	at    float64
	cards []int
	units int
}

type endings []ending

func (e endings) Len() int           { return len(e) }
func (e endings) Less(i, j int) bool { return e[i].at < e[j].at }
func (e endings) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *endings) Push(x any)        { *e = append(*e, x.(ending)) }

func (e *endings) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// node counts the card time that is used.
type node struct {
	free  []int
	live  endings
	now   float64
	used  int     // units
	spent float64 // units × time
}

// until lets time pass, and ends what ends in it.
func (n *node) until(t float64) {
	for len(n.live) > 0 && n.live[0].at <= t {
		e := heap.Pop(&n.live).(ending)
		n.pass(e.at)
		for _, i := range e.cards {
			n.free[i] += e.units
			n.used -= e.units
		}
	}
	n.pass(t)
}

func (n *node) pass(t float64) {
	n.spent += float64(n.used) * (t - n.now)
	n.now = t
}

func (n *node) start(cards []int, units int, life float64) {
	for _, i := range cards {
		if n.free[i] -= units; n.free[i] < 0 {
			panic(fmt.Sprintf("card %d is over-committed", i))
		}
		n.used += units
	}
	heap.Push(&n.live, ending{n.now + life, cards, units})
}

// run gives every rule the same jobs at the same times.
func (s scenario) run(r rule) result {
	random := rand.New(rand.NewPCG(s.seed, 1))
	total, mean := s.mix.total()
	rate := s.load * float64(100*s.cards) / mean // a job lives for 1 on average
	n := node{free: make([]int, s.cards)}
	for i := range n.free {
		n.free[i] = 100
	}
	var from, offered, refused float64
	for i := range s.jobs + s.jobs/10 {
		arrival := n.now + random.ExpFloat64()/rate
		job := s.mix.pick(random.IntN(total))
		life := math.Exp(lifeSigma*random.NormFloat64() - lifeSigma*lifeSigma/2)
		n.until(arrival)
		if i == s.jobs/10 { // the node is full by now: start to count
			from, n.spent, offered, refused = n.now, 0, 0, 0
		}
		work := float64(job.cards*job.units) * life
		offered += work
		if cards := r.pick(n.free, job); len(cards) > 0 {
			n.start(cards, job.units, life)
		} else {
			refused += work
		}
	}
	return result{
		used:    100 * n.spent / (n.now - from) / float64(100*s.cards),
		refused: 100 * refused / offered,
	}
}
