// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

// fakeDriver has no events; a card in errs fails, one in hangs answers late.
type fakeDriver struct {
	mu    sync.Mutex
	errs  map[gpu.UUID]error
	hangs map[gpu.UUID]time.Duration
}

func (f *fakeDriver) Probe(uuid gpu.UUID) (driver.Probe, error) {
	f.mu.Lock()
	err, late := f.errs[uuid], f.hangs[uuid]
	f.mu.Unlock()
	time.Sleep(late)
	return driver.Probe{}, err
}

func (f *fakeDriver) Events([]gpu.UUID) (*driver.Events, error) { return nil, driver.ErrNoEvents }

func (f *fakeDriver) set(uuid gpu.UUID, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs[uuid] = err
}

func open(t *testing.T, params Params, driver Driver) *Monitor {
	t.Helper()
	m, err := Open(params, driver, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func params(t *testing.T) Params {
	return Params{Path: filepath.Join(t.TempDir(), "cards.json"), Ignore: []uint64{13}, CleanProbes: 2, Every: 5 * time.Millisecond}
}

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 5 s: %s", what)
		}
	}
}

func TestRunFindsAndForgets(t *testing.T) {
	fake := &fakeDriver{errs: map[gpu.UUID]error{}, hangs: map[gpu.UUID]time.Duration{"GPU-b": 20 * time.Millisecond}}
	m := open(t, params(t), fake)
	var mu sync.Mutex
	var changes []Change
	m.OnChange(func(c Change) {
		if out := m.Out(c.UUID) != ""; out != c.Out { // no lock is held meanwhile
			t.Errorf("out %v, told %v", out, c.Out)
		}
		mu.Lock()
		defer mu.Unlock()
		changes = append(changes, c)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx, func() []gpu.UUID { return []gpu.UUID{"GPU-a", "GPU-b"} }) })
	defer running.Wait()
	defer cancel()

	fake.set("GPU-a", driver.ErrLost)
	within(t, "the card is out", func() bool { return strings.Contains(m.Out("GPU-a"), "lost") })
	if m.Out("GPU-b") != "" {
		t.Errorf("the other card: %s", m.Out("GPU-b"))
	}
	fake.set("GPU-a", nil)
	within(t, "the card is well again", func() bool { return m.Out("GPU-a") == "" })
	within(t, "both are told", func() bool { // shortly after they are so
		mu.Lock()
		defer mu.Unlock()
		return len(changes) == 2
	})
	m.hear(driver.Event{UUID: "GPU-b", XID: 13})
	if len(m.Sick()) != 0 {
		t.Errorf("sick: %v", m.Sick())
	}
	m.hear(driver.Event{UUID: "GPU-b", XID: 79})
	if why := m.Sick()["GPU-b"]; !strings.Contains(why, "XID 79") {
		t.Errorf("sick: %v", m.Sick())
	}
	mu.Lock()
	defer mu.Unlock()
	if len(changes) != 3 || !changes[0].Out || changes[1].Out || changes[1].Why != "" || changes[2].UUID != "GPU-b" {
		t.Errorf("changes %+v", changes)
	}
}

func TestWhatIsKnownOutlivesGresd(t *testing.T) {
	p := params(t)
	m := open(t, p, nil)
	if err := m.Cordon("GPU-a", "fan"); err != nil {
		t.Fatal(err)
	}
	m.hear(driver.Event{UUID: "GPU-b", XID: 48})
	m.note("GPU-c", func(rec Record) Record { rec.Uncorrected, rec.Counted = 7, true; return rec })

	m = open(t, p, nil)
	if !strings.Contains(m.Out("GPU-a"), "administrator: fan") || !strings.Contains(m.Out("GPU-b"), "XID 48") || m.Out("GPU-c") != "" {
		t.Errorf("known: %v", m.Sick())
	}
	m.note("GPU-c", func(rec Record) Record {
		return m.params.rules().probe(rec, driver.Probe{ECC: true, Uncorrected: 8}, nil, time.Now())
	})
	if !strings.Contains(m.Out("GPU-c"), "8 uncorrected memory errors, 7 before") {
		t.Errorf("errors while gresd was away: %q", m.Out("GPU-c"))
	}
	for _, uuid := range []gpu.UUID{"GPU-a", "GPU-b", "GPU-c"} {
		if was, err := m.Uncordon(uuid); !was || err != nil {
			t.Errorf("uncordon %s: %v, %v", uuid, was, err)
		}
	}
	if was, err := m.Uncordon("GPU-a"); was || err != nil {
		t.Errorf("uncordon twice: %v, %v", was, err)
	}
	if m = open(t, p, nil); len(m.Sick()) != 0 {
		t.Errorf("known: %v", m.Sick())
	}
}

