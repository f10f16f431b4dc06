// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// The ways in which Slurm starts a program: each has the limits of its job.
func TestEveryKindOfJobHasItsLimit(t *testing.T) {
	opts := oneCard
	// The shell that salloc starts in the job, without a terminal here.
	opts.Slurm = "LaunchParameters=use_interactive_step\n" +
		"InteractiveStepOptions=\"--interactive --preserve-env " + cluster.LookScript + "\"\n"
	s := up(t, opts)
	const share, mem = "--gres=vgpu:30", "--vgpu-mem=8G"
	for _, kind := range []struct {
		name string
		argv []string
	}{
		{"srun", []string{"srun", share, mem, "bash", "-c", cluster.LookScript}},
		{"srun after salloc", []string{"salloc", share, mem, "srun", "bash", "-c", cluster.LookScript}},
		{"shell of salloc", []string{"salloc", share, mem}},
		{"sbatch that is waited for", []string{"sbatch", "--wait", "--output=/dev/stdout", share, mem, "--wrap", cluster.LookScript + " >looked"}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			r := s.As(alice, kind.argv...)
			if r.Code != 0 {
				t.Fatal(r)
			}
			if got := look(t, r.Out+s.File(alice, "looked")); got.Total != 8*gib || got.Granted > 8*gib {
				t.Errorf("saw %d bytes and got %d, want 8 GiB", got.Total, got.Granted)
			}
		})
	}
	// No step, so slurmd may run Epilog without Prolog.
	if r := s.As(alice, "salloc", share, "true"); r.Code != 0 {
		t.Errorf("salloc that starts nothing: %s", r)
	}
}

// Steps that run at once have the limits of the job together, whatever part of
// its shards each was given. The steps wait for each other, so none can be late.
func TestStepsBesideEachOtherShareTheLimitOfTheJob(t *testing.T) {
	s := up(t, oneCard)
	for _, options := range []string{"--exact --gres=vgpu:20", "--exact --gres=shard:20", "--overlap"} {
		t.Run(options, func(t *testing.T) {
			s := site{s.Cluster, t}
			step := "touch here.$SLURM_JOB_ID.$SLURM_STEP_ID; " +
				"for i in {1..100}; do [ $(ls here.$SLURM_JOB_ID.* | wc -l) = 3 ] && break; sleep 0.1; done; " +
				"[ $i -lt 100 ] && " + cluster.Worker + strings.Repeat(" --alloc 1G", 4) + " --hold 3"
			script := fmt.Sprintf("for i in 1 2 3; do srun -n1 %s bash -c '%s' & done; wait", options, step)
			out := s.completed(alice, s.submit(alice, "--ntasks=4 --gres=vgpu:60 --vgpu-mem=8G", script))
			// 12 GiB are asked for. Each process also needs half a GiB for itself.
			if got, refused := cluster.Taken(out); got > 8*gib || got < 5*gib || refused < 4 {
				t.Errorf("3 steps that want 4 GiB each got %d bytes, %d pieces refused; want at most 8 GiB:\n%s", got, refused, out)
			}
		})
	}
}

