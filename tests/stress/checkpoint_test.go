// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
)

const (
	mib     = 1 << 20
	gib     = 1 << 30
	context = 544 * mib // what a context is charged
	onCard  = 500 * mib // and what it takes
	outOf   = 2         // CUDA_ERROR_OUT_OF_MEMORY
	// patience is how long anything may take: a busy machine is no fault.
	patience = 20 * time.Second
)

// process is a running tests/stress/programs/obeys.
type process struct {
	machine
	cmd    *exec.Cmd
	in     io.Writer
	out    *bufio.Scanner
	stderr strings.Builder
}

func (m machine) start(env []string, args ...string) *process {
	m.t.Helper()
	p := &process{machine: m, cmd: exec.Command("../../build/tests/obeys", args...)}
	p.cmd.Env, p.cmd.Stderr = env, &p.stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewScanner(out)
	m.t.Cleanup(p.kill)
	p.answer()
	return p
}

func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill() // it may have ended by itself
		_ = p.cmd.Wait()
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) tell(command string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) answer() map[string]any {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("the program ended: %v: %s", p.cmd.Wait(), p.stderr.String())
	}
	return decode(p.t, p.out.Bytes())
}

// does is an answer's number.
func (p *process) does(command, name string) float64 {
	p.t.Helper()
	p.tell(command)
	return p.answer()[name].(float64)
}

// checkpoint runs cuda-checkpoint's likeness and returns what it exits with and prints.
func (m machine) checkpoint(pid int, args ...string) (code int, out string) {
	m.t.Helper()
	cmd := exec.Command("../../build/tests/checkpoint", append([]string{"--pid", fmt.Sprint(pid)}, args...)...)
	cmd.Env = m.machineEnv()
	text, _ := cmd.Output()
	return cmd.ProcessState.ExitCode(), strings.TrimSpace(string(text))
}

func (p *process) action(name string) {
	p.t.Helper()
	if code, _ := p.checkpoint(p.pid(), "--action", name); code != 0 {
		p.t.Fatalf("%s: error %d", name, code)
	}
}

func (p *process) suspend() { p.t.Helper(); p.action("lock"); p.action("checkpoint") }
func (p *process) resume()  { p.t.Helper(); p.action("restore"); p.action("unlock") }

// on is the process's context on a card; false where it has none.
func (p *process) on(card int) (simgpu.ContextStatus, bool) {
	for _, c := range p.Status()[card].Contexts {
		if c.PID == p.pid() {
			return c, true
		}
	}
	return simgpu.ContextStatus{}, false
}

func (m machine) eventually(what string, ok func() bool) {
	m.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

func (p *process) hasSlice(us uint64) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("a slice of %d us", us), func() bool {
		c, ok := p.on(0)
		return ok && c.SliceUS == us
	})
}

// part returns the first's part of what both have of card 0 for a while, by its records, and the
// lateness of both (package processor).
func part(a, b *process) (part float64, late []float64) {
	had := func(p *process) float64 { c, _ := p.on(0); return float64(c.BusyNS) }
	lateness := func(p *process) float64 { return float64(p.Late(p.pid())) }
	began, a0, b0, aLate, bLate := time.Now(), had(a), had(b), lateness(a), lateness(b)
	time.Sleep(600 * time.Millisecond)
	da, db, took := had(a)-a0, had(b)-b0, float64(time.Since(began))
	return da / (da + db), []float64{min(1, (lateness(a)-aLate)/took), min(1, (lateness(b)-bLate)/took)}
}

