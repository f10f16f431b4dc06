// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// An operation is a line of worker/operations.c.
type operation struct {
	word string
	arg  [4]int
}

// A process ends after some milliseconds, unless that is 0, and is started again (worker/worker.c).
type process struct {
	livesMS, how int
	threads      [][]operation
}

// A program of some processes of a job.
type program struct {
	limit    int  // percent
	blocking bool // CUDA_LAUNCH_BLOCKING
	memory   int  // limit of the memory, GiB
	lease    bool // the limit comes from a grant whose gate is open until its lease expires
	procs    []process
}

const (
	header    = "# limit %d blocking %t memory %d lease %t\n"
	oldHeader = "# limit %d blocking %t\n"
	oldMemory = 32 // GiB, of a program with the old header
)

func (p program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, header, p.limit, p.blocking, p.memory, p.lease)
	for _, proc := range p.procs {
		fmt.Fprintf(&b, "proc %d %d\n", proc.livesMS, proc.how)
		for _, thread := range proc.threads {
			b.WriteString("thread\n")
			for _, o := range thread {
				fmt.Fprintf(&b, "%s %d %d %d %d\n", o.word, o.arg[0], o.arg[1], o.arg[2], o.arg[3])
			}
		}
	}
	return b.String()
}

// parse reads what String wrote.
func parse(text string) (p program, err error) {
	first, rest, _ := strings.Cut(text, "\n")
	if _, err := fmt.Sscanf(first+"\n", header, &p.limit, &p.blocking, &p.memory, &p.lease); err != nil {
		p = program{memory: oldMemory}
		if _, err := fmt.Sscanf(first+"\n", oldHeader, &p.limit, &p.blocking); err != nil {
			return p, fmt.Errorf("first line %q: %w", first, err)
		}
	}
	for line := range strings.Lines(rest) {
		var o operation
		word, numbers, _ := strings.Cut(strings.TrimSpace(line), " ")
		o.word = word
		for i, n := range strings.Fields(numbers) {
			if _, err := fmt.Sscan(n, &o.arg[min(i, 3)]); err != nil {
				return p, fmt.Errorf("line %q: %w", line, err)
			}
		}
		last := len(p.procs) - 1
		switch {
		case word == "" || word[0] == '#':
		case word == "proc":
			p.procs = append(p.procs, process{livesMS: o.arg[0], how: o.arg[1]})
		case last < 0:
			return p, fmt.Errorf("line %q: before the first process", line)
		case word == "thread":
			p.procs[last].threads = append(p.procs[last].threads, nil)
		case len(p.procs[last].threads) == 0:
			return p, fmt.Errorf("line %q: before the first thread", line)
		default:
			t := &p.procs[last].threads[len(p.procs[last].threads)-1]
			*t = append(*t, o)
		}
	}
	return p, nil
}

// Kinds of operations. A program has a few of them, or none would come often enough to matter.
var kinds = []struct {
	words []string
	alone bool // only of a process with one thread
}{
	{words: []string{"wait", "waitall"}},
	{words: []string{"poll", "sleep"}},
	{words: []string{"copy", "copy"}},
	{words: []string{"restream"}},
	{words: []string{"context"}},
	{words: []string{"context", "end"}, alone: true},
	{words: []string{"retain"}},
	{words: []string{"green"}},
	{words: []string{"reset", "context"}, alone: true},
	{words: []string{"record", "waitevent", "done"}},
	{words: []string{"host"}},
	{words: []string{"captured", "graph", "graph"}},
	{words: []string{"captured", "drop", "graph"}},
	{words: []string{"captured"}},
	{words: []string{"alloc"}},
}

// generate makes a program of a seed.
func generate(seed uint64) program {
	r := rand.New(rand.NewPCG(seed, 31))
	p := generateBasic(seed)
	p.lease = r.IntN(5) == 0
	for _, add := range []func(*rand.Rand, *program){addLengths, addMemGraphs, addExports, addRing} {
		if r.IntN(10) < 3 {
			add(r, &p)
		}
	}
	if p.lease && r.IntN(4) != 0 {
		// Without this, much work is in the queues when the lease expires, and little is judged.
		p = p.clone()
		for i := range p.procs {
			for k := range p.procs[i].threads {
				p.procs[i].threads[k] = append(p.procs[i].threads[k], operation{word: "waitall"})
			}
		}
	}
	return p
}

// pickOf returns one of some numbers.
func pickOf(r *rand.Rand, of ...int) int { return of[r.IntN(len(of))] }

// insert puts operations, which stay together and in order, at random places of some list of the program.
func (p program) insert(r *rand.Rand, groups ...[]operation) {
	proc := p.procs[r.IntN(len(p.procs))]
	k := r.IntN(len(proc.threads))
	for _, g := range groups {
		t := &proc.threads[k]
		*t = slices.Insert(*t, r.IntN(len(*t)+1), g...)
	}
}