// A step with --gres=none gets neither a card nor a share, also beside a step
// that has it all. What it starts in turn may have the job's share again. One that
// helps itself to the card (without the device cgroup it can) has the job's limit.
func TestStepWithoutAGresHasNoCard(t *testing.T) {
	for _, noPlugin := range []bool{false, true} {
		t.Run(map[bool]string{false: "plugin", true: "TaskProlog"}[noPlugin], func(t *testing.T) {
			opts := cluster.Options{Cards: twoCards}
			opts.NoPlugin = noPlugin
			s := up(t, opts)
			const none = "srun -n1 --overlap --gres=none "
			out := s.completed(alice, s.submit(alice, "--ntasks=2 --gres=vgpu:30", strings.Join([]string{
				"srun -n1 --overlap sh -c '" + cluster.Worker + " --count; touch held; until [ -e over ]; do sleep 0.1; done' &",
				"until [ -e held ]; do sleep 0.1; done",
				"for how in --overlap --exact; do srun -n1 $how --gres=none sh -c " +
					"'echo visible $CUDA_VISIBLE_DEVICES, shards $SLURM_SHARDS_ON_NODE; " + cluster.Worker + " --count'; done",
				none + "srun -n1 --overlap --gres=shard:30 " + cluster.LookScript + " >nested",
				none + "env -u CUDA_VISIBLE_DEVICES " + cluster.LookScript + " >forced",
				"touch over", "wait",
			}, "\n")))
			if cluster.Devices(out) != 1 || strings.Count(out, `"cmd":"count"`) != 1 ||
				strings.Count(out, "CUDA_ERROR_NO_DEVICE") != 2 || strings.Count(out, "visible NoDevFiles, shards\n") != 2 {
				t.Errorf("want one card in the first step, and none in two with --gres=none:\n%s", out)
			}
			for _, name := range []string{"nested", "forced"} {
				if got := look(t, s.File(alice, name)); got.Total != 24*gib || got.Granted > 24*gib {
					t.Errorf("%s: saw %d bytes and got %d, want 24 GiB", name, got.Total, got.Granted)
				}
			}
		})
	}
}

// A step of a job by srun --jobid, from elsewhere: it has the limits of that job,
// and options that a user always sets do not stop it.
func TestStepFromOutsideOfItsJob(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--ntasks=2 --gres=vgpu:30 --vgpu-mem=8G", "until [ -e over ]; do sleep 0.1; done")
	s.running(job)
	for _, args := range []string{"--overlap --vgpu-mem=4G", "--exact -n1 --gres=vgpu:10"} {
		argv := append([]string{"srun", fmt.Sprintf("--jobid=%d", job)}, strings.Fields(args)...)
		r := s.As(alice, append(argv, "bash", "-c", cluster.LookScript)...)
		if r.Code != 0 {
			t.Errorf("%s: %s", args, r)
			continue
		}
		looks := cluster.Looks(r.Out)
		if len(looks) == 0 {
			t.Errorf("%s: told nothing: %s", args, r)
		}
		for _, got := range looks {
			if got.Total != 8*gib || got.Granted > 8*gib {
				t.Errorf("%s: saw %d bytes and got %d, want the 8 GiB of the job", args, got.Total, got.Granted)
			}
		}
	}
	if r := s.As(alice, "touch", "over"); r.Code != 0 {
		t.Fatal(r)
	}
	s.completed(alice, job)
}

// No step can have more of the card than its job.
func TestStepThatAsksForMoreThanItsJobIsRefused(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--gres=vgpu:30", "timeout 20 srun --gres=vgpu:80 echo ran && echo taken || echo refused")
	if out := s.completed(alice, job); !strings.HasSuffix(out, "refused\n") || hasWord(out, "ran") {
		t.Errorf("a step of 80 in a job of 30:\n%s", out)
	}
}