func TestReportOnlyCordonsNothingByItself(t *testing.T) {
	p := params(t)
	p.ReportOnly = true
	m := open(t, p, nil)
	m.hear(driver.Event{UUID: "GPU-a", XID: 79})
	if m.Out("GPU-a") != "" || m.Sick()["GPU-a"] == "" {
		t.Errorf("out %q, sick %v", m.Out("GPU-a"), m.Sick())
	}
	if err := m.Cordon("GPU-a", ""); err != nil || m.Out("GPU-a") == "" {
		t.Errorf("an administrator's word: %v, %q", err, m.Out("GPU-a"))
	}
}

func TestAFileThatCannotBeReadStopsGresd(t *testing.T) {
	p := params(t)
	for _, text := range []string{"{", `{"version": 2}`} {
		if err := os.WriteFile(p.Path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(p, nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), p.Path) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestACordonThatCannotBeKeptIsSaid(t *testing.T) {
	p := params(t)
	m := open(t, p, nil)
	dir := filepath.Dir(p.Path)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := m.Cordon("GPU-a", ""); err == nil || m.Out("GPU-a") == "" {
		t.Errorf("error %v, out %q", err, m.Out("GPU-a"))
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m.note("GPU-b", func(rec Record) Record { return rec }) // any look tries again
	if m = open(t, p, nil); m.Out("GPU-a") == "" {
		t.Error("the cordon is lost")
	}
}

func TestDecide(t *testing.T) {
	const wrong = "card 0: XID 79"
	written := Written{
		Reasons:  []string{mark + wrong, "vgpu: card 1: lost"},
		Comments: []string{mark + wrong, "vgpu: card 1: lost"},
	}
	for _, c := range []struct {
		name     string
		facts    slurm.NodeFacts
		wrong    string
		draining bool
		want     act
	}{
		{"all is well", slurm.NodeFacts{State: "IDLE"}, "", false, nothing},
		{"all is well, drained by an administrator", slurm.NodeFacts{State: "IDLE+DRAIN", Reason: "disk"}, "", true, nothing},
		{"a comment of others", slurm.NodeFacts{State: "IDLE", Comment: "rack 7"}, wrong, false, nothing},
		{"no comment yet", slurm.NodeFacts{State: "IDLE"}, wrong, false, comment},
		{"an old comment of ours", slurm.NodeFacts{State: "IDLE", Comment: "vgpu: card 1: lost"}, wrong, false, comment},
		{"the right comment", slurm.NodeFacts{State: "IDLE", Comment: mark + wrong}, wrong, false, nothing},
		{"the comment of a card that is well", slurm.NodeFacts{State: "IDLE", Comment: mark + wrong}, "", false, comment},
		{"to drain", slurm.NodeFacts{State: "MIXED"}, wrong, true, drain},
		{"drained by us", slurm.NodeFacts{State: "MIXED+DRAIN", Reason: mark + wrong}, wrong, true, nothing},
		{"drained by us for another card", slurm.NodeFacts{State: "IDLE+DRAIN", Reason: "vgpu: card 1: lost"}, wrong, true, drain},
		{"drained by others", slurm.NodeFacts{State: "IDLE+DRAIN", Reason: "disk"}, wrong, true, nothing},
		{"drained by us, and well again", slurm.NodeFacts{State: "IDLE+DRAIN", Reason: mark + wrong}, "", true, resume},
		{"drained by us, before the policy changed", slurm.NodeFacts{State: "IDLE+DRAIN", Reason: mark + wrong}, wrong, false, resume},
		{"an old reason of a node that is up", slurm.NodeFacts{State: "IDLE", Reason: mark + wrong}, "", true, nothing},
	} {
		if got := decide(c.facts, written, c.wrong, c.draining); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// A text that starts as gresd's, and that gresd has not written, is an administrator's.
func TestTextsOfAnAdministratorStay(t *testing.T) {
	const wrong = "card 0: XID 48"
	for _, text := range []string{mark + wrong + " - RMA 4711, do not resume", "vgpu: maintenance of the driver"} {
		for _, draining := range []bool{true, false} {
			for _, sick := range []string{wrong, ""} {
				n := &node{NodeFacts: slurm.NodeFacts{State: "IDLE"}}
				memory := memory{}
				tell := func(wrong string) {
					if err := Tell(t.Context(), n, memory, "n1", wrong, draining); err != nil {
						t.Fatal(err)
					}
				}
				tell(wrong)
				n.State, n.Reason, n.Comment, n.acts = "IDLE+DRAIN", text, text, 0
				tell(sick)
				if n.acts != 0 {
					t.Errorf("reason and comment %q, draining %v, sick %q: gresd wrote %+v", text, draining, sick, n.NodeFacts)
				}
			}
		}
	}
	// The same words, copied from the comment by hand.
	n, memory := &node{NodeFacts: slurm.NodeFacts{State: "IDLE"}}, memory{}
	tell := func() error { return Tell(t.Context(), n, memory, "n1", wrong, false) }
	err := tell()
	n.State, n.Reason = "IDLE+DRAIN", n.Comment
	if err = errors.Join(err, tell()); err != nil {
		t.Fatal(err)
	}
	if n.State != "IDLE+DRAIN" || n.Reason != mark+wrong {
		t.Errorf("got %+v", n)
	}
}

// The texts that gresd has written outlive it, and a crash before slurmctld has the text.
func TestTextsOfGresdOutliveIt(t *testing.T) {
	p := params(t)
	n := &node{NodeFacts: slurm.NodeFacts{State: "IDLE"}}
	tell := func(wrong string) error { return Tell(t.Context(), n, open(t, p, nil), "n1", wrong, true) }
	if err := tell("card 0: XID 48"); err != nil {
		t.Fatal(err)
	}
	n.refuses = errors.New("down")
	if err := tell("card 0: lost"); !errors.Is(err, n.refuses) {
		t.Errorf("error %v", err)
	}
	n.refuses = nil
	if err := tell(""); err != nil || n.State != "IDLE" {
		t.Errorf("got %+v, %v; want the node resumed", n, err)
	}
	if left := open(t, p, nil).Written("n1"); len(left.Reasons) != 0 {
		t.Errorf("left %+v", left)
	}
}

// memory is a Memory of one node.
type memory map[string]Written

func (m memory) Written(node string) Written { return m[node] }
func (m memory) SetWritten(node string, all Written) error {
	m[node] = all
	return nil
}

// node is a node of slurmctld.
type node struct {
	slurm.NodeFacts
	err     error
	refuses error
	acts    int
}

func (n *node) Node(context.Context, string) (slurm.NodeFacts, error) { return n.NodeFacts, n.err }
func (n *node) DrainNode(_ context.Context, _, reason string) error {
	if n.refuses != nil {
		return n.refuses
	}
	n.State, n.Reason, n.acts = "IDLE+DRAIN", reason, n.acts+1
	return nil
}

func (n *node) ResumeNode(context.Context, string) error {
	n.State, n.Reason, n.acts = "IDLE", "", n.acts+1
	return nil
}

func (n *node) CommentNode(_ context.Context, _, text string) error {
	n.Comment, n.acts = text, n.acts+1
	return nil
}

func TestTell(t *testing.T) {
	n := &node{NodeFacts: slurm.NodeFacts{State: "IDLE", Comment: "vgpu: old"}}
	memory := memory{"n1": {Comments: []string{"vgpu: old"}}}
	tell := func(wrong string, draining bool) {
		t.Helper()
		if err := Tell(t.Context(), n, memory, "n1", wrong, draining); err != nil {
			t.Fatal(err)
		}
	}
	tell("card 0: XID=79\nState=DOWN", true)
	if n.State != "IDLE+DRAIN" || n.Reason != "vgpu: card 0: XID 79 State DOWN" || n.Comment != "" {
		t.Errorf("got %+v", n)
	}
	acts := n.acts
	if tell("card 0: XID=79\nState=DOWN", true); n.acts != acts {
		t.Error("slurmctld was told twice")
	}
	tell("card 0: lost", false) // the policy changed
	if n.State != "IDLE" || n.Comment != "vgpu: card 0: lost" {
		t.Errorf("got %+v", n)
	}
	if tell("", false); n.Comment != "" {
		t.Errorf("got %+v", n)
	}
	n.err = errors.New("down")
	if err := Tell(t.Context(), n, memory, "n1", "x", false); !errors.Is(err, n.err) {
		t.Errorf("error %v", err)
	}
	if got := oneLine(strings.Repeat("é", 200)); len(got) > 204 || !strings.HasSuffix(got, "é...") {
		t.Errorf("got %q", got)
	}
}
