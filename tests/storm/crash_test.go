// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
)

func TestMain(m *testing.M) {
	Become()
	processor.Prefer()
	if err := cluster.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// long asks for all points; otherwise some are tried.
var long = os.Getenv("VGPU_LONG") != ""

// newNode makes a node whose ledger is in state; "" for a folder of its own.
func newNode(t *testing.T, state string) *Node {
	t.Helper()
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/run", "storm-")
	if err != nil {
		t.Fatal(err)
	}
	if state == "" {
		state = filepath.Join(dir, "state")
	}
	n, err := New(build, dir, state, 2, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Kill()
		if log, err := os.ReadFile(n.Log()); t.Failed() && err == nil {
			t.Logf("the end of gresd's log:\n%s", log[max(0, len(log)-3000):])
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return n
}

// killer kills a watched gresd at one point.
type killer struct {
	mu    sync.Mutex
	at    int    // counted from the last call of arm; 0: never
	kind  string // or at the first of this kind
	seen  int
	last  Point
	fired bool           // it has killed gresd since arm
	kinds map[string]int // of points at which it was killed
	names []string       // of all points since arm
}

func (k *killer) decide(p Point) Verdict {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen++
	k.names = append(k.names, p.Kind())
	if k.seen != k.at && (k.kind == "" || p.Kind() != k.kind) {
		return Verdict{}
	}
	k.last, k.fired = p, true
	k.kinds[p.Kind()]++
	return Verdict{Kill: true}
}

func (k *killer) arm(at int) { k.armKind(at, "") }

func (k *killer) armKind(at int, kind string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.at, k.kind, k.seen, k.names, k.fired = at, kind, 0, nil, false
}

func (k *killer) hasFired() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fired
}

// reached is the last point since arm.
func (k *killer) reached() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen
}

func (k *killer) killed() int {
	sum := 0
	for _, n := range k.kinds {
		sum += n
	}
	return sum
}

// crash is one test of gresd that is killed again and again.
type crash struct {
	*testing.T
	node   *Node
	record *Record
	killer *killer
}

func newCrash(t *testing.T, state string) *crash {
	n := newNode(t, state)
	k := &killer{kinds: map[string]int{}}
	n.Watch = &Watch{Decide: k.decide}
	return &crash{t, n, NewRecord(n), k}
}

func (c *crash) must(what string, err error) {
	c.Helper()
	if err != nil {
		c.Fatalf("%s, after kill at point %d (%s): %v", what, c.killer.at, c.killer.last.Kind(), err)
	}
}

// recover starts gresd again after a kill, checks it, and ends all jobs.
func (c *crash) recover() {
	c.Helper()
	c.must("dead gresd", c.record.CheckDead())
	c.killer.arm(0)
	c.must("start", c.node.Start())
	c.check()
}

// check holds a gresd that was started again against the record, and ends all jobs.
func (c *crash) check() {
	c.Helper()
	c.must("gresd started again", c.record.CheckAlive())
	c.must("ask again", c.record.Settle())
	c.must("all released", c.record.CheckAlive())
	c.must("forget", c.record.Forget())
}

// storm lets clients ask until gresd dies or they are done; it reports which.
func (c *crash) storm(seed uint64, clients, steps int) (died bool) {
	c.Helper()
	errs := make([]error, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() { errs[i] = c.record.Client(seed+uint64(i), steps) })
	}
	all.Wait()
	for _, err := range errs {
		if errors.Is(err, ErrDead) {
			died = true
		} else if err != nil {
			c.must("storm", err)
		}
	}
	if died && !c.killer.hasFired() {
		c.must("storm", errors.Join(append(errs, fmt.Errorf("gresd was not killed and does not answer; it runs: %v", c.node.Alive()))...))
	}
	if died {
		c.node.Wait() // the kernel ends it as soon as its threads have a processor
	}
	return died
}

// each tries points 1, 1+step, … until one is not reached.
func (c *crash) each(step int, try func(at int) (died bool)) (points int) {
	for at := 1; ; at += step {
		if !try(at) {
			return points
		}
		points++
		c.recover()
	}
}

// One client's storm has the same points each time: gresd is killed at each, in
// the long run, or at some.
func TestKilledAtEachPointOfAStorm(t *testing.T) {
	c := newCrash(t, "")
	c.must("start", c.node.Start())
	steps, every := 40, 1
	if !long {
		every = 17
	}
	const seed = 7
	c.each(every, func(at int) bool {
		c.killer.arm(at)
		return c.storm(seed, 1, steps)
	})
	c.report(map[bool]int{false: 25, true: 400}[long])
	for _, want := range []string{
		"write ledger.journal-#", "fsync ledger.journal-#", "create jobs/new-#/.grant.new", "write jobs/new-#/.grant.new", "rename jobs/new-#/.grant.new", "rename jobs/new-#/.cache.new",
		"rename jobs/new-#", "unlink jobs/#/grant", "write reply",
	} {
		if long && c.killer.kinds[want] == 0 {
			t.Errorf("never killed at %q: the storm has lost a kind of point", want)
		}
	}
}

// report says where gresd was killed, and fails when that is too little.
func (c *crash) report(least int) {
	c.Helper()
	for _, kind := range slices.Sorted(maps.Keys(c.killer.kinds)) {
		c.Logf("%4d × %s", c.killer.kinds[kind], kind)
	}
	c.Logf("killed at %d points of %d kinds; %d answers", c.killer.killed(), len(c.killer.kinds), c.record.Answers)
	if c.killer.killed() < least {
		c.Errorf("killed at %d points: want %d", c.killer.killed(), least)
	}
}

