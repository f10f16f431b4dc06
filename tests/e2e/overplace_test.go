// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/watch"
)

const worker = cluster.Worker

// The stress: random jobs while daemons are killed and started again, and an
// observer that trusts none of them. VGPU_LONG=1 runs 2000 jobs, VGPU_STRESS_JOBS
// says another number, VGPU_STRESS_SEED repeats a run's jobs, and
// VGPU_STRESS_POOLS=0 lets whole cards and shares have the same cards on a Slurm
// that mixes them up.
const (
	jobsOfCI   = 60
	jobsOfLong = 2000
	// restartsOfCI is one of each daemon. After each Slurm can take 30 s to find what was lost.
	restartsOfCI = 3

	compFile = "/run/jobcomp"
)

func TestNothingIsOverPlaced(t *testing.T) { stressRun(t, false) }

func TestNothingIsOverPlacedByGresd(t *testing.T) { stressRun(t, true) }

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%s: want a number", name, text)
	}
	return n
}

// stress is one run.
type stress struct {
	site
	mix   *mix
	want  int // jobs to submit
	every time.Duration

	mu        sync.Mutex
	asks      map[string]watch.Ask
	jobs      []watch.Job
	ids       []int // of batch jobs
	refused   map[string]int
	events    map[string]int
	disturbed time.Time // the end of the last restart
	down      bool      // a daemon is down now
}

func stressRun(t *testing.T, gresd bool) {
	want := jobsOfCI
	if isLong() {
		want = jobsOfLong
	}
	opts := cluster.Options{
		Cards:       slices.Repeat([]cluster.Card{{Name: "Simulated H100", Memory: fmt.Sprintf("%dG", stressMemory)}}, stressCards),
		GresdPlaces: gresd,
		Slurm:       "JobCompType=jobcomp/filetxt\nJobCompLoc=" + compFile + "\nMinJobAge=10\n",
	}
	// Slurm before 23.11.5 puts whole cards where shares are: docs/slurm.md.
	pools := !gresd && number(t, "VGPU_STRESS_POOLS", 1) == 1 && mixesCards(t)
	if pools {
		opts.Whole = 2
	}
	_ = os.Remove(compFile)
	seed := uint64(number(t, "VGPU_STRESS_SEED", int(time.Now().Unix())))
	st := &stress{
		site: up(t, opts), want: number(t, "VGPU_STRESS_JOBS", want), every: time.Second,
		mix:  &mix{Rand: rand.New(rand.NewPCG(seed, 0)), gresd: gresd, pools: pools},
		asks: map[string]watch.Ask{}, refused: map[string]int{}, events: map[string]int{},
	}
	if st.want > jobsOfCI {
		st.every = 10 * time.Second
	}
	t.Logf("seed %d, %d jobs, pools %v", seed, st.want, pools)
	w, err := watch.Start(watch.Paths{
		Ledger: cluster.Dir + "/state/vgpu/ledger.json", Jobs: "/run/vgpu/jobs", Cards: cluster.Dir + "/simgpu/state",
	}, 100*time.Millisecond, st.asked)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	st.run(w)
	st.drainQueue()
	left := st.Leftovers(90 * time.Second) // a lost Epilog is made up for within 75 s of the end in Slurm
	result := w.Stop()

	t.Logf("%d jobs in %s; %d looks, %d with up to %d processes; events %v; submissions refused %v",
		len(st.jobs), time.Since(began).Round(time.Second), result.Looks, result.Busy, result.Most, st.events, st.refused)
	for _, what := range left {
		t.Errorf("left at the end: %s", what)
	}
	for _, what := range result.Wrong {
		if pools && strings.Contains(what, ": slurmctld: ") {
			t.Logf("slurmctld's choice, which gresd must not have granted: %s", what)
			continue
		}
		t.Error(what)
	}
	for _, what := range st.lost() {
		t.Errorf("%s%s", what, st.story(what))
	}
	if result.Busy*20 < len(st.jobs) || result.Most < 2 {
		t.Errorf("only %d of %d looks saw a process, at most %d: too idle to prove anything", result.Busy, result.Looks, result.Most)
	}
}

// mixesCards says whether this Slurm is before 23.11.5.
func mixesCards(t *testing.T) bool {
	t.Helper()
	out, err := exec.Command("slurmd", "-V").Output()
	var year, month, patch int
	words := strings.Fields(string(out))
	if err != nil || len(words) == 0 {
		t.Fatalf("slurmd -V: %q, %v", out, err)
	}
	if _, err := fmt.Sscanf(words[len(words)-1], "%d.%d.%d", &year, &month, &patch); err != nil {
		t.Fatalf("slurmd -V: %q: %v", out, err)
	}
	return 10000*year+100*month+patch < 231105
}

func (st *stress) asked(name string) (watch.Ask, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	ask, known := st.asks[name]
	return ask, known
}

