// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func gresdPlaces(c *config.Config) {
	c.Placement.By, c.Placement.WaitS, c.Placement.Patience = config.PlacementGresd, 0, 2
}

// counted is a job of which slurmctld knows no more than how much it wants.
func (n *testNode) counted(id uint32, units gpu.Share, change ...func(*slurm.JobFacts)) wire.Request {
	n.t.Helper()
	return n.job(id, 0, append(change, func(f *slurm.JobFacts) { f.Units, f.Counted = nil, units })...)
}

// waitingJobs are those of the queue.
type waitingJobs []waitqueue.Job

// reservationTimeout is that of package waitqueue.
const reservationTimeout = 10 * time.Minute

// line is the queue of waiting jobs, as it is on the disk.
func (n *testNode) line() waitingJobs {
	n.t.Helper()
	jobs, err := atomicfile.ReadJSON[waitingJobs](n.cfg.Paths.Waiting(), slog.New(slog.DiscardHandler))
	if err != nil {
		n.t.Fatal(err)
	}
	return jobs
}

// Holder returns the job for which cards are reserved.
func (jobs waitingJobs) Holder() (job waitqueue.Job, ok bool) {
	i := slices.IndexFunc(jobs, func(j waitqueue.Job) bool { return len(j.Held) > 0 })
	if i < 0 {
		return job, false
	}
	return jobs[i], true
}

func (n *testNode) told(id uint32) string { return n.cluster.load().Told[id] }

// Two cards, each with 60 % in use, and a job of 80 %: small jobs could go on for
// ever, one taking the place of another.
func TestAJobThatWasSentBackOftenGetsCardsHeld(t *testing.T) {
	n := newTestNode(t, gresdPlaces).start()
	for id := uint32(1); id <= 4; id++ {
		n.want(n.counted(id, 30), wire.Granted)
	}
	// Binpack has put three on one card and one on the other.
	n.want(wire.Request{Op: wire.OpRelease, JobID: 1}, wire.Released)
	n.end(1)
	n.want(n.counted(5, 30, batch), wire.Granted)
	n.want(n.counted(6, 40), wire.Granted) // the other card: 70 % in use
	large := func() wire.Request { return n.counted(10, 80, batch) }
	n.want(large(), wire.Requeued)
	if told := n.told(10); !strings.Contains(told, "want 80 %") || !strings.HasSuffix(told, "(sent back once)") {
		t.Errorf("the user is told %q", told)
	}
	n.want(large(), wire.Requeued)
	if told := n.told(10); !strings.HasSuffix(told, "(sent back 2 times; card 0 is kept free for it)") {
		t.Errorf("the user is told %q", told)
	}
	n.restart() // what is held outlives gresd

	// A share of card 0 becomes free, and no other job gets it.
	n.want(wire.Request{Op: wire.OpRelease, JobID: 6}, wire.Released)
	n.end(6)
	small := n.want(n.counted(11, 30, batch), wire.Requeued)
	if !strings.Contains(small.Message, "card 0 is kept free for a job that has waited longer") {
		t.Errorf("the small job is told %q", small.Message)
	}
	e := n.explainAs(0, wire.Request{JobID: 11})
	if got := cardReasons(e); got != "held no_share" {
		t.Errorf("vgpuctl explain: %q", got)
	}
	// Nor one that wants both cards, which are not too few for that.
	n.want(n.counted(12, 200, batch), wire.Requeued)
	// One that finds room elsewhere is not kept waiting.
	n.want(n.counted(13, 10), wire.Granted)

	n.want(wire.Request{Op: wire.OpRelease, JobID: 4}, wire.Released)
	n.end(4)
	n.want(large(), wire.Granted)
	if told := n.told(10); told != "vgpu: place: found a card after it was sent back 2 times" {
		t.Errorf("the user is told %q", told)
	}
	n.want(n.counted(11, 10, batch), wire.Granted) // what is left of card 0 is free for all
}

func TestCardsAreNotHeldForAJobThatIsGone(t *testing.T) {
	n := newTestNode(t, gresdPlaces).start()
	n.want(n.counted(1, 60), wire.Granted)
	n.want(n.counted(2, 60), wire.Granted)
	for range 2 {
		n.want(n.counted(10, 80, batch), wire.Requeued)
	}
	n.queue.DropEndedJobs(t.Context(), time.Now())
	if job, ok := n.line().Holder(); !ok || job.ID != 10 {
		t.Fatalf("held for %+v, %v; want job 10, which is pending", job, ok)
	}
	n.cluster.change(t, func(s *clusterState) { s.Down = true })
	n.queue.DropEndedJobs(t.Context(), time.Now())
	if _, ok := n.line().Holder(); !ok {
		t.Error("nothing is held while slurmctld does not answer")
	}
	n.cluster.change(t, func(s *clusterState) { s.Down, s.Pending = false, nil }) // scancel
	n.queue.DropEndedJobs(t.Context(), time.Now())
	if len(n.line()) != 0 {
		t.Errorf("the line is %+v after the job was cancelled", n.line())
	}
	n.want(n.counted(3, 40), wire.Granted)
}