// addLengths adds launches of one kernel whose length varies. Two of three such programs have little else.
func addLengths(r *rand.Rand, p *program) {
	if r.IntN(3) != 0 {
		for i := range p.procs {
			for k := range p.procs[i].threads {
				p.procs[i].threads[k] = nil
			}
		}
	}
	how, factor, pause := r.IntN(4), pickOf(r, 1, 10, 30, 100, 300, 1000), pickOf(r, 0, 5, 15, 25, 50)
	for range len(p.procs) {
		p.insert(r, []operation{{"vary", [4]int{r.IntN(7), how, factor, pause}}})
	}
}

// addMemGraphs adds graphs with nodes that allocate and free.
func addMemGraphs(r *rand.Rand, p *program) {
	p.memory = pickOf(r, 4, 8, 16, 16)
	for range 1 + r.IntN(2) {
		slot := r.IntN(4)
		made := operation{"memgraph", [4]int{slot, pickOf(r, 64, 64, 512, 1024, 3072), r.IntN(8), r.IntN(3)}}
		if r.IntN(4) == 0 { // the same by a capture
			s := r.IntN(4)
			p.insert(r, []operation{
				{"begin", [4]int{s, r.IntN(4), slot}},
				{"alloc", [4]int{s}},
				{"launch", [4]int{s, 200, 1}},
				{"alloc", [4]int{s}},
				{"capture", [4]int{s, slot}},
				{"graph", [4]int{s, slot}},
			})
			continue
		}
		p.insert(r, []operation{made, {"graph", [4]int{r.IntN(7), slot}}}, []operation{{"graph", [4]int{r.IntN(7), slot}}})
	}
}

// addExports adds memory that is exported and imported, in any order.
func addExports(r *rand.Rand, p *program) {
	p.memory = pickOf(r, 4, 8, 16, 16)
	words := []string{"export", "import", "map", "unmap", "release", "shut", "range"}
	if len(p.procs) > 1 && r.IntN(2) == 0 {
		words = append(words, "give", "take")
	}
	size := pickOf(r, 64, 64, 512, 1024, 3072)
	var l []operation
	for range 1 + r.IntN(3) {
		slot := r.IntN(4)
		l = append(l, operation{"create", [4]int{slot, size}}, operation{"export", [4]int{slot}},
			operation{"import", [4]int{slot, r.IntN(4)}}, operation{"map", [4]int{r.IntN(4)}})
	}
	for range 2 + r.IntN(8) {
		l = append(l, operation{words[r.IntN(len(words))], [4]int{r.IntN(4), r.IntN(4)}})
	}
	if r.IntN(3) == 0 {
		slot := r.IntN(4)
		l = append(l, operation{"pool", [4]int{slot}}, operation{"fill", [4]int{slot, size}}, operation{"share", [4]int{slot}})
	}
	if r.IntN(2) == 0 {
		r.Shuffle(len(l), func(i, j int) { l[i], l[j] = l[j], l[i] })
	}
	p.insert(r, l)
}

// addRing makes processes that wait for each other, by kernels or by streams.
func addRing(r *rand.Rand, p *program) {
	of := pickOf(r, 2, 2, 3, 4)
	for len(p.procs) < of {
		p.procs = append(p.procs, p.clone().procs[0])
	}
	p.procs = p.clone().procs[:of] // no list of two processes
	us, how := pickOf(r, 10, 100, 1000), r.IntN(4)
	for i := range p.procs {
		p.procs[i].livesMS = 0
		t := &p.procs[i].threads[0]
		*t = slices.DeleteFunc(*t, func(o operation) bool {
			// These make a round long, end the context of the ring, or capture its launches.
			return slices.Contains([]string{"host", "sleep", "context", "end", "reset", "begin", "capture"}, o.word)
		})
		*t = slices.Insert(*t, r.IntN(len(*t)+1), operation{"ring", [4]int{i, of, us, how}})
	}
}