// run submits everything, with the disturbances beside it.
func (st *stress) run(w *watch.Watcher) {
	stop, over := make(chan struct{}), sync.WaitGroup{}
	over.Go(func() { st.disturb(w, stop) })
	specs := make(chan jobSpec)
	var submitters sync.WaitGroup
	for range 4 {
		submitters.Go(func() {
			for j := range specs {
				st.submitJob(j)
			}
		})
	}
	for made := 0; made < st.want; {
		if strings.Contains(st.NodeState(), "DRAIN") {
			break // the watcher has seen it
		}
		if queue, err := st.Queue(); err == nil && len(queue) > 40 {
			time.Sleep(200 * time.Millisecond)
			continue
		}
		for range 5 {
			j := st.mix.job()
			made += max(1, j.tasks)
			specs <- j
		}
	}
	close(specs)
	submitters.Wait()
	close(stop)
	over.Wait()
}

// submitJob submits until Slurm takes the job: with slurmctld down it cannot.
func (st *stress) submitJob(j jobSpec) {
	name := j.name
	for try := 0; try < 60; try++ {
		if try > 0 {
			// What was sent to a slurmctld that died may be there all the same.
			j.name = fmt.Sprintf("%s-%d", name, try)
			time.Sleep(500 * time.Millisecond)
		}
		st.mu.Lock()
		if j.ask != (watch.Ask{}) {
			st.asks[j.name] = j.ask
		}
		st.mu.Unlock()
		began := time.Now()
		if j.srun {
			st.srun(j, began)
			return
		}
		r := st.TrySbatch(j.user, append([]string{"--job-name=" + j.name, "--output=out.%j", "--open-mode=append"}, j.args...), j.script)
		if id, err := strconv.Atoi(strings.Split(r.Out, ";")[0]); err == nil && r.Code == 0 {
			st.submitted(j, id)
			return
		}
		st.mu.Lock()
		st.refused[reasonOf(r.Err)]++
		st.mu.Unlock()
	}
	st.t.Errorf("job %s %v: never taken", name, j.args)
}

// reasonOf is the line of sbatch that says why.
func reasonOf(text string) string {
	lines := strings.Split(text, "\n")
	return lines[len(lines)-1]
}

func (st *stress) submitted(j jobSpec, id int) {
	ends := j.ends
	if j.cancel {
		// The last that is written of a job that is cancelled on its way back into the
		// queue is that it went there; that it is not there is looked at as well.
		ends = append(slices.Clone(ends), "CANCELLED", "PENDING")
		time.AfterFunc(time.Duration(rand.IntN(3000))*time.Millisecond, func() { st.As(j.user, "scancel", strconv.Itoa(id)) })
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ids = append(st.ids, id)
	for task := range max(1, j.tasks) {
		name := j.name + ".0"
		if j.tasks > 0 {
			name = fmt.Sprintf("%s.%d", j.name, task+1)
		}
		st.jobs = append(st.jobs, watch.Job{Name: name, Ends: ends, Ran: true})
	}
}

// srun runs a job that cannot be requeued. One whose daemons are restarted may
// fail; so may one that finds no card where gresd chooses, or whose slurmctld is of a
// release that mixes cards up.
func (st *stress) srun(j jobSpec, began time.Time) {
	argv := append([]string{"srun", "--quiet", "--job-name=" + j.name}, j.args...)
	r := st.As(j.user, append(argv, "bash", "-c", j.script)...)
	// One that hangs on a daemon that is gone is killed after a while, and a killed
	// srun leaves its job behind.
	_ = st.As(j.user, "scancel", "--quiet", "--name="+j.name)
	st.mu.Lock()
	defer st.mu.Unlock()
	ends := j.ends
	if st.down || st.disturbed.After(began) {
		ends = append(slices.Clone(ends), "FAILED", "CANCELLED", "NODE_FAIL", "")
	}
	if (st.mix.gresd || st.mix.pools) && strings.Contains(r.Err, "vgpu: place: ") {
		ends = []string{"FAILED"}
		st.refused["srun: no room"]++
	}
	st.jobs = append(st.jobs, watch.Job{Name: j.name + ".0", Ends: ends, Ran: true})
}

// disturb kills and restarts daemons, requeues jobs and kills their processes.
func (st *stress) disturb(w *watch.Watcher, stop chan struct{}) {
	// A slurmctld that restarts right after slurmd was killed can leave jobs for minutes.
	restarts := []struct {
		name string
		work func() error
	}{
		{"gresd killed", func() error {
			st.Gresd.Kill()
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Millisecond)
			return st.Gresd.Start()
		}},
		{"slurmctld restarted", func() error {
			st.Slurmctld.Stop()
			return st.Slurmctld.Start()
		}},
		{"slurmd killed", func() error {
			st.Slurmd.Kill()
			time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
			return st.Slurmd.Spawn()
		}},
	}
	for turn := 0; ; turn++ {
		restarted := st.want <= jobsOfCI && turn >= restartsOfCI
		over := stop
		if turn < restartsOfCI {
			over = nil // each daemon is restarted, however soon all jobs are submitted
		}
		select {
		case <-over:
			return
		case <-time.After(st.every):
		}
		if restarted {
			if turn%5 == 0 {
				st.register()
			}
			continue
		}
		restart := restarts[turn%len(restarts)]
		// A step that outlives both its slurmd and a requeue meets its own job coming
		// back, and Slurm drains the node for a "Duplicate jobid". The requeue delay,
		// two minutes unless set to seconds as here, is what keeps them apart.
		if restart.name != "slurmd killed" {
			st.requeueOne()
		}
		for _, p := range w.Processes()[:min(1, len(w.Processes()))] {
			if err := exec.Command("kill", "-KILL", strconv.Itoa(p.PID)).Run(); err == nil {
				st.count("processes killed")
			}
		}
		st.mu.Lock()
		st.down = true
		st.mu.Unlock()
		err := restart.work()
		st.mu.Lock()
		st.down, st.disturbed = false, time.Now().Add(5*time.Second)
		st.mu.Unlock()
		if err != nil {
			st.t.Errorf("%s: %v", restart.name, err)
			return
		}
		st.count(restart.name)
	}
}

