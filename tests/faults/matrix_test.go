// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// cell is one of the matrix: what is hit, by what, and what the node does then.
type cell struct{ target, fault, phase string }

func (c cell) String() string { return c.target + ", " + c.fault + ", " + c.phase }

var (
	targets = []string{"gresd", "slurmd", "slurmctld", "slurmstepd", "job process", "munged"}
	kinds   = []string{"kill", "stop", "restart", "upgrade"}
	phases  = []string{"idle", "allocating", "launching", "in its turn", "in Epilog"}
)

// matrix lists all cells, those of one engine together.
func matrix() []cell {
	var all []cell
	for _, phase := range phases {
		for _, target := range targets {
			for _, kind := range kinds {
				all = append(all, cell{target, kind, phase})
			}
		}
	}
	return all
}

// Scripts of the jobs. A process that is killed is started again, as by a
// launcher that restarts its ranks.
const (
	holdScript  = "while :; do " + cluster.Worker + " --alloc 1G --hold 600; sleep 0.1; done"
	takeScript  = "while :; do " + cluster.LookScript + "; done"
	workScript  = "while :; do " + cluster.Worker + " --alloc 1G --saturate 600; sleep 0.1; done"
	stepsScript = "while :; do srun --overlap " + cluster.Worker + " --alloc 1G --saturate 0.5; sleep 0.1; done"
)

// stateSaved is when slurmctld has written what it knows: jobs that it forgets
// when it is killed earlier are ended by slurmd, and tell nothing of us.
const stateSaved = 6 * time.Second

// scene is the node in a phase: two jobs that stay, and where jobs start or end
// a third one that does.
type scene struct {
	cell
	jobs   []job // that stay
	moving job   // is in its Prolog or Epilog
	stop   time.Duration
	dice   *rand.Rand
	start  time.Time // of work on the card
}

// set brings the node into the phase of a cell.
func (n *node) set(c cell, stop time.Duration, dice *rand.Rand) *scene {
	n.t.Helper()
	s := &scene{cell: c, stop: stop, dice: dice}
	n.takeTurns(c.phase == "in its turn")
	scripts := map[string][2]string{
		"idle":        {holdScript, holdScript},
		"allocating":  {takeScript, holdScript},
		"launching":   {workScript, stepsScript},
		"in its turn": {workScript, workScript},
		"in Epilog":   {workScript, takeScript},
	}[c.phase]
	s.jobs = []job{n.submit(alice, 30, scripts[0]), n.submit(bob, 30, scripts[1])}
	if c.phase == "in Epilog" {
		s.moving = n.submit(carol, 20, workScript)
		n.working(30*time.Second, s.moving)
	}
	n.working(30*time.Second, s.jobs...)
	if c.target == "slurmctld" && c.fault == "kill" {
		time.Sleep(stateSaved)
	}
	s.start = time.Now()
	switch c.phase {
	case "allocating":
		n.pause(300*time.Millisecond, 100*time.Millisecond)
		s.moving = n.submit(carol, 20, takeScript)
		n.reached("prolog", s.moving)
	case "in Epilog":
		n.pause(300*time.Millisecond, 100*time.Millisecond)
		n.end(s.moving)
		n.reached("epilog", s.moving)
		n.Ended(s.moving.id)
	default:
		return s
	}
	// Before, in, or after what vgpu-prolog does.
	time.Sleep(time.Duration(dice.IntN(420)) * time.Millisecond)
	return s
}

// reached waits until the Prolog or Epilog of a job is at work.
func (n *node) reached(script string, j job) {
	n.t.Helper()
	file := fmt.Sprintf("%s/%s.%d", scriptDir, script, j.id)
	n.eventually(30*time.Second, script+" of job "+strconv.Itoa(j.id), func() bool { _, err := os.Stat(file); return err == nil })
}

// takeTurns changes whether the driver refuses time slices. If it refuses them, jobs take turns.
func (n *node) takeTurns(refused bool) {
	n.t.Helper()
	if n.turns == refused {
		return
	}
	command := "clear"
	if refused {
		command = "refuse-slices"
	}
	n.must(n.Sim(command))
	n.turns = refused
}