// A job whose process cuda-checkpoint suspends beside a busy neighbour keeps what it has booked,
// and has its share, its slot and its limit as before when it goes on, twenty times.
func TestASuspendedProcessKeepsItsPlace(t *testing.T) {
	t.Parallel()
	const slice, held = 6000, 1536 * mib
	m := newMachine(t, oneCard)
	mine := m.job(1, 2*gib, libvgpu.Schedule{SliceUS: slice, Cores: 30, Others: 1})
	other := m.job(2, 78*gib, libvgpu.Schedule{SliceUS: 14000, Cores: 70, Others: 1})
	p := m.start(append(mine.env, "VGPU_LOG_LEVEL=2"), "--us", "20000", "--queued", "4")
	q := m.start(other.env, "--us", "20000", "--queued", "8")
	if r := p.does("alloc 992", "result"); r != 0 {
		t.Fatalf("alloc: %v", r)
	}
	for _, x := range []*process{p, q} {
		x.does("work", "result")
		x.hasSlice(map[*process]uint64{p: slice, q: 14000}[x])
	}
	before := mine.slot()
	if before.Cards[0].Mem != held {
		t.Fatalf("%d bytes charged, want %d", before.Cards[0].Mem, held)
	}
	for round := range 20 {
		p.suspend()
		if _, on := p.on(0); on {
			t.Fatalf("round %d: it is still on the card", round)
		}
		if round == 0 { // the neighbour may take all that is its own meanwhile
			for q.does("alloc 4096", "result") == 0 {
			}
		}
		if round%10 == 1 { // some looks at slices, which are nowhere
			time.Sleep(2500 * time.Millisecond)
		}
		s := mine.slot()
		if s.Cards[0].Mem != held || !s.Alive || s.Flags&libvgpu.SlotSlicesRefused != 0 {
			t.Fatalf("round %d: suspended, its slot is %+v", round, s)
		}
		p.resume()
		p.hasSlice(slice)
		c, _ := p.on(0)
		s = mine.slot()
		if s.Cards[0].Mem != held || s.Owner != before.Owner || s.Flags&libvgpu.SlotSlicesRefused != 0 {
			t.Fatalf("round %d: its slot is %+v", round, s)
		}
		if c.MemUsed != held-context+onCard {
			t.Fatalf("round %d: %d bytes on the card", round, c.MemUsed)
		}
		if r := p.does("alloc 600", "result"); r != outOf {
			t.Fatalf("round %d: 600 MiB more than a limit of 2 GiB has room for: result %v", round, r)
		}
		if r := p.does("alloc 256", "result"); r != 0 || p.does("free", "result") != 0 {
			t.Fatalf("round %d: 256 MiB of a limit with room for 512: result %v", round, r)
		}
		if round%4 != 3 {
			continue
		}
		m.eventually("its share, 0.3 of what both have", func() bool {
			got, late := part(p, q)
			t.Logf("round %d: %.3f of what both have; without a processor for %.3f of the time", round, got, late)
			low, high := processor.Bounds(0, 0.25, 0.35, []float64{0.3, 0.7}, late)
			return got > low && got < high
		})
	}
	if beats := mine.slot().HeartbeatNS; beats <= before.HeartbeatNS {
		t.Error("its watcher gives no sign of life")
	}
	p.does("rest", "done_ns")
	q.does("rest", "done_ns")
	if text := p.stderr.String(); strings.Contains(text, "slices") {
		t.Errorf("it was told %q", text)
	}
}

// Where the budget holds a job, launches that wait at the gate wait on, and neither they nor those
// that waited in the driver are charged for the time for which the process was suspended.
func TestSuspendedTimeIsNotCharged(t *testing.T) {
	t.Parallel()
	if part := chargedWhenSuspended(t); part < 0.9 || part > 1.3 {
		t.Errorf("charged %.3f of what its kernels took, want 0.9 to 1.3", part)
	}
}

// chargedWhenSuspended is what a job at a limit of 20 is charged that is suspended twenty times, as
// a part of what its kernels took.
func chargedWhenSuspended(t *testing.T) float64 {
	t.Helper()
	m := newMachine(t, oneCard)
	j := m.job(1, 8*gib, libvgpu.Schedule{Cores: 20, Gate: libvgpu.GateBudget, WeightPPM: 1e6, LeastPPM: 1e6})
	p := m.start(j.env, "--us", "2000", "--queued", "32")
	defer p.kill()
	p.does("work", "result")
	ran, began := 0.0, time.Now()
	for range 20 {
		time.Sleep(150 * time.Millisecond)
		p.suspend()
		ran += time.Since(began).Seconds()
		time.Sleep(200 * time.Millisecond)
		p.resume()
		began = time.Now()
	}
	time.Sleep(500 * time.Millisecond)
	ran += time.Since(began).Seconds()
	done := p.does("rest", "done_ns")
	view, err := libvgpu.ReadCache(j.cache)
	if err != nil {
		t.Fatal(err)
	}
	charged := float64(view.Cards[0].Budget.ChargedNS)
	t.Logf("%.2f s of work in %.2f s, charged %.3f of it", done/1e9, ran, charged/done)
	// What it is due for the time for which it was suspended it gets as far as it is kept: a burst.
	if done/1e9 > 0.25*ran+0.5 {
		t.Errorf("%.2f s of work in %.2f s at a limit of 20 %%", done/1e9, ran)
	}
	if view.Slots[0].Cards[0].InflightNS != 0 {
		t.Errorf("%d ns in flight at the end", view.Slots[0].Cards[0].InflightNS)
	}
	return charged / done
}