// A job that holds cards and does not come, for it was held or depends on
// another, gives them back.
func TestCardsAreNotHeldForever(t *testing.T) {
	n := newTestNode(t, gresdPlaces).start()
	n.want(n.counted(1, 60), wire.Granted)
	n.want(n.counted(2, 60), wire.Granted)
	for range 2 {
		n.want(n.counted(10, 80, batch), wire.Requeued)
	}
	n.want(wire.Request{Op: wire.OpRelease, JobID: 1}, wire.Released)
	n.end(1)
	n.queue.DropEndedJobs(t.Context(), time.Now())
	for _, look := range []struct {
		after time.Duration
		late  bool
	}{{reservationTimeout - time.Minute, false}, {reservationTimeout + time.Minute, true}} {
		n.queue.DropEndedJobs(t.Context(), time.Now().Add(look.after))
		if _, held := n.line().Holder(); held == look.late {
			t.Fatalf("after %s: cards are held: %v", look.after, held)
		}
	}
	n.want(n.counted(3, 90), wire.Granted)
}

// Jobs that cannot come again are not counted, nor does slurmctld's own choice
// make anybody wait.
func TestWhoIsNotInTheLine(t *testing.T) {
	n := newTestNode(t, gresdPlaces).start()
	n.want(n.counted(1, 200), wire.Granted)
	n.want(n.counted(10, 80), wire.Refused)
	if len(n.line()) != 0 {
		t.Errorf("the line is %+v, want nobody: srun does not come again", n.line())
	}
	m := newTestNode(t).start()
	m.want(m.job(1, 60), wire.Granted)
	m.want(m.job(2, 60, batch), wire.Requeued)
	if told := m.cluster.load().Told; len(m.line()) != 0 || len(told) != 1 || !strings.Contains(told[2], "want 60 %") {
		t.Errorf("where slurmctld chooses: line %+v, told %v", m.line(), told)
	}
	if !slices.Equal(m.cluster.load().Requeued, []uint32{2}) {
		t.Errorf("requeued %v", m.cluster.load().Requeued)
	}
}

// silentSlurm counts the questions that it lets wait in vain.
type silentSlurm struct {
	node.Slurm
	asked *int
}

func (s silentSlurm) Brief(context.Context, uint32, string) (slurm.JobFacts, error) {
	*s.asked++
	return slurm.JobFacts{}, slurm.ErrSilent
}

// While slurmctld is silent, it is waited for once, and not for each job in the line.
func TestASilentSlurmctldIsWaitedForOnce(t *testing.T) {
	n := newTestNode(t, gresdPlaces).start()
	n.want(n.counted(1, 200), wire.Granted)
	for id := range uint32(3) {
		n.want(n.counted(10+id, 80, batch), wire.Requeued)
	}
	asked, ask := 0, n.node.Slurm
	n.node.Slurm = func(conf string) node.Slurm { return silentSlurm{ask(conf), &asked} }
	n.queue.DropEndedJobs(t.Context(), time.Now())
	if asked != 1 || len(n.line()) != 3 {
		t.Errorf("asked %d times, %d jobs are left", asked, len(n.line()))
	}
}

// A file of gresd that makes no sense counts as empty. gresd logs that, once for each file.
func TestBrokenFilesAreLogged(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted) // there is a ledger
	n.stop()
	paths := []string{n.cfg.Paths.Waiting(), n.cfg.Paths.Survivors()}
	for _, path := range paths {
		if err := os.WriteFile(path, []byte("[{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	_, cleanup, err := assemble(n.cfg, n.dir, n.cluster, n.cards, n.count, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	cleanup()
	for _, path := range paths {
		if times := strings.Count(log.String(), "path="+path+" "); times != 1 {
			t.Errorf("%s is named %d times in the log, want once: %s", path, times, log.String())
		}
	}
}

// A file system that hangs while the line is written stops no placement.
func TestASlowLineStopsNoPlacement(t *testing.T) {
	n := newTestNode(t, gresdPlaces).start()
	n.want(n.counted(1, 60), wire.Granted)
	n.want(n.counted(2, 60), wire.Granted)
	n.want(n.counted(3, 60, batch), wire.Requeued)
	fifo := n.cfg.Paths.Waiting() + ".new" // opening it waits for a reader
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	request := n.counted(3, 60, batch)
	go func() {
		_, err := n.ask(request)
		waits <- err
	}()
	time.Sleep(200 * time.Millisecond)
	granted := make(chan wire.Reply, 1)
	small := n.counted(4, 10)
	go func() {
		rep, _ := n.ask(small)
		granted <- rep
	}()
	select {
	case rep := <-granted:
		if rep.Result != wire.Granted {
			t.Errorf("%+v", rep)
		}
	case err := <-waits:
		t.Errorf("the line was written: %v", err)
	case <-time.After(10 * time.Second):
		t.Error("no placement while the line is written")
	}
	_, err := os.ReadFile(fifo) // the write goes on, and fails
	t.Log(err)
}
