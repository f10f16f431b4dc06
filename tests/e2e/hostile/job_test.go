// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// The jobs of these attacks ask for 10 hundredths of a card of 80 GiB.
const (
	share = "--gres=vgpu:10"
	most  = 8 * gib
)

var jobAttacks = []attack{
	{"enter, cancel, change or signal another's job with Slurm's commands, or be its user with `--uid`", slurm, "", useSlurm},
	{"`SLURM_*`, `SPANK_*`, `VGPU_*` and `CUDA_*` forged for `sbatch` and its Prolog", rights, "", forgeSubmit},
	{"the same, and `LD_*`, forged for programs and steps in the job", namespace, "what is listed in the table above", forgeInside},
	{"options that Lua was not shown: `shard` with the memory, cores or cards of others", rights, "", hideOptions},
	{"job names, comments and folders that imitate Slurm's output, break lines or move a terminal's cursor", rights, "", forgeNames},
	{"a program of root's that is called `nvidia-cuda-mps-…` in mounts of one's own", audited, "`seccomp=1` stops it", disguise},
	{"take memory, and say 0, in a cache that was cleared, broken, cut or stretched", audited, "it has what it took until it is killed", lie},
}

// useSlurm does to the victim's job what only its user may.
func useSlurm(s *siege) tally {
	var t tally
	job := fmt.Sprint(s.victim)
	for _, argv := range [][]string{
		{"scancel", job},
		{"scancel", "--signal=STOP", job},
		{"srun", "--overlap", "--jobid=" + job, "cat", runDir + "/self/grant"},
		{"scontrol", "update", "JobId=" + job, "Comment=vgpu(share=1)"},
		{"scontrol", "update", "JobId=" + job, "Gres=shard:1"},
		{"scontrol", "requeue", job},
		{"scontrol", "suspend", job},
		{"scontrol", "notify", job, "hello"},
		{"scontrol", "update", "NodeName=vgpu-node", "State=DRAIN", "Reason=x"},
		{"scontrol", "reconfigure"},
		{"scontrol", "shutdown"},
		{"sbatch", "--uid=" + bob, "--wrap=true"},
		{"sattach", job + ".0"},
		{"sbcast", "--jobid=" + job, "/etc/hostname", "/tmp/x"},
		{"scontrol", "write", "batch_script", job, "-"},
	} {
		r := s.As(alice, append([]string{"timeout", "10"}, argv...)...)
		t.note(r.Code != 0 || strings.Contains(r.Err, "Invalid user id"), "%q: %s", argv, r) // write batch_script ends with 0
	}
	return t
}

// forgeries are what a user may put into an environment. %d is the victim's job.
var forgeries = []string{
	"SPANK_VGPU_MEM=80G", "SLURM_SPANK_VGPU_MEM=80G", "SLURM_SPANK__SLURM_SPANK_OPTION_vgpu_vgpu_mem=80G", "_SLURM_SPANK_OPTION_vgpu_vgpu_mem=80G",
	"SPANK_SPANK_VGPU_MEM=80G", "SPANK_VGPU_CARDS=2", "SPANK_VGPU_CORES=100", "SLURM_JOB_GPUS=0,1", "SLURM_STEP_GPUS=0,1", "SLURM_SHARDS_ON_NODE=100",
	"SLURM_JOB_UID=0", "SLURM_JOB_USER=root", "SLURM_RESTART_COUNT=9", "SLURM_JOB_RESTART_COUNT=9", "SLURM_JOB_COMMENT=vgpu(share=100,mem=80G)",
	"SLURM_SCRIPT_CONTEXT=epilog_slurmd", "SLURM_GTIDS=0", "VGPU_CONFIG=/run/cluster/home/www-data/evil.toml", "VGPU_SOCKET=/run/cluster/home/www-data/evil.sock",
	"VGPU_GRANT=/dev/null", "VGPU_CACHE=/dev/null", "VGPU_LOG_LEVEL=0", "VGPU_OOM_MESSAGE=0", "CUDA_DEVICE_MEMORY_LIMIT=80G", "CUDA_DEVICE_MEMORY_LIMIT_0=0",
	"CUDA_DEVICE_SM_LIMIT=100", "CUDA_DEVICE_MEMORY_SHARED_CACHE=/run/cluster/home/www-data/evil", "CUDA_VISIBLE_DEVICES=0,1", "NVIDIA_VISIBLE_DEVICES=all",
	"CUDA_TASK_PRIORITY=0", "GPU_CORE_UTILIZATION_POLICY=DISABLE", "CUDA_OVERSUBSCRIBE=true", "CUDA_MPS_PIPE_DIRECTORY=/tmp", "CUDA_DISABLE_CONTROL=true",
}

