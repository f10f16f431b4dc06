// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// oneAnswers is a driver that tells of the first card only.
type oneAnswers struct{ card gpu.UUID }

func (o oneAnswers) Cards(uuids []gpu.UUID) map[gpu.UUID]gputime.Card {
	found := map[gpu.UUID]gputime.Card{}
	for _, uuid := range uuids {
		if uuid == o.card {
			found[uuid] = gputime.Card{Usage: driver.Usage{Memory: 5 << 30, Busy: 93, MemoryBusy: 41, Known: true}}
		}
	}
	return found
}

func TestUseOfCardsAndWhatWasAsked(t *testing.T) {
	n := newTestNode(t).start()
	n.report.Samples = oneAnswers{n.cards.cards[0].UUID}
	job := func(id uint32, units gpu.Share, mem, cores string, comment string) {
		req := n.job(id, units, func(f *slurm.JobFacts) { f.Comment = comment })
		req.Options.Mem, req.Options.Cores = mem, cores
		n.want(req, wire.Granted)
	}
	job(1, 20, "", "", "")
	job(2, 40, "40%", "10", "vgpu(share=15)") // the shards are for the memory
	job(3, 10, "2G", "", "")
	type asked struct {
		share, cores uint32
		bytes        uint64
	}
	cards, jobs := n.report.Snapshot()
	for i, want := range []asked{{20, 20, 0}, {15, 10, 40 << 30}, {10, 10, 2 << 30}} {
		c := jobs[i].Cards[0]
		got := asked{share: c.AskedShare, cores: c.AskedCores}
		if c.AskedBytes != nil {
			got.bytes = *c.AskedBytes
		}
		if got != want || c.ByProcess != nil {
			t.Errorf("job %d asked for %+v, want %+v", jobs[i].JobID, got, want)
		}
		if c.LaunchesThrottled == nil || c.Refused == nil || c.ContextBytes == nil {
			t.Errorf("job %d: its cache can be read: %+v", jobs[i].JobID, c.JobUse)
		}
		// Nobody told of work, nor of who used the card.
		if c.Busy != nil || c.Turns != nil || c.Utilization != nil || c.LastWork != nil {
			t.Errorf("job %d: %+v", jobs[i].JobID, c.JobUse)
		}
	}
	if c := cards[0]; c.UsedBytes == nil || *c.UsedBytes != 5<<30 || *c.Utilization != 0.93 || *c.MemoryUtilization != 0.41 {
		t.Errorf("card 0: %+v", c.CardUse)
	}
	if c := cards[1]; c.UsedBytes != nil || c.Utilization != nil {
		t.Errorf("card 1 does not answer: %+v", c.CardUse)
	}
}

func TestCorrectionsAreCounted(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(1, 20), wire.Granted)
	n.want(n.job(2, 20), wire.Granted)
	n.want(n.job(3, 20), wire.Granted)
	n.end(1)
	if err := os.Mkdir(n.cfg.Paths.Job(99), 0o700); err != nil { // of nobody
		t.Fatal(err)
	}
	if err := n.Reconcile(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n.count.counts["corrected released"] != 1 || n.count.counts["corrected removed"] != 1 {
		t.Errorf("counted %v, want one release and one folder removed", n.count.counts)
	}
	n.stop()
	if err := os.RemoveAll(n.cfg.Paths.Job(2)); err != nil {
		t.Fatal(err)
	}
	n.start()
	if n.count.counts["corrected remade"] != 1 {
		t.Errorf("counted %v, want files made again", n.count.counts)
	}
	n.stop()
	if err := os.RemoveAll(n.cfg.Paths.StateDir); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(n.cfg.Paths.Job(2)); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.want(n.job(4, 20), wire.Granted) // tells the names of the node
	if err := n.Reconcile(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n.count.counts["corrected rebuilt"] != 1 || n.count.counts["corrected recovered"] != 1 {
		t.Errorf("counted %v, want a record rebuilt and a job recovered", n.count.counts)
	}
}

// A process in which libvgpu has no thread is named to the administrator.
func TestAProcessWithoutAThreadOfTheLibraryIsAProblem(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 20), wire.Granted)
	path := n.file(7, "cache")
	putSlot(t, path, 1<<30, 0)
	putOwner(t, path)
	flagged := func() bool {
		return slices.ContainsFunc(n.allProblems(true), func(p string) bool { return strings.Contains(p, "of job 7 has no thread of libvgpu") })
	}
	if flagged() {
		t.Errorf("problems %q", n.allProblems(true))
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{libvgpu.SlotUnwatched}, 2097152+3072+32); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); !flagged(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("problems %q", n.allProblems(true))
		}
	}
}