// inject does what the cell says.
func (n *node) inject(s *scene) {
	n.t.Helper()
	victim := s.jobs[0]
	switch s.target {
	case "gresd":
		n.daemon(s, n.Gresd, func() { n.replace(cluster.Dir + "/bin/gresd") })
	case "slurmd":
		n.daemon(s, n.Slurmd, n.replacePlugin)
	case "slurmctld":
		n.daemon(s, n.Slurmctld, func() { n.replace("/etc/slurm/job_submit.lua") })
	case "munged":
		// What a package manager leaves between the two is a second or so.
		n.daemon(s, n.Munged(), func() { time.Sleep(time.Second) })
	case "slurmstepd":
		switch s.fault {
		case "kill":
			n.Orphan(victim.id)
			n.must(syscall.Kill(n.stepd(victim), syscall.SIGKILL))
		case "stop":
			n.stopped(n.stepd(victim), s.stop)
		case "restart": // another one, for the next run of the job
			n.eventually(30*time.Second, "the job is requeued", func() bool {
				_, err := n.Scontrol("requeue", strconv.Itoa(victim.id))
				return err == nil
			})
		case "upgrade":
			n.replacePlugin()
		}
	case "job process":
		switch s.fault {
		case "kill":
			_ = syscall.Kill(n.worker(victim), syscall.SIGKILL)
		case "stop":
			n.stopped(n.worker(victim), s.stop)
		case "upgrade":
			n.replacePlugin()
			fallthrough
		case "restart":
			_ = syscall.Kill(n.worker(victim), syscall.SIGTERM)
		}
	}
}

// daemon does to a daemon what the cell says; upgrade is done while it is down.
func (n *node) daemon(s *scene, d *cluster.Daemon, upgrade func()) {
	n.t.Helper()
	switch s.fault {
	case "stop":
		n.stopped(d.PID(), s.stop)
		return
	case "kill":
		d.Kill()
		time.Sleep(time.Duration(s.dice.IntN(2000)) * time.Millisecond)
	case "restart":
		d.Stop()
	case "upgrade":
		d.Stop()
		upgrade()
	}
	if d == n.Slurmd { // its node is not idle
		n.must(d.Spawn())
		return
	}
	n.must(d.Start())
}

// replace puts another file in the place of a program that may run. Bytes after
// the end of a program mean nothing.
func (n *node) replace(path string) {
	n.t.Helper()
	data, err := os.ReadFile(path)
	n.must(err)
	info, err := os.Stat(path)
	n.must(err)
	n.must(os.WriteFile(path+".new", append(data, "\n-- another\n"...), info.Mode()))
	n.must(os.Rename(path+".new", path))
}

func (n *node) replacePlugin() {
	n.t.Helper()
	n.replace(cluster.Dir + "/lib/vgpu.so")
	n.replace(cluster.Dir + "/lib/libvgpu.so")
	n.replace(cluster.Dir + "/bin/vgpu-prolog")
}

// untilFree is how long it may take until what a job had is free again. A slurmd that
// dies in an Epilog does not say that the job has ended: slurmctld asks it again, by its own
// clock (35 to 53 s later in six runs, once more than 60).
func (s *scene) untilFree(limit time.Duration) time.Duration {
	if s.target == "slurmd" && s.fault == "kill" && s.phase == "in Epilog" {
		return 3 * limit
	}
	return limit
}

// recovers waits for what must be after a fault, and ends all jobs.
func (n *node) recovers(s *scene) {
	n.t.Helper()
	limit := 60 * time.Second
	n.pause(0, 0)
	stays := s.jobs
	if s.target == "slurmstepd" && s.fault == "kill" {
		stays = s.jobs[1:]
	}
	if s.target == "slurmctld" && s.fault != "stop" && s.phase == "launching" {
		stays = s.jobs[:1] // srun may wait for long for a slurmctld that was away
	}
	n.working(limit, stays...)
	for _, j := range stays {
		switch {
		case s.phase == "launching" || s.phase == "in its turn", s.phase == "in Epilog" && j == s.jobs[0]:
			n.goesOn(limit, j)
			// Long enough for the checker to see whether shares hold.
			time.Sleep(time.Until(s.start.Add(computeWindow + time.Second)))
		}
	}
	// A job in its Prolog when slurmd dies, or not yet in the state that slurmctld
	// had saved, is lost for Slurm. Otherwise it must start.
	if s.phase == "allocating" && s.target != "slurmd" && (s.target != "slurmctld" || s.fault == "stop") {
		n.working(limit, s.moving)
	}
	if s.target == "slurmctld" && s.fault == "kill" && s.moving.id != 0 {
		n.forgotten(s.moving)
	}
	n.takesJobs(s.untilFree(limit))
	n.end(s.jobs...)
	if s.moving.id != 0 { // once more, for a slurmctld that has forgotten it
		n.end(s.moving)
	}
	if s.target == "slurmstepd" && s.fault == "kill" {
		n.endOrphans(s.jobs[0])
	}
	n.clean(90 * time.Second)
	for _, j := range append(slices.Clone(s.jobs), s.moving) {
		if j.id != 0 {
			n.sawItsLimit(j)
		}
	}
}