// What gresd says while a process is suspended holds from the moment at which it goes on.
func TestAGateThatIsShutWhileSuspended(t *testing.T) {
	t.Parallel()
	m := newMachine(t, oneCard)
	s := libvgpu.Schedule{Cores: 20, WeightPPM: 1e6, LeastPPM: 1e6}
	j := m.job(1, 8*gib, s)
	p := m.start(j.env, "--us", "2000", "--queued", "32")
	p.does("work", "result")
	for range 2 {
		s.Gate = 0
		j.grant.SetSchedule(0, s)
		time.Sleep(300 * time.Millisecond)
		p.suspend()
		s.Gate = libvgpu.GateBudget
		j.grant.SetSchedule(0, s)
		time.Sleep(300 * time.Millisecond)
		before, began := p.does("done", "done_ns"), time.Now()
		p.resume()
		time.Sleep(2 * time.Second)
		did := (p.does("done", "done_ns") - before) / 1e9
		if most := 0.2*time.Since(began).Seconds() + 0.2; did > most {
			t.Errorf("%.2f s of work, want at most %.2f", did, most)
		}
	}
}

// An allocation that is on its way when the process is suspended is charged once, and given.
func TestSuspendedInAnAllocation(t *testing.T) {
	t.Parallel()
	m := newMachine(t, oneCard)
	j := m.job(1, 4*gib, libvgpu.Schedule{Cores: 100})
	p := m.start(j.env)
	if err := m.Fail(simgpu.Fault{Call: "cuMemAlloc", Count: 1, PID: p.pid(), Slow: uint64(3 * time.Second)}); err != nil {
		t.Fatal(err)
	}
	p.tell("alloc 2048")
	m.eventually("an allocation that has begun", func() bool { s := j.slot(); return s.MemBegun != s.MemDone })
	p.suspend()
	time.Sleep(3500 * time.Millisecond)
	if s := j.slot(); s.Cards[0].Mem != 2*gib+context || s.MemBegun == s.MemDone {
		t.Errorf("suspended, its slot is %+v", s)
	}
	p.resume()
	if r := p.answer()["result"].(float64); r != 0 {
		t.Errorf("result %v", r)
	}
	if s := j.slot(); s.Cards[0].Mem != 2*gib+context || s.MemBegun != s.MemDone {
		t.Errorf("its slot is %+v", s)
	}
	if c, _ := p.on(0); c.MemUsed != 2*gib+onCard {
		t.Errorf("%d bytes on the card: process %d, card %+v", c.MemUsed, p.pid(), p.Status()[0])
	}
	if r := p.does("alloc 2048", "result"); r != outOf {
		t.Errorf("as much again: result %v", r)
	}
}

// Of a process that is killed while it is suspended all is given back.
func TestKilledWhileSuspended(t *testing.T) {
	t.Parallel()
	m := newMachine(t, oneCard)
	j := m.job(1, 4*gib, libvgpu.Schedule{Cores: 100, Gate: libvgpu.GateBudget, WeightPPM: 1e6, LeastPPM: 1e6})
	p := m.start(j.env)
	if r := p.does("alloc 2560", "result"); r != 0 {
		t.Fatalf("alloc: %v", r)
	}
	p.does("work", "result")
	p.suspend()
	q := m.start(j.env)
	if r := q.does("alloc 2560", "result"); r != outOf {
		t.Errorf("beside what is booked: result %v", r)
	}
	p.kill()
	m.eventually("room for another process", func() bool { return q.does("alloc 2560", "result") == 0 })
	if s := j.slot(); int(s.PID) != q.pid() || s.Cards[0].Mem != 2560*mib+context {
		t.Errorf("the slot is %+v", s)
	}
}

// Each card of a job has its slices again.
func TestSuspendedOnSeveralCards(t *testing.T) {
	t.Parallel()
	m := newMachine(t, strings.Replace(oneCard, "count = 1", "count = 2", 1))
	j := m.job(1, 4*gib, libvgpu.Schedule{Cores: 100, SliceUS: 4000})
	s := j.grant.Schedule(1)
	s.SliceUS = 7000
	j.grant.SetSchedule(1, s)
	p := m.start(append(j.env, "VGPU_LOG_LEVEL=2"), "--cards", "2")
	right := func() bool {
		a, on := p.on(0)
		b, too := p.on(1)
		return on && too && a.SliceUS == 4000 && b.SliceUS == 7000
	}
	m.eventually("slices of both cards", right)
	for round := range 3 {
		p.suspend()
		if round == 0 { // it asks the driver for nothing: its watcher looks on for slices
			time.Sleep(2500 * time.Millisecond)
			if f := j.slot().Flags; f&(libvgpu.SlotSlicesOK|libvgpu.SlotSlicesRefused) != 0 {
				t.Errorf("suspended, its flags are %#x", f)
			}
		}
		p.resume()
		m.eventually("slices of both cards, again", right)
		m.eventually("the flag", func() bool { return j.slot().Flags&libvgpu.SlotSlicesOK != 0 })
	}
	if text := p.stderr.String(); text != "" {
		t.Errorf("it was told %q", text)
	}
}