func (st *stress) count(event string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.events[event]++
}

func (st *stress) requeueOne() {
	st.mu.Lock()
	recent := slices.Clone(st.ids[max(0, len(st.ids)-15):])
	st.mu.Unlock()
	for _, id := range recent {
		if facts, err := st.Job(id); err == nil && facts["JobState"] == "RUNNING" {
			if _, err := st.Scontrol("requeue", strconv.Itoa(id)); err == nil {
				st.count("jobs requeued")
				return
			}
		}
	}
}

// register lets slurmctld compare its jobs with those of the node. A job whose launch a
// killed slurmd has lost runs for slurmctld until the node registers, 10 s later at least.
// By itself it does so every three minutes.
func (st *stress) register() {
	if err := st.Slurmd.Reload(); err != nil {
		st.t.Errorf("slurmd: reload: %v", err)
	}
}

// drainQueue waits until no job is left.
func (st *stress) drainQueue() {
	register := time.Now().Add(15 * time.Second)
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		queue, err := st.Queue()
		if err == nil && len(queue) == 0 || strings.Contains(st.NodeState(), "DRAIN") {
			return
		}
		if time.Now().After(register) {
			register = time.Now().Add(15 * time.Second)
			st.register()
		}
	}
	r := st.As("root", "squeue", "-h", "-o", "%i %j %T %r starts %S")
	st.t.Errorf("not every job has ended within 5 minutes:\n%s", r.Out)
	for line := range strings.Lines(r.Out) {
		out, _ := st.Scontrol("show", "job", "-d", "-o", strings.Fields(line)[0])
		id, _, _ := strings.Cut(strings.TrimPrefix(out, "JobId="), " ")
		st.t.Logf("%s\n%s", out, st.linesOf(id))
	}
}

// linesOf is what the daemons' logs have of a job.
func (st *stress) linesOf(id string) string {
	return st.Lines(regexp.MustCompile(`([Jj]ob |[Jj]ob_?[Ii]d[= ]|StepId=)`+id+`\b`), 60)
}

// story is what Slurm's job completion log and the daemons' logs have of the job
// that a line of lost names.
func (st *stress) story(what string) string {
	var name, task string
	if found := regexp.MustCompile(`^job (\S+)\.(\d+) `).FindStringSubmatch(what); found != nil {
		name, task = found[1], found[2]
	}
	var out strings.Builder
	comp, _ := os.ReadFile(compFile)
	for line := range strings.Lines(string(comp)) {
		if !hasWord(line, "Name="+name) || task != "0" && !hasWord(line, "ArrayTaskId="+task) {
			continue
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(line, "JobId="), " ")
		fmt.Fprintf(&out, "\n%s\n%s", strings.TrimSpace(line), st.linesOf(id))
		for _, user := range []string{alice, bob, carol} {
			out.WriteString(st.File(user, "out."+id))
		}
	}
	return out.String()
}

// lost holds what Slurm and the programs say of the end of each job.
func (st *stress) lost() []string {
	byName, err := watch.Ends(compFile)
	if err != nil {
		return []string{err.Error()}
	}
	ended, ran := map[string]string{}, map[string]bool{}
	for name, ends := range byName {
		for task, state := range ends {
			ended[fmt.Sprintf("%s.%d", name, task)] = state
		}
	}
	for _, user := range []string{alice, bob, carol} {
		for _, name := range strings.Fields(st.File(user, "ran")) {
			ran[name] = true
		}
	}
	return watch.Lost(st.jobs, ended, ran)
}
