// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

func batch(f *slurm.JobFacts) { f.Batch = true }

func TestGrantAndRelease(t *testing.T) {
	n := newTestNode(t).start()
	req := n.job(7, 30)
	req.Options = wire.Options{Mem: "8G", Cores: "25", Mode: "soft:80", Priority: "high"}
	n.want(req, wire.Granted)
	spec, _, err := libvgpu.ReadGrant(n.file(7, "grant"))
	if err != nil {
		t.Fatal(err)
	}
	want := libvgpu.GrantCard{
		UUID: string(n.cards.cards[0].UUID), MemLimit: 8 << 30, MemOverhead: 527 << 20, Share: 30, Cores: 25,
		Mode: libvgpu.ModeSoft, Ceiling: 80, Priority: libvgpu.PrioHigh,
	}
	if spec.JobID != 7 || spec.UID != nobody || len(spec.Cards) != 1 || spec.Cards[0] != want {
		t.Errorf("grant %+v\nwant card %+v", spec, want)
	}
	if n.want(wire.Request{Op: wire.OpRelease, JobID: 7}, wire.Released); exists(n.cfg.Paths.Job(7)) {
		t.Error("the folder is still there")
	}
	if len(n.ledger.List()) != 0 || len(n.grants.Open()) != 0 {
		t.Error("the ledger or the store still has the job")
	}
	n.want(wire.Request{Op: wire.OpRelease, JobID: 7}, wire.None)
	n.want(wire.Request{Op: wire.OpRelease, JobID: 12345}, wire.None)
}

// A task whose job had no Prolog knows neither the name of its node nor the run
// of its job. Nor does it take away what gresd knows of the node.
func TestGrantOnATasksWord(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(1, 10), wire.Granted) // a Prolog has named the node
	late := n.job(2, 30, func(f *slurm.JobFacts) { f.Restarts = 3 })
	late.Node, late.Conf = "", ""
	n.want(late, wire.Granted)
	if rec, _ := n.ledger.Get(2); rec.Restarts != 3 || rec.Placement.Cards[0].Share != 30 {
		t.Errorf("record %+v, want 30 %% in run 3", rec)
	}
	// One that was sent back holds nothing any more, and must not run as if it had
	// never wanted a share.
	for _, state := range []string{"COMPLETING", "PENDING", "REQUEUED"} {
		late := n.job(4, 0, func(f *slurm.JobFacts) { f.Units, f.State = nil, state })
		late.Node, late.GPUs = "", []int{0}
		if rep, err := n.ask(late); err == nil || rep.Result == wire.None {
			t.Errorf("a task of a job that is %s: %q, %v; want an error", state, rep.Result, err)
		}
	}
	late = n.job(3, 30)
	late.Conf = ""
	n.want(late, wire.Granted)
	if conf := n.node.All()["n1"]; conf != "/etc/slurm/slurm.conf" {
		t.Errorf("slurm.conf of the node is %q now", conf)
	}
}