// within says whether a job held no more than its share and saw no more.
func (s *siege) within(job int, output string, records []wire.Job) (bool, string) {
	for _, r := range records {
		if int(r.JobID) != job {
			continue
		}
		if r.UID != 33 || r.State == "granted" && (len(r.Cards) != 1 || r.Cards[0].Share > 10 || r.Cards[0].LimitBytes > most || r.Cards[0].Cores > 10) {
			return false, fmt.Sprintf("%+v", r)
		}
	}
	for _, l := range cluster.Looks(output) {
		if l.Granted > most || l.Total > most {
			return false, output
		}
	}
	return true, ""
}

// forgeSubmit gives sbatch each forged variable, and all together.
func forgeSubmit(s *siege) tally {
	var t tally
	groups := [][]string{forgeries}
	if isLong() {
		for _, f := range forgeries {
			groups = append(groups, []string{f})
		}
	}
	for _, env := range groups {
		argv := append(append([]string{"env"}, env...), "sbatch", "--parsable", "--output=%j.out", share, "--wrap", cluster.LookScript+"; sleep 0.3")
		r := s.As(alice, argv...)
		job := number(r.Out)
		if job == 0 {
			t.Tried, t.Stopped = t.Tried+len(env), t.Stopped+len(env) // refused at submit
			continue
		}
		var seen []wire.Job
		s.eventually("the job has ended", func() bool {
			if records, err := s.Records(); err == nil {
				seen = append(seen, records...)
			}
			facts, err := s.Job(job)
			return err == nil && (facts["JobState"] == "COMPLETED" || facts["JobState"] == "FAILED")
		})
		ok, why := s.within(job, s.Output(alice, job), seen)
		for _, name := range env {
			t.note(ok, "%s: %s", name, why)
		}
	}
	return t
}

// forgeInside runs programs and steps with each forged variable in one job.
func forgeInside(s *siege) tally {
	var t tally
	inside := append([]string{
		"LD_PRELOAD=", "LD_PRELOAD=/nonexistent.so", "LD_LIBRARY_PATH=/tmp", "LD_BIND_NOW=1", "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=0", "LD_DEBUG=unused",
		fmt.Sprintf("SLURM_JOB_ID=%d", s.victim),
	}, forgeries...)
	groups := [][]string{inside, {"LD_PRELOAD="}, {"VGPU_GRANT=/dev/null", "VGPU_CACHE=/dev/null"}, {"CUDA_VISIBLE_DEVICES=0,1"}}
	if isLong() {
		for _, env := range inside {
			groups = append(groups, []string{env})
		}
	}
	var script strings.Builder
	for i, env := range groups {
		fmt.Fprintf(&script, "echo try %d; env '%s' %s\n", i, strings.Join(env, "' '"), cluster.LookScript)
	}
	steps := []string{
		"--export=ALL,SLURM_SHARDS_ON_NODE=0,SLURM_STEP_SHARDS=0", "--export=NONE", "--export=ALL,SLURM_JOB_GPUS=,VGPU_CONFIG=/dev/null",
		"--vgpu-mem=80G", "--gres=none", "--gres=shard:10", "--mpi=none --export=ALL,LD_PRELOAD=",
	}
	for _, args := range steps {
		groups = append(groups, []string{args})
		fmt.Fprintf(&script, "echo try %d; srun --overlap %s %s\n", len(groups)-1, args, cluster.LookScript)
	}
	out := s.finished(alice, s.submit(alice, share, script.String()+"true"))
	parts := strings.Split(out, "try ")
	looks := 0
	for _, part := range parts[1:] {
		n, text, _ := strings.Cut(part, "\n")
		looks += len(cluster.Looks(text))
		ok, why := s.within(0, text, nil)
		for _, name := range groups[number(n)] {
			t.note(ok, "%s: %s", name, why)
		}
	}
	t.note(len(parts)-1 == len(groups), "%d of %d tries ran", len(parts)-1, len(groups))
	t.note(looks >= len(groups)/2, "only %d programs saw a card", looks)
	t.Said = fmt.Sprintf("%d programs saw a card", looks)
	return t
}

// hideOptions asks in words that job_submit.lua does not rewrite.
func hideOptions(s *siege) tally {
	var t tally
	var jobs []int
	for _, args := range []string{
		"--gres=shard:10 --comment=vgpu(share=100,mem=80G)", "--gres=shard:10 --comment=vgpu(mem=80G)", "--gres=shard:10 --comment=vgpu(cards=2)",
		"--gres=shard:10 --comment=vgpu(cores=100)", "--gres=shard:10 --vgpu-mem=80G", "--gres=shard:10 --comment=vgpu(share=1000)", "--gres=vgpu:10 --comment=vgpu(mem=80G)",
	} {
		r := s.TrySbatch(alice, strings.Fields(args), cluster.LookScript)
		if r.Code != 0 {
			t.note(true, "")
			continue
		}
		jobs = append(jobs, number(r.Out))
	}
	for _, job := range jobs {
		s.eventually("the job has ended", func() bool {
			facts, err := s.Job(job)
			return err == nil && strings.Contains("COMPLETED FAILED CANCELLED", facts["JobState"])
		})
		// A job whose memory counts as more of the card has been given more of it.
		facts, err := s.Job(job)
		gres := facts["TresPerNode"]
		looks := cluster.Looks(s.Output(alice, job))
		ok := err == nil && (len(looks) == 0 || looks[0].Total <= most || !strings.HasSuffix(gres, ":10"))
		t.note(ok, "job %d of %s: %s, %v", job, gres, s.Output(alice, job), err)
	}
	return t
}