// generateBasic makes a program that launches and copies.
func generateBasic(seed uint64) program {
	r := rand.New(rand.NewPCG(seed, 30))
	pick := func(of ...int) int { return of[r.IntN(len(of))] }
	p := program{limit: pick(15, 20, 30, 40), blocking: r.IntN(5) == 0, memory: oldMemory}
	length := pick(100, 300, 1000, 2000, 5000)
	streams := pick(1, 2, 7)
	fresh := pick(0, 0, 1, 2) // never, always or sometimes
	some := make([]int, pick(0, 1, 1, 2, 3))
	for i := range some {
		some[i] = r.IntN(len(kinds))
	}
	var words []string
	threads := pick(1, 1, 1, 2, 3)
	for _, k := range some {
		if !kinds[k].alone || threads == 1 {
			words = append(words, kinds[k].words...)
		}
	}
	base := r.IntN(7)
	stream := func() int { return (base + r.IntN(streams)) % 7 }
	launch := func() operation {
		grid := 1 + r.IntN(3)
		if fresh == 1 || fresh == 2 && r.IntN(2) == 0 {
			grid = 0
		}
		return operation{"launch", [4]int{stream(), length * pick(1, 1, 1, 2) / pick(1, 1, 1, 4), grid, pick(0, 0, 0, 1, 2, 3)}}
	}
	list := func() (l []operation) {
		for range 1 + r.IntN(8) {
			if len(words) == 0 || r.IntN(2) == 0 {
				l = append(l, launch())
				continue
			}
			o := operation{word: words[r.IntN(len(words))]}
			switch o.word {
			case "sleep":
				o.arg[0] = pick(50, 500, 3000)
			case "poll":
				o.arg = [4]int{stream(), pick(20, 200, 2000)}
			case "host": // the last: what is behind it counts as stuck
				o.arg = [4]int{stream(), pick(20, 200, 2000, 200000)}
			case "context", "end", "drop":
				o.arg[0] = r.IntN(4)
			case "record", "waitevent", "done":
				o.arg = [4]int{r.IntN(4), stream()}
			case "captured":
				s, g := r.IntN(4), r.IntN(4)
				l = append(l, operation{"begin", [4]int{s, r.IntN(4), g}})
				for range 1 + r.IntN(3) {
					inner := launch()
					if r.IntN(4) != 0 {
						inner.arg[0] = s
					}
					l = append(l, inner)
				}
				o = operation{"capture", [4]int{s, g}}
			default:
				o.arg = [4]int{stream(), r.IntN(19), r.IntN(4)}
			}
			l = append(l, o)
		}
		return append(l, launch())
	}
	for range pick(1, 1, 1, 2, 3, 4) {
		proc := process{}
		if r.IntN(6) == 0 {
			proc.livesMS, proc.how = pick(300, 700), r.IntN(3)
		}
		for range threads {
			proc.threads = append(proc.threads, list())
		}
		p.procs = append(p.procs, proc)
	}
	if len(p.procs) > 1 && r.IntN(2) == 0 { // all the same
		for i := range p.procs {
			p.procs[i] = p.procs[0]
		}
	}
	return p
}

// without returns the programs that lack some of this one, the smallest first.
func (p program) without() (out []program) {
	if p.blocking {
		q := p.clone()
		q.blocking = false
		out = append(out, q)
	}
	if p.lease {
		q := p.clone()
		q.lease = false
		out = append(out, q)
	}
	for i := range p.procs {
		if len(p.procs) > 1 {
			q := p.clone()
			q.procs = append(q.procs[:i], q.procs[i+1:]...)
			out = append(out, q)
		}
		if p.procs[i].livesMS != 0 {
			q := p.clone()
			q.procs[i].livesMS, q.procs[i].how = 0, 0
			out = append(out, q)
		}
		for k := range p.procs[i].threads {
			if len(p.procs[i].threads) > 1 {
				q := p.clone()
				q.procs[i].threads = append(q.procs[i].threads[:k], q.procs[i].threads[k+1:]...)
				out = append(out, q)
			}
			all := len(p.procs[i].threads[k])
			for n := all / 2; n > 0; n /= 2 {
				for at := 0; at < all && all > 1; at += n {
					q := p.clone()
					t := q.procs[i].threads[k]
					q.procs[i].threads[k] = append(t[:at], t[min(at+n, all):]...)
					out = append(out, q)
				}
			}
		}
	}
	return out
}

// each calls f for each operation.
func (p program) each(f func(proc, thread int, o operation)) {
	for i, proc := range p.procs {
		for k, t := range proc.threads {
			for _, o := range t {
				f(i, k, o)
			}
		}
	}
}

// has returns true if the program has one of the operations.
func (p program) has(words ...string) (found bool) {
	p.each(func(_, _ int, o operation) { found = found || slices.Contains(words, o.word) })
	return found
}

// onlyRing returns true if the program launches nothing but the kernels of rings.
func (p program) onlyRing() bool {
	only := true
	p.each(func(_, _ int, o operation) { only = only && o.word == "ring" })
	return only
}

// ring returns true if the processes form a whole ring. Only then do its rounds go on.
func (p program) ring() bool {
	ranks, of, good := map[int]int{}, 0, true
	p.each(func(i, k int, o operation) {
		if o.word == "ring" {
			ranks[o.arg[0]]++
			of = o.arg[1]
			good = good && k == 0 && p.procs[i].livesMS == 0
		}
	})
	for i := range of {
		good = good && ranks[i] == 1
	}
	return good && of > 0
}

func (p program) clone() program {
	q := p
	q.procs = append([]process(nil), p.procs...)
	for i := range q.procs {
		q.procs[i].threads = append([][]operation(nil), p.procs[i].threads...)
		for k := range q.procs[i].threads {
			q.procs[i].threads[k] = append([]operation(nil), p.procs[i].threads[k]...)
		}
	}
	return q
}