func TestMarkForTasksWithoutShards(t *testing.T) {
	n := newTestNode(t, gresdPlaces).start()
	if !exists(n.cfg.Paths.Ask()) {
		t.Error("tasks are not told to ask")
	}
	// The mark of a job whose Epilog was lost goes with the job.
	n.want(n.job(1, 0, func(f *slurm.JobFacts) { f.Units, f.Counted = nil, 0 }), wire.None)
	n.job(2, 0)
	for _, name := range []string{"2", "3"} {
		path := filepath.Join(n.cfg.Paths.JobStates(), name)
		if err := errors.Join(os.MkdirAll(n.cfg.Paths.JobStates(), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(20 * time.Millisecond) // the clock of files is coarse
	if err := n.Reconcile(t.Context()); err != nil {
		t.Error(err)
	}
	if !exists(filepath.Join(n.cfg.Paths.JobStates(), "2")) || exists(filepath.Join(n.cfg.Paths.JobStates(), "3")) {
		t.Error("want the mark of the living job 2, and none of the ended job 3")
	}
	n.cfg.Placement.By = config.PlacementSlurm
	n.restart()
	if exists(n.cfg.Paths.Ask()) {
		t.Error("tasks are still told to ask")
	}
}

func TestGrantDefaults(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	spec, schedules, err := libvgpu.ReadGrant(n.file(7, "grant"))
	if err != nil {
		t.Fatal(err)
	}
	if c := spec.Cards[0]; c.MemLimit != 30<<30 || c.Cores != 30 || c.Mode != libvgpu.ModeHard || schedules[0].Gate != 1 {
		t.Errorf("card %+v, schedule %+v; want 30 %% of everything, hard", c, schedules[0])
	}
}

func TestGrantReadsTheComment(t *testing.T) {
	n := newTestNode(t).start()
	req := n.job(7, 40, func(f *slurm.JobFacts) {
		f.Batch, f.Comment = true, "mine vgpu(share=20,mem=40G,mode=soft) too"
	})
	req.Options = wire.Options{Mode: "hard"} // an option beats the comment
	n.want(req, wire.Granted)
	rec, _ := n.ledger.Get(7)
	if c := rec.Placement.Cards[0]; c.Share != 40 || c.Cores != 20 || c.Memory != 40*gpu.GiB || rec.Mode != gpu.Hard {
		t.Errorf("card %+v, mode %s", c, rec.Mode)
	}
}

func TestGrantIsIdempotent(t *testing.T) {
	n := newTestNode(t).start()
	req := n.job(7, 30)
	n.want(req, wire.Granted)
	first := inode(t, n.file(7, "grant"))
	n.want(req, wire.Granted)
	if inode(t, n.file(7, "grant")) != first {
		t.Error("a second Prolog of the same run replaced the grant")
	}
	req.Restart = 1 // requeued, and the Epilog was lost
	n.want(req, wire.Granted)
	if len(n.ledger.List()) != 1 {
		t.Errorf("%d records, want 1", len(n.ledger.List()))
	}
	second := inode(t, n.file(7, "grant"))
	n.restart()
	n.want(req, wire.Granted)
	if inode(t, n.file(7, "grant")) != second {
		t.Error("after a restart of gresd, a second Prolog of the same run replaced the grant")
	}
	first7, _ := n.ledger.Get(7)
	req.Restart = 2
	n.want(req, wire.Granted)
	if again, _ := n.ledger.Get(7); again.Restarts != 2 || !again.Created.After(first7.Created) {
		t.Errorf("record of the third run %+v", again)
	}
}

func TestRequeuedRunGetsAnEmptyCache(t *testing.T) {
	n := newTestNode(t).start()
	req := n.job(7, 30)
	n.want(req, wire.Granted)
	if err := os.Truncate(n.file(7, "cache"), 0); err != nil { // what the first run left
		t.Fatal(err)
	}
	req.Restart = 1
	n.want(req, wire.Granted)
	if _, err := libvgpu.ReadCache(n.file(7, "cache")); err != nil {
		t.Errorf("cache of the second run: %v", err)
	}
}

func TestNone(t *testing.T) {
	n := newTestNode(t).start()
	noCard := n.job(7, 30, func(f *slurm.JobFacts) { f.Units = nil })
	n.want(noCard, wire.None)
	whole := n.job(8, 30, func(f *slurm.JobFacts) { f.Units, f.WholeCards = nil, []int{0} })
	whole.GPUs = []int{0}
	n.want(whole, wire.None)
	if exists(n.cfg.Paths.Job(7)) || exists(n.cfg.Paths.Job(8)) {
		t.Error("a job without a share has a folder")
	}
}

func TestWholeCardsAskedForAsShares(t *testing.T) {
	n := newTestNode(t).start()
	req := n.job(9, 30, func(f *slurm.JobFacts) {
		f.Units, f.WholeCards, f.Comment = nil, []int{0, 1}, "vgpu(share=200)"
	})
	req.GPUs = []int{0, 1}
	n.want(req, wire.Granted)
	spec, _, err := libvgpu.ReadGrant(n.file(9, "grant"))
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Cards) != 2 || spec.Cards[0].Share != 100 || spec.Cards[1].Share != 100 || spec.Cards[0].MemLimit == 0 {
		t.Errorf("cards %+v", spec.Cards)
	}
}

// slurmd gives the Prolog that a step brings to its node the options of the step.
func TestStepDoesNotChangeTheOptionsOfItsJob(t *testing.T) {
	for name, change := range map[string]func(*slurm.JobFacts){
		"no batch job":           func(*slurm.JobFacts) {},
		"second node of a batch": func(f *slurm.JobFacts) { f.Batch, f.NodeList = true, "n1,"+f.NodeList },
	} {
		for _, given := range []wire.Options{{}, {Mem: "4G", Mode: "hard"}} {
			n := newTestNode(t).start()
			req := n.job(7, 40, func(f *slurm.JobFacts) { f.Comment = "vgpu(mem=8G,mode=soft)" }, change)
			req.Options = given
			n.want(req, wire.Granted)
			rec, _ := n.ledger.Get(7)
			if c := rec.Placement.Cards[0]; c.Memory != 8*gpu.GiB || rec.Mode != gpu.Soft {
				t.Errorf("%s, a step with %+v: %v and mode %s, want the job's 8 GiB and soft", name, given, c.Memory, rec.Mode)
			}
		}
	}
}

// slurmd gives every component of a het job the options of the first.
func TestHetComponentFollowsItsOwnComment(t *testing.T) {
	n := newTestNode(t).start()
	req := n.job(10, 40, func(f *slurm.JobFacts) { f.HetJobID, f.Comment = 9, "vgpu(mem=2G,share=20)" })
	req.Options = wire.Options{Mem: "8G"}
	n.want(req, wire.Granted)
	spec, _, err := libvgpu.ReadGrant(n.file(10, "grant"))
	if err != nil {
		t.Fatal(err)
	}
	if c := spec.Cards[0]; c.MemLimit != 2<<30 || c.Cores != 20 {
		t.Errorf("got %d bytes and %d cores, want 2 GiB and 20", c.MemLimit, c.Cores)
	}
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*slurm.JobFacts)
		opts   wire.Options
		say    string
	}{
		"a size that cannot be read":      {func(*slurm.JobFacts) {}, wire.Options{Mem: "1.5g"}, "vgpu: request: job 7: --vgpu-mem"},
		"more memory than the shards":     {func(*slurm.JobFacts) {}, wire.Options{Mem: "60G"}, "vgpu: place: job 7: --vgpu-mem"},
		"a mode that the site forbids":    {func(*slurm.JobFacts) {}, wire.Options{Mode: "off"}, "--vgpu-mode"},
		"a card that is not there":        {func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{5: 30} }, wire.Options{}, "card 5"},
		"two options at once wrong":       {func(*slurm.JobFacts) {}, wire.Options{Mem: "x", Cores: "y"}, "--vgpu-mem"},
		"a comment whose token is broken": {func(f *slurm.JobFacts) { f.Comment = "vgpu(mem=8G" }, wire.Options{}, "--comment"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t).start()
			req := n.job(7, 30, c.change)
			req.Options = c.opts
			rep := n.want(req, wire.Refused)
			if !strings.Contains(rep.Message, c.say) {
				t.Errorf("message %q, want %q in it", rep.Message, c.say)
			}
			text, err := os.ReadFile(n.file(7, "refused"))
			if err != nil || string(text) != rep.Message+"\n" {
				t.Errorf("refused file %q, %v", text, err)
			}
			if exists(n.file(7, "grant")) {
				t.Error("there is a grant")
			}
			if again := n.want(req, wire.Refused); again.Message != rep.Message {
				t.Errorf("second answer %q", again.Message)
			}
			n.want(wire.Request{Op: wire.OpRelease, JobID: 7}, wire.Released)
		})
	}
}