// A suspended job keeps its part of the card, its memory and its limits.
func TestSuspendedJobKeepsItsShare(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--gres=vgpu:60 --vgpu-mem=8G",
		"while [ ! -e go ]; do date; sleep 0.1; done; "+cluster.LookScript)
	s.running(job)
	s.eventually(shortWait, "the job works", func() bool { return s.Output(alice, job) != "" })
	if _, err := s.Scontrol("suspend", fmt.Sprint(job)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitState(job, shortWait, "SUSPENDED"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	before := s.Output(alice, job)
	large := s.submit(bob, "--gres=vgpu:60", "true")
	small := s.submit(bob, "--gres=vgpu:40", cluster.LookScript)
	if got := look(t, s.completed(bob, small)); got.Total != 32*gib {
		t.Errorf("beside a suspended job: saw %d bytes, want 32 GiB", got.Total)
	}
	if facts, err := s.Job(large); err != nil || facts["JobState"] != "PENDING" {
		t.Errorf("a job of 60 beside a suspended one of 60: %s, %v; want PENDING", facts["JobState"], err)
	}
	if after := s.Output(alice, job); after != before {
		t.Errorf("the job worked while it was suspended: %q", strings.TrimPrefix(after, before))
	}
	if _, err := s.Scontrol("resume", fmt.Sprint(job)); err != nil {
		t.Fatal(err)
	}
	if r := s.As(alice, "touch", "go"); r.Code != 0 {
		t.Fatal(r)
	}
	if got := look(t, s.completed(alice, job)); got.Total != 8*gib {
		t.Errorf("after the suspension: saw %d bytes, want 8 GiB", got.Total)
	}
	s.completed(bob, large)
}

// slurmctld must know after a restart which part of which card is given out.
func TestSlurmctldRestartKeepsShares(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--gres=vgpu:60 --vgpu-mem=8G", "until [ -e go ]; do sleep 0.1; done; "+cluster.LookScript)
	s.running(job)
	s.Slurmctld.Stop()
	if err := s.Slurmctld.Start(); err != nil {
		t.Fatal(err)
	}
	// Before its node has registered again, 22.05 believes that it has no shards.
	s.eventually(30*time.Second, "the node is back", func() bool { return s.NodeState() == "MIXED" })
	var small int
	s.eventually(30*time.Second, "a share is taken again", func() bool {
		var err error
		small, err = s.Sbatch(bob, []string{"--gres=vgpu:40"}, cluster.LookScript)
		return err == nil
	})
	large := s.submit(bob, "--gres=vgpu:60", "true")
	if got := look(t, s.completed(bob, small)); got.Total != 32*gib {
		t.Errorf("a new job of 40 saw %d bytes, want 32 GiB", got.Total)
	}
	if facts, err := s.Job(large); err != nil || facts["JobState"] != "PENDING" {
		t.Errorf("a second job of 60 on the card: %s, %v; want PENDING", facts["JobState"], err)
	}
	if r := s.As(alice, "touch", "go"); r.Code != 0 {
		t.Fatal(r)
	}
	if got := look(t, s.completed(alice, job)); got.Total != 8*gib {
		t.Errorf("the job that was there saw %d bytes, want 8 GiB", got.Total)
	}
	s.completed(bob, large)
}

func TestJobAtItsTimeLimitLeavesNothing(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--time=5 --gres=vgpu:30", cluster.BusyScript(300))
	s.running(job)
	if _, err := s.Scontrol("update", fmt.Sprintf("JobId=%d", job), "EndTime=now"); err != nil {
		t.Fatal(err)
	}
	// slurmctld looks at the limits twice a minute.
	if state, err := s.Wait(job, 90*time.Second); err != nil || state != "TIMEOUT" {
		t.Fatalf("%s, %v; want TIMEOUT", state, err)
	}
	if left := s.Leftovers(5 * time.Second); len(left) != 0 {
		t.Errorf("left: %s", strings.Join(left, "; "))
	}
}

func TestShareOfAPendingJobCanBeChanged(t *testing.T) {
	s := up(t, cluster.Options{})
	job := s.submit(alice, "--hold --gres=vgpu:60", cluster.LookScript)
	update := func(gres string) cluster.Result {
		return s.As(alice, "scontrol", "update", fmt.Sprintf("JobId=%d", job), "Gres="+gres)
	}
	wants := func(tres string) {
		t.Helper()
		facts, err := s.Job(job)
		if err != nil || !strings.HasSuffix(facts["TresPerNode"], tres) {
			t.Errorf("TresPerNode=%s, %v; want %s", facts["TresPerNode"], err, tres)
		}
	}
	if r := update("vgpu:20"); r.Code != 0 {
		t.Fatal(r)
	}
	wants("shard:20")
	r := update("vgpu:150")
	if r.Code == 0 {
		t.Errorf("vgpu:150: accepted: %s", r)
	}
	wants("shard:20")
	// 22.05 knows no way to tell a reason to scontrol, and lets no job change
	// from shards to whole GPUs.
	if year, _, err := s.Release(); err != nil {
		t.Fatal(err)
	} else if year >= 24 {
		checkLine(t, r.Err, "vgpu: ", `"150"`, "1 to 100", "--gres=vgpu:30")
		if r := update("vgpu:200"); r.Code != 0 {
			t.Error(r)
		}
		wants("gpu:2")
		if r := update("vgpu:20"); r.Code != 0 {
			t.Error(r)
		}
		wants("shard:20")
	}
	if r := s.As(alice, "scontrol", "release", fmt.Sprint(job)); r.Code != 0 {
		t.Fatal(r)
	}
	if got := look(t, s.completed(alice, job)); got.Total != 16*gib {
		t.Errorf("saw %d bytes, want 16 GiB", got.Total)
	}
	// With all shards of its node, this job would wait for ever.
	job = s.submit(alice, "--hold --exclusive", "true")
	if r := update("vgpu:20"); r.Code == 0 {
		t.Errorf("a share for an exclusive job: accepted: %s", r)
	}
	s.cancel(alice, job)
}

// Users try the flags that they know for GPUs.
func TestOtherSpellingsAreRefusedWithTheRightOne(t *testing.T) {
	s := up(t, oneCard)
	for _, wrong := range []struct{ args, asked, right string }{
		{"--gpus=vgpu:30", `--gpus: "vgpu:30"`, "--gres=vgpu:30"},
		{"--gpus-per-node=vgpu:30", `--gpus-per-node: "vgpu:30"`, "--gres=vgpu:30"},
		{"--gpus-per-task=vgpu:30 --ntasks=1", `--gpus-per-task: "vgpu:30"`, "--gres=vgpu:30"},
		{"--gpus-per-socket=vgpu:30 --sockets-per-node=1", `--gpus-per-socket: "vgpu:30"`, "--gres=vgpu:30"},
		{"--gres=gpu:vgpu:30", `"vgpu:30"`, "--gres=vgpu:30"},
		// On a node of several cards slurm would let it wait.
		{"--exclusive --gres=vgpu:30", "--exclusive", "--exclusive --gres=gpu:1"},
	} {
		for _, client := range []string{"sbatch", "srun", "salloc"} {
			t.Run(wrong.args+", "+client, func(t *testing.T) {
				argv := append([]string{client}, strings.Fields(wrong.args)...)
				if client == "sbatch" {
					argv = append(argv, "--wrap")
				}
				r := s.As(bob, append(argv, "true")...)
				if r.Code == 0 {
					t.Errorf("accepted: %s", r)
				}
				checkLine(t, r.Err, "vgpu: ", wrong.asked, wrong.right)
			})
		}
	}
}

// From 23.11 on there is --tres-per-task, where each task brings its share.
func TestSharesOfTasks(t *testing.T) {
	s := up(t, oneCard)
	year, _, err := s.Release()
	if err != nil {
		t.Fatal(err)
	}
	const args = "--ntasks=2 --tres-per-task=gres/vgpu:30"
	if year < 24 {
		r := s.TrySbatch(alice, strings.Fields(args), "true")
		if r.Code == 0 || !strings.Contains(r.Err, "unrecognized option") {
			t.Errorf("%d knows --tres-per-task: test what it does: %s", year, r)
		}
		return
	}
	out := s.completed(alice, s.submit(alice, args, "srun -n1 "+cluster.LookScript))
	if got := look(t, out); got.Total != 48*gib {
		t.Errorf("2 tasks of 30 saw %d bytes, want 48 GiB", got.Total)
	}
}

// A card that one job has whole is shared by none.
func TestWholeCardsBesideShares(t *testing.T) {
	s := up(t, cluster.Options{}) // four cards
	share := func(gres string) int {
		job := s.submit(alice, "--gres="+gres, "sleep 300")
		s.running(job)
		return job
	}
	small := share("vgpu:30")
	whole := []int{share("vgpu:200"), share("vgpu:100")}
	large := share("vgpu:60")
	late := s.submit(bob, "--gres=vgpu:100", "true")
	records := map[uint32]wire.Job{}
	s.eventually(shortWait, "each job has a record", func() bool {
		all, err := s.Records()
		for _, r := range all {
			records[r.JobID] = r
		}
		return err == nil && len(all) == 4
	})
	users := map[string]int{} // hundredths by card
	for _, r := range records {
		for _, card := range r.Cards {
			users[card.UUID] += int(card.Cores)
		}
	}
	if len(users) != 4 {
		t.Errorf("%d cards in use, want 4: %v", len(users), users)
	}
	for _, job := range whole {
		for _, card := range records[uint32(job)].Cards {
			if users[card.UUID] != 100 || card.Cores != 100 {
				t.Errorf("card %s of job %d: %d of 100 given out, %d to this job", card.UUID, job, users[card.UUID], card.Cores)
			}
		}
	}
	if n := len(records[uint32(whole[0])].Cards); n != 2 {
		t.Errorf("vgpu:200: %d cards, want 2", n)
	}
	if facts, err := s.Job(late); err != nil || facts["JobState"] != "PENDING" {
		t.Errorf("a fifth card: %s, %v; want PENDING", facts["JobState"], err)
	}
	s.cancel(alice, append(whole, small, large)...)
	s.completed(bob, late)
}

// twoNodes have a card each.
var twoNodes = cluster.Options{Nodes: 2, Cards: oneCard.Cards}

// The share counts on each node of a job.
func TestJobOfTwoNodes(t *testing.T) {
	s := up(t, twoNodes)
	out := s.completed(alice, s.submit(alice, "--nodes=2 --gres=vgpu:30 --vgpu-mem=8G",
		"srun bash -c 'hostname; "+cluster.LookScript+"'"))
	checkNodes(t, out)
	for _, got := range cluster.Looks(out) {
		if got.Total != 8*gib || got.Granted < 7*gib {
			t.Errorf("saw %d bytes and got %d, want 8 GiB on each node", got.Total, got.Granted)
		}
	}
}

// Each component of a het job has its own share and its own options.
func TestHetJob(t *testing.T) {
	s := up(t, twoNodes)
	r := s.As(alice, "srun", "--gres=vgpu:30", "--vgpu-mem=8G",
		"bash", "-c", "hostname; "+cluster.LookScript, ":", "--gres=vgpu:20", "--vgpu-mem=4G",
		"bash", "-c", "hostname; "+cluster.LookScript)
	if r.Code != 0 {
		t.Fatal(r)
	}
	checkNodes(t, r.Out)
	args := strings.Fields("--parsable --wait --output=het.out --gres=vgpu:30 --vgpu-mem=8G : --gres=vgpu:20 --vgpu-mem=4G")
	b := s.As(alice, append(append([]string{"sbatch"}, args...), "--wrap",
		"srun --het-group=0,1 bash -c 'hostname; "+cluster.LookScript+"'")...)
	if b.Code != 0 {
		t.Fatal(b)
	}
	batch := s.File(alice, "het.out")
	checkNodes(t, batch)
	for _, out := range []string{r.Out, batch} {
		seen := map[uint64]int{}
		for _, got := range cluster.Looks(out) {
			seen[got.Total/gib]++
		}
		if seen[8] != 1 || seen[4] != 1 {
			t.Errorf("want one component of 8 GiB and one of 4 GiB:\n%s", out)
		}
	}
}

// checkNodes wants two looks, from two nodes.
func checkNodes(t *testing.T, out string) {
	t.Helper()
	if n := len(cluster.Looks(out)); n != 2 || !hasWord(out, "vgpu-node") || !hasWord(out, "vgpu-node2") {
		t.Fatalf("%d looks, want one from each of vgpu-node and vgpu-node2:\n%s", n, out)
	}
}
