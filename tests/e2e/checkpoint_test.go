// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
)

// obedient is a job of tests/stress/programs/obeys, which does what it is told.
type obedient struct {
	site
	user     string
	job, pid int
	machine  *simgpu.Machine
	answers  int
}

func (s site) obedient(m *simgpu.Machine, user, args string) *obedient {
	s.t.Helper()
	o := &obedient{site: s, user: user, machine: m}
	// Its input has a writer as long as the job runs.
	o.job = s.submit(user, args, "mkfifo in\nsleep 600 >in &\nexec "+cluster.Dir+"/bin/obeys --us 20000 <in")
	s.running(o.job)
	o.pid = int(o.answer()["pid"])
	return o
}

func (o *obedient) answer() map[string]float64 {
	o.t.Helper()
	var line map[string]float64
	o.eventually(shortWait, "an answer", func() bool {
		n := 0
		for text := range strings.Lines(o.Output(o.user, o.job)) {
			if !strings.HasSuffix(text, "\n") || !strings.HasPrefix(text, "{") { // what it is told by others
				continue
			}
			if n == o.answers {
				return json.Unmarshal([]byte(text), &line) == nil
			}
			n++
		}
		return false
	})
	o.answers++
	return line
}

func (o *obedient) does(command string) float64 {
	o.t.Helper()
	in, err := os.OpenFile(filepath.Join(o.Home(o.user), "in"), os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprintln(in, command)
	}
	if err != nil {
		o.t.Fatal(err)
	}
	defer in.Close()
	return o.answer()["result"]
}

// toggle suspends it, or brings it back, as its user does with cuda-checkpoint.
func (o *obedient) toggle() {
	o.t.Helper()
	if r := o.As(o.user, cluster.Dir+"/bin/checkpoint", "--pid", fmt.Sprint(o.pid), "--toggle"); r.Code != 0 {
		o.t.Fatal(r)
	}
}

func (o *obedient) onCard() (c simgpu.ContextStatus, on bool) {
	for _, c := range o.machine.Status()[0].Contexts {
		if c.PID == o.pid {
			return c, true
		}
	}
	return c, false
}

// record is what gresd says that the job has and does.
func (o *obedient) record() wire.JobCard {
	o.t.Helper()
	records, err := o.Records()
	if err != nil {
		o.t.Fatal(err)
	}
	for _, r := range records {
		if r.JobID == uint32(o.job) && len(r.Cards) == 1 && r.Cards[0].UsedBytes != nil && r.Cards[0].Busy != nil {
			return r.Cards[0]
		}
	}
	o.t.Fatalf("nothing is known of job %d: %+v", o.job, records)
	return wire.JobCard{}
}

// booked is what the job has, with what no slot announces, and its only slot.
func (o *obedient) booked() (used uint64, slot libvgpu.SlotView) {
	o.t.Helper()
	view, err := libvgpu.ReadCache(filepath.Join(cluster.JobDir(o.job), "cache"))
	if err != nil || len(view.Slots) != 1 {
		o.t.Fatalf("%d slots, %v; want one", len(view.Slots), err)
	}
	return *o.record().UsedBytes, view.Slots[0]
}

// A process that cuda-checkpoint suspends beside a busy neighbour, and brings back, twenty times,
// keeps all that its job has booked. gresd takes it neither for gone nor for a stranger, and it
// has its share again.
func TestCheckpointedJobKeepsItsShare(t *testing.T) {
	opts := oneCard
	s := up(t, opts)
	for _, name := range []string{"obeys", "checkpoint"} {
		data, err := os.ReadFile(filepath.Join("../../build/tests", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(cluster.Dir, "bin", name), data, 0o755)
		}
		if err != nil {
			t.Fatalf("%v (run make first)", err)
		}
	}
	m, err := simgpu.Open(cluster.Dir + "/simgpu/state")
	if err != nil {
		t.Fatal(err)
	}
	mine := s.obedient(m, alice, "--gres=vgpu:30 --vgpu-mem=8G")
	other := s.obedient(m, bob, "--gres=vgpu:70")
	if r := mine.does("alloc 6000"); r != 0 {
		t.Fatalf("alloc: %v", r)
	}
	mine.does("work")
	other.does("work")
	own := m.Status()[0].Contexts[0].SliceUS
	s.eventually(shortWait, "slices are set", func() bool {
		a, on := mine.onCard()
		b, too := other.onCard()
		return on && too && a.SliceUS != own && b.SliceUS > a.SliceUS
	})
	var before uint64
	var slot libvgpu.SlotView
	s.eventually(shortWait, "gresd has read what it allocated", func() bool {
		before, slot = mine.booked()
		return before >= slot.Cards[0].Mem
	})
	here, _ := mine.onCard()
	for round := range 20 {
		mine.toggle()
		if _, on := mine.onCard(); on {
			t.Fatalf("round %d: it is still on the card", round)
		}
		switch round {
		case 0: // what the neighbour may have is no part of it
			for other.does("alloc 10000") == 0 {
			}
		case 1: // for longer than a process without a sign of life is believed in
			time.Sleep(12 * time.Second)
			if *mine.record().Busy {
				t.Error("suspended, it is taken for busy")
			}
		default:
			time.Sleep(200 * time.Millisecond)
		}
		if used, now := mine.booked(); used != before || !now.Alive || now.Owner != slot.Owner {
			t.Fatalf("round %d: suspended, %d bytes of %d are booked; slot %+v", round, used, before, now)
		}
		mine.toggle()
		s.eventually(shortWait, "its slices are set again", func() bool {
			c, on := mine.onCard()
			_, now := mine.booked()
			return on && uint64(now.Cards[0].SliceUS) == c.SliceUS && now.Flags == slot.Flags
		})
		if c, _ := mine.onCard(); c.MemUsed != here.MemUsed {
			t.Fatalf("round %d: %d bytes on the card, want %d", round, c.MemUsed, here.MemUsed)
		}
		if used, now := mine.booked(); used != before || now.Owner != slot.Owner {
			t.Fatalf("round %d: %d bytes of %d are booked; slot %+v", round, used, before, now)
		}
		if r := mine.does("alloc 2000"); r != 2 {
			t.Fatalf("round %d: more than its limit: result %v", round, r)
		}
		if round%4 > 1 {
			continue
		}
		got := 0.0
		s.eventually(shortWait, "it has its share", func() bool {
			got = partOfCard(mine, other)
			return got > 0.25 && got < 0.35
		})
	}
	if got := audited(t, "unregistered") + audited(t, "exceeded") + audited(t, "stranger"); got != "000" {
		t.Errorf("audit counted %s, want nothing", got)
	}
	s.cancel(alice, mine.job)
	s.cancel(bob, other.job)
}

// partOfCard is the first's part of what both have of the card for a second, by its records.
func partOfCard(a, b *obedient) float64 {
	had := func(o *obedient) float64 { c, _ := o.onCard(); return float64(c.BusyNS) }
	a0, b0 := had(a), had(b)
	time.Sleep(time.Second)
	da, db := had(a)-a0, had(b)-b0
	return da / (da + db)
}