// forgeNames imitates what gresd reads and what administrators see.
func forgeNames(s *siege) tally {
	var t tally
	const esc = "\x1b[2J\x1b]0;owned\x07"
	names := []string{
		"x UserId=root(0) GroupId=root(0) JobState=RUNNING", "x\nJobId=1 JobName=y UserId=root(0) MinCPUsNode=1 ", "x NodeList=vgpu-node Nodes=vgpu-node GRES=shard:sim:100(IDX:1)",
		"x MinCPUsNode=1 Nodes=vgpu-node CPU_IDs=0 Mem=0 GRES=shard:sim:90(IDX:0)", esc, "\u009b2J\u202etxt", "$(touch /tmp/hostile)", "`id`", "'; scontrol update nodename=vgpu-node state=drain; '",
		"--help", "%s%n%x", "vgpu(share=100)", strings.Repeat("x", 900), "a\\nb", "JobId=1",
	}
	var jobs []int
	for i, name := range names {
		for k, args := range [][]string{{"--job-name=" + name}, {"--comment=" + name}, {"--chdir=/tmp", "--job-name=j", "--comment=x AdminComment=" + name + " StdErr=/x"}} {
			if !isLong() && i%3 != k {
				continue
			}
			r := s.TrySbatch(alice, append([]string{"--gres=vgpu:1"}, args...), "sleep 0.1")
			if r.Code != 0 {
				t.note(true, "")
				continue
			}
			jobs = append(jobs, number(r.Out))
		}
	}
	shown := ""
	seen := map[int]string{}
	for end := time.Now().Add(40 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		records, err := s.Records()
		for _, r := range records {
			if slices.Contains(jobs, int(r.JobID)) && r.State == "granted" && (r.UID != 33 || len(r.Cards) != 1 || r.Cards[0].Share != 1) {
				seen[int(r.JobID)] = fmt.Sprintf("%+v", r)
			}
		}
		shown += s.As("root", "vgpuctl", "jobs").Out + s.As("root", "vgpuctl", "status").Out
		queue, queueErr := s.Queue()
		if err == nil && queueErr == nil && !slices.ContainsFunc(jobs, func(job int) bool { return slices.Contains(queue, fmt.Sprint(job)) }) {
			break
		}
	}
	for _, job := range jobs {
		facts, err := s.Job(job)
		t.note(seen[job] == "" && (err != nil || facts["JobState"] != "PENDING"), "job %d: %s, state %s", job, seen[job], facts["JobState"])
	}
	log, err := os.ReadFile("../../../build/e2e/hostile/gresd.log")
	t.note(err == nil && !control(string(log)), "gresd's log has control characters, %v", err)
	t.note(!control(shown), "vgpuctl shows control characters: %.2000q", shown)
	_, err = os.Stat("/tmp/hostile")
	t.note(err != nil, "a job's name was run by a shell")
	return t
}

// disguise binds a program of root's over a name that the audit spares.
func disguise(s *siege) tally {
	var t tally
	job := s.submit(alice, share, `unshare --user --map-root-user --mount sh -c '
		touch nvidia-cuda-mps-x; mount --bind `+cluster.Dir+`/bin/vgpu-escape-static nvidia-cuda-mps-x
		SIMGPU_STATE=`+cluster.Dir+`/simgpu/state exec ./nvidia-cuda-mps-x path:`+cluster.Dir+`/simgpu/lib/libcuda.so.1 60'`)
	file := cluster.JobDir(job) + "/messages"
	var text []byte
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && !strings.Contains(string(text), "without libvgpu"); time.Sleep(50 * time.Millisecond) {
		text, _ = os.ReadFile(file)
	}
	t.note(strings.Contains(string(text), "without libvgpu"), "job %d is told %q; output %s", job, text, s.Output(alice, job))
	if err := s.Cancel(alice, job); err != nil {
		s.t.Error(err)
	}
	return t
}

// takeDaemon traces the control daemon that gresd runs for a job.
func takeDaemon(s *siege) tally {
	job := s.submit(alice, "--gres=vgpu:80 --vgpu-engine=mps", "sleep 60") // on the card that nobody uses
	daemon := 0
	s.eventually("the job's daemon runs", func() bool {
		for _, p := range s.Processes() {
			if strings.Contains(p.Command, "nvidia-cuda-mps-control -f") {
				daemon = p.PID
			}
		}
		return daemon != 0
	})
	got := s.attack(alice, "attach", fmt.Sprint(daemon))
	if err := s.Cancel(alice, job); err != nil {
		s.t.Error(err)
	}
	return got
}