// A job must not be able to drain a node with its name.
func TestFactsThatCannotBeReadRefuseTheJob(t *testing.T) {
	n := newTestNode(t).start()
	req := n.job(7, 30)
	n.cluster.change(t, func(s *clusterState) { s.Broken = map[uint32]string{7: "its name imitates scontrol"} })
	if rep := n.want(req, wire.Refused); !strings.Contains(rep.Message, "imitates") {
		t.Errorf("message %q", rep.Message)
	}
	if rec, _ := n.ledger.Get(7); rec.UID != nobody {
		t.Errorf("user %d", rec.UID)
	}
}

func TestHetJobIsClampedToItsShards(t *testing.T) {
	n := newTestNode(t).start()
	req := n.job(7, 20, func(f *slurm.JobFacts) { f.HetJobID = 6 })
	req.Options = wire.Options{Mem: "80G", Cores: "70"} // of another component
	n.want(req, wire.Granted)
	rec, _ := n.ledger.Get(7)
	if c := rec.Placement.Cards[0]; c.Memory != 20*gpu.GiB || c.Cores != 20 {
		t.Errorf("card %+v, want what 20 shards cover", c)
	}
}

// slurmctld may be starting when a job is to be sent back. A job that stays has no
// card, and fails.
func TestRequeueWaitsForSlurmctld(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(1, 80), wire.Granted)
	second := n.job(2, 30, batch)
	n.cluster.change(t, func(c *clusterState) { c.Absent = 1 })
	n.want(second, wire.Requeued)
	third := n.job(3, 30, batch)
	n.cluster.change(t, func(c *clusterState) { c.Deaf = true })
	n.want(third, wire.Requeued)
	if got := n.cluster.load().Requeued; !slices.Equal(got, []uint32{2, 3}) {
		t.Errorf("requeued %v, want jobs 2 and 3 once each", got)
	}
}