// forgotten lets no job have the number of one that slurmctld does not know any more:
// a node whose slurmd still does is drained by Slurm itself ("Duplicate jobid").
func (n *node) forgotten(j job) {
	n.t.Helper()
	if r := n.As("root", "squeue", "-h", "-j", strconv.Itoa(j.id), "-t", "all"); r.Code == 0 && r.Out != "" {
		return // it was saved in time
	}
	// slurmctld ends what a slurmd that registers runs of a job that it does not know.
	// Of a number that is another job's by then, it waits for that one's end to be old.
	next := time.Now().Add(5 * time.Second)
	n.eventually(90*time.Second, fmt.Sprintf("what slurmctld has forgotten of job %d is ended", j.id), func() bool {
		if time.Now().After(next) {
			n.must(n.Slurmd.Reload()) // registers: not all do when slurmctld comes
			next = time.Now().Add(10 * time.Second)
		}
		return !n.runs("slurmstepd: ["+strconv.Itoa(j.id)+".") && len(n.workers(j)) == 0 && !n.hasRecord(j)
	})
	for {
		id, err := n.Sbatch(j.user, []string{"--hold", "--gres=vgpu:1"}, "true")
		n.must(err)
		if id > j.id {
			n.end(job{id: id})
			return
		}
		n.end(job{id: id})
	}
}

// endOrphans ends the processes of a job whose slurmstepd was killed, as the
// Epilog of a site or its administrator does: with proctrack/linuxproc nobody
// else can.
func (n *node) endOrphans(j job) {
	n.t.Helper()
	for _, p := range n.Processes() {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		if err == nil && strings.Contains(string(env), fmt.Sprintf("\x00SLURM_JOB_ID=%d\x00", j.id)) &&
			!strings.Contains(string(env), "SLURM_SCRIPT_CONTEXT=epilog_") { // its Epilog is no orphan
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
		}
	}
}

// try runs one cell, and says whether the node is as before.
func (n *node) try(t *testing.T, c cell, stop time.Duration, dice *rand.Rand) bool {
	outer := n.t
	defer func() { n.t = outer }()
	start := time.Now()
	ok := t.Run(c.String(), func(t *testing.T) {
		n.t = t
		s := n.set(c, stop, dice)
		n.inject(s)
		n.recovers(s)
		n.report()
	})
	if long {
		t.Logf("%s: %.1f s, ok %v", c, time.Since(start).Seconds(), ok)
	}
	return ok
}

// seedOf is VGPU_SEED, or another one each time.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("VGPU_SEED")
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

// TestMatrix does a few cells of the matrix, other ones each time; all of them
// with VGPU_LONG=1. VGPU_FAULTS picks cells by a regular expression, VGPU_SEED a
// run that was seen.
func TestMatrix(t *testing.T) {
	seed := seedOf(t)
	dice := rand.New(rand.NewPCG(seed, 7))
	type fault struct {
		name string
		try  func(n *node) bool
	}
	var cells []fault
	stop, budget := 30*time.Second, 2*time.Hour
	for _, c := range matrix() {
		if !long && c.target == "slurmctld" && c.fault == "kill" {
			continue // waits for its state
		}
		cells = append(cells, fault{c.String(), func(n *node) bool { return n.try(t, c, stop, dice) }})
	}
	for i, e := range environment {
		if e.quick || long {
			cells = append(cells, fault{e.name, func(n *node) bool { return n.tryEnvironment(t, i) }})
		}
	}
	if !long {
		dice.Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
		stop, budget = time.Second, 4*time.Second
	}
	if pick := os.Getenv("VGPU_FAULTS"); pick != "" {
		budget = 2 * time.Hour
		only := regexp.MustCompile(pick)
		cells = slices.DeleteFunc(cells, func(c fault) bool { return !only.MatchString(c.name) })
	}
	if text := os.Getenv("VGPU_STOP"); text != "" {
		var err error
		if stop, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	start, faults, bad := time.Now(), 0, 0
	samples, checked, alone := 0, 0, 0
	var n *node
	count := func() {
		if n != nil {
			s, c, a := n.Counts()
			samples, checked, alone = samples+s, checked+c, alone+a
		}
	}
	for _, c := range cells {
		if time.Since(start) > budget {
			break
		}
		if n == nil {
			n = up(t, "")
		}
		faults++
		if !c.try(n) {
			bad++
			if !long {
				break
			}
			count()
			n.Stop()
			n.Checker = nil
			n.t.Logf("a new cluster after a failed cell; the ends of the logs:\n%s", n.Tail(15))
			n.must(n.Close())
			kept := fmt.Sprintf("%s.failed-%d", n.logs, bad)
			n.must(os.RemoveAll(kept))
			n.must(os.Rename(n.logs, kept))
			n = nil
		}
	}
	count()
	t.Logf("seed %d: %d faults injected, %d cells failed; %d samples, %d invariants checked (%d times the compute limit of a job alone); %.0f s",
		seed, faults, bad, samples, checked, alone, time.Since(start).Seconds())
}