// The next gresd may be killed while it makes things good again, also after a
// reboot, which takes the folders of jobs, or the loss of the ledger.
func TestKilledAtEachPointOfItsStart(t *testing.T) {
	every := 1
	if !long {
		every = 11
	}
	for name, lose := range map[string]func(*crash) error{
		"after a kill":    func(*crash) error { return nil },
		"without folders": func(c *crash) error { return os.RemoveAll(c.node.run()) },
		"without a ledger": func(c *crash) error {
			// Slurm no longer names those that have ended: nothing else knows it.
			return errors.Join(c.record.Forget(), os.Remove(c.node.Ledger()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrash(t, "")
			c.record.NoSet = name == "without a ledger" // only the ledger knows it
			c.must("start", c.node.Start())
			for at := 1; ; at += every {
				c.killer.arm(150) // in the middle of a grant or a release
				if !c.storm(uint64(at), 1, 1000) {
					t.Fatal("the storm ended without a kill")
				}
				c.must("dead gresd", c.record.CheckDead())
				c.must("lose", lose(c))
				c.killer.arm(at)
				err := c.node.Start()
				if err == nil {
					break
				}
				if !errors.Is(err, ErrEnded) {
					t.Fatal(err)
				}
				c.killer.arm(0)
				c.must("start", c.node.Start())
				c.check()
			}
			c.killer.arm(0)
			c.check()
			c.report(map[bool]int{false: 1, true: 5}[long])
		})
	}
}

// Many clients at the same time, killed anywhere.
func TestKilledAtRandomPointsOfAStorm(t *testing.T) {
	c := newCrash(t, "")
	c.must("start", c.node.Start())
	seed := uint64(time.Now().UnixNano())
	dice := rand.New(rand.NewPCG(seed, 2))
	t.Logf("seed %d", seed)
	for i := range map[bool]int{false: 12, true: 500}[long] {
		if at := 1 + dice.IntN(600); i%2 == 0 {
			c.killer.arm(at)
		} else { // in the first storm after a start, with a snapshot beside
			c.node.Kill()
			c.killer.arm(0)
			c.must("start", c.node.Start())
			c.killer.arm(1 + at/6)
		}
		if !c.storm(dice.Uint64(), 8, 1000) {
			t.Fatal("the storm ended without a kill")
		}
		c.recover()
	}
	c.report(map[bool]int{false: 12, true: 500}[long])
}

// A kill cannot tell whether a file was made durable, because the kernel keeps it; a
// power cut can. So the order of the calls is looked at.
func TestDurableBeforeAnswered(t *testing.T) {
	c := newCrash(t, "")
	c.must("start", c.node.Start())
	begin := []string{"create ledger.journal-#", "write ledger.journal-#", "fsync ledger.journal-#"}
	snapshot := []string{"create ledger.json.new", "write ledger.json.new", "fsync ledger.json.new", "rename ledger.json.new"}
	batch := []string{"write ledger.journal-#", "fsync ledger.journal-#"}
	grant, release := []string{"rename jobs/new-#", "write reply"}, []string{"unlink jobs/#/grant", "write reply"}

	c.killer.arm(0)
	_, err := c.one() // also names the node, once
	c.must("first grant", err)
	c.inOrder("first grant", slices.Concat(begin, snapshot, grant))
	c.before("fsync ", "create ledger.json.new")
	c.after("rename ledger.json.new", "fsync ")

	c.killer.arm(0)
	job, err := c.one()
	c.must("grant", err)
	c.inOrder("grant", slices.Concat(batch, grant))
	c.killer.arm(0)
	c.must("release", c.record.Release(job))
	c.inOrder("release", slices.Concat(batch, release))

	// A gresd that was started anew begins a journal, and a snapshot beside.
	c.node.Kill()
	c.killer.arm(0)
	c.must("start", c.node.Start())
	c.before("fsync ledger.json", "write reply") // what the dead one may not have synced
	c.before("fsync ledger.journal-#", "write reply")
	c.killer.arm(0)
	_, err = c.one()
	c.must("grant", err)
	c.inOrder("grant after a start", slices.Concat(begin, grant))
	c.before("fsync ", "rename jobs/new-#")
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && !c.passed("unlink ledger.journal-#"); {
		time.Sleep(time.Millisecond)
	}
	c.inOrder("snapshot", append(snapshot, "unlink ledger.journal-#"))
}

func (c *crash) passed(name string) bool {
	c.killer.mu.Lock()
	defer c.killer.mu.Unlock()
	return slices.Contains(c.killer.names, name)
}

// before wants the first of one kind of points before the first of another.
func (c *crash) before(first, second string) {
	c.Helper()
	c.killer.mu.Lock()
	defer c.killer.mu.Unlock()
	at, then := slices.Index(c.killer.names, first), slices.Index(c.killer.names, second)
	if at < 0 || then < 0 || at > then {
		c.Errorf("%q, at %d, is not before %q, at %d: %q", first, at, second, then, c.killer.names)
	}
}

// after wants one kind of points at once after another.
func (c *crash) after(first, second string) {
	c.Helper()
	c.killer.mu.Lock()
	defer c.killer.mu.Unlock()
	at := slices.Index(c.killer.names, first)
	if at < 0 || at+1 == len(c.killer.names) || c.killer.names[at+1] != second {
		c.Errorf("after %q there is not %q: %q", first, second, c.killer.names)
	}
}

// inOrder wants these among the points since arm, each once and in this order.
func (c *crash) inOrder(what string, want []string) {
	c.Helper()
	c.killer.mu.Lock()
	defer c.killer.mu.Unlock()
	var got []string
	for _, name := range c.killer.names {
		if slices.Contains(want, name) {
			got = append(got, name)
		}
	}
	if !slices.Equal(got, want) {
		c.Errorf("%s: %q, want %q", what, got, want)
	}
}