func TestNoRoom(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(1, 80), wire.Granted)

	rep := n.want(n.job(2, 30, batch), wire.Requeued)
	if !strings.Contains(rep.Message, "20 %") {
		t.Errorf("message %q, want what is free", rep.Message)
	}
	if got := n.cluster.load().Requeued; !slices.Equal(got, []uint32{2}) {
		t.Errorf("requeued %v, want job 2", got)
	}
	if exists(n.cfg.Paths.Job(2)) {
		t.Error("a requeued job has a folder")
	}
	n.want(n.job(3, 30), wire.Refused) // srun and salloc cannot be requeued

	// The first job ends without its Epilog: the next one finds room.
	n.end(1)
	n.want(n.job(4, 30, batch), wire.Granted)
	if exists(n.cfg.Paths.Job(1)) {
		t.Error("the ended job was not released")
	}
}

func TestSlurmctldDown(t *testing.T) {
	n := newTestNode(t).start()
	req := n.job(7, 30)
	n.cluster.change(t, func(s *clusterState) { s.Down = true })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if rep := n.Server.grant(ctx, req); rep.OK || rep.Kind != wire.KindBusy {
		t.Errorf("got %+v, want one that may pass", rep)
	}
	// It comes back while a Prolog waits.
	time.AfterFunc(100*time.Millisecond, func() { n.cluster.change(t, func(s *clusterState) { s.Down = false }) })
	n.want(req, wire.Granted)
}

// deadlines notes how long slurmctld is waited for.
type deadlines struct {
	node.Slurm
	got *time.Duration
}

func (d deadlines) Job(ctx context.Context, jobID uint32, node string) (slurm.JobFacts, error) {
	if until, ok := ctx.Deadline(); ok {
		*d.got = time.Until(until)
	}
	return d.Slurm.Job(ctx, jobID, node)
}

// A slurmctld that hangs, or whose backup takes over, drains no node.
func TestPrologOutlastsAFailoverOfSlurmctld(t *testing.T) {
	n := newTestNode(t).start()
	real, got := n.node.Slurm, time.Duration(0)
	n.node.Slurm = func(conf string) node.Slurm { return deadlines{real(conf), &got} }
	rep := n.Server.dispatch(t.Context(), n.job(7, 30), wire.Cred{UID: 0})
	if !rep.OK || got < 2*time.Minute || got > 145*time.Second {
		t.Errorf("%+v: slurmctld is waited for for %s, want 2 min, less than a Prolog waits", rep, got)
	}
}

func TestJobThatSlurmctldForgotIsNoNodeFault(t *testing.T) {
	n := newTestNode(t).start()
	req := n.job(7, 30)
	n.end(7)
	var refused *wire.Error
	if _, err := n.ask(req); !errors.As(err, &refused) || refused.Kind != wire.KindUser {
		t.Errorf("got %v, want an error of kind user", err)
	}
}

func TestGresdPlaces(t *testing.T) {
	n := newTestNode(t, gresdPlaces).start()
	counted := func(count gpu.Share) func(*slurm.JobFacts) {
		return func(f *slurm.JobFacts) { f.Units, f.Counted = nil, count }
	}
	n.want(n.job(1, 0, counted(60)), wire.Granted)
	n.want(n.job(2, 0, counted(60)), wire.Granted)
	one, _ := n.ledger.Get(1)
	two, _ := n.ledger.Get(2)
	if one.Placement.Cards[0].UUID == two.Placement.Cards[0].UUID {
		t.Error("two jobs of 60 on one card")
	}
	n.want(n.job(3, 0, counted(60), batch), wire.Requeued) // 40 + 40 are free
	n.want(n.job(4, 0, counted(40)), wire.Granted)

	greedy := n.job(5, 0, counted(10))
	greedy.Options = wire.Options{Mem: "30G"} // slurmctld counted only 10
	if rep := n.want(greedy, wire.Refused); !strings.Contains(rep.Message, "--gres=vgpu:30") {
		t.Errorf("message %q, want what would be right", rep.Message)
	}
	n.want(n.job(6, 0, func(f *slurm.JobFacts) { f.Units = nil }), wire.None)
}

func TestOversubscribedMemory(t *testing.T) {
	n := newTestNode(t, func(c *config.Config) {
		c.Cards = map[string]config.Card{config.AllCards: {MemScaling: 1}, string(twoCards().cards[0].UUID): {MemScaling: 2}}
	}).start()
	req := n.job(7, 60)
	req.Options.Mem = "110G" // more than the card has
	n.want(req, wire.Granted)
	n.want(n.job(8, 40), wire.Granted)
	n.want(n.job(9, 40, func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{1: 40} }), wire.Granted)
	for job, want := range map[uint32][2]uint64{7: {110 << 30, 55 << 30}, 8: {80 << 30, 40 << 30}, 9: {40 << 30, 0}} {
		spec, _, err := libvgpu.ReadGrant(n.file(job, "grant"))
		if c := spec.Cards[0]; err != nil || c.MemLimit != want[0] || c.MemPhysical != want[1] {
			t.Errorf("job %d: grant %+v, %v; want %d", job, c, err, want)
		}
	}
	cards, jobs := n.report.Snapshot()
	if c := cards[0]; c.MemoryBytes != 200<<30 || c.PhysicalBytes != 100<<30 || c.GrantedBytes != 190<<30 {
		t.Errorf("card %+v", c)
	}
	if c := cards[1]; c.MemoryBytes != 100<<30 || c.PhysicalBytes != 100<<30 {
		t.Errorf("card %+v", c)
	}
	if c := jobs[0].Cards[0]; c.LimitBytes != 110<<30 || c.PhysicalBytes != 55<<30 {
		t.Errorf("job 7 %+v", c)
	}
	if c := jobs[2].Cards[0]; c.PhysicalBytes != 40<<30 {
		t.Errorf("job 9 %+v", c)
	}
	before := inode(t, n.file(7, "grant"))
	n.stop()
	if err := os.Remove(n.cfg.Paths.Ledger()); err != nil {
		t.Fatal(err)
	}
	n.start() // rebuilt from the grants
	if rec, _ := n.ledger.Get(7); inode(t, n.file(7, "grant")) != before || rec.Placement.Cards[0].Physical != 55*gpu.GiB {
		t.Errorf("record %+v", rec)
	}
}

// However many Prologs and Epilogs run at once, no card is given out twice.
func TestConcurrentGrantsNeverOverCommit(t *testing.T) {
	n := newTestNode(t).start()
	var reqs []wire.Request
	for id := uint32(1); id <= 24; id++ {
		reqs = append(reqs, n.job(id, 30))
	}
	var wg sync.WaitGroup
	for _, req := range reqs {
		wg.Go(func() {
			for round := range 3 {
				rep, err := n.ask(req)
				if err != nil {
					t.Errorf("grant %d: %v", req.JobID, err)
					return
				}
				if use := n.ledger.InUse()[n.cards.cards[0].UUID]; use.Units > 100 || use.Memory > 100*gpu.GiB {
					t.Errorf("card holds %+v", use)
				}
				if rep.Result == wire.Granted && round < 2 {
					if _, err := n.ask(wire.Request{Op: wire.OpRelease, JobID: req.JobID}); err != nil {
						t.Errorf("release %d: %v", req.JobID, err)
					}
				}
			}
		})
	}
	wg.Wait()
	granted := 0
	for _, rec := range n.ledger.List() {
		if rec.State == "granted" {
			granted++
			if !exists(n.file(rec.JobID, "grant")) {
				t.Errorf("job %d has a record and no grant", rec.JobID)
			}
		}
	}
	if granted > 3 {
		t.Errorf("%d jobs of 30 %% on one card", granted)
	}
	if len(n.grants.Open()) != granted {
		t.Errorf("%d grants open, %d in the ledger", len(n.grants.Open()), granted)
	}
}
