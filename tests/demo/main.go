// SPDX-License-Identifier: Apache-2.0

// vgpu-demo shows slurm-vgpu at work: a private Slurm with one card, and three
// jobs that share it. It checks what it shows, and ends with "demo: OK".
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

func main() {
	if err := cluster.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := demo(os.Stdout); err != nil {
		fmt.Printf("\ndemo: FAILED: %v\n", err)
		os.Exit(1)
	}
	fmt.Println("\ndemo: OK")
}

// tolerance of a compute share, in points.
const tolerance = 3

// job is one job of the demo.
type job struct {
	name  string
	user  string
	share int
	mem   string // of --vgpu-mem; "": follows the share
	id    int
}

func (j *job) args() []string {
	args := []string{fmt.Sprintf("--gres=vgpu:%d", j.share)}
	if j.mem != "" {
		args = append(args, "--vgpu-mem="+j.mem)
	}
	return args
}

// show is a demo under way.
type show struct {
	*cluster.Cluster
	out  io.Writer
	solo float64 // work per second of a job that has the card alone
}

func demo(out io.Writer) (err error) {
	opts := cluster.Options{Cards: []cluster.Card{{Name: "Simulated H100 80GB", Memory: "80G"}}}
	if _, statErr := os.Stat("/dev/nvidia0"); statErr == nil {
		opts.Real = true
	}
	start := time.Now()
	c, err := cluster.Up(opts)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			fmt.Fprintln(out, c.Tail(12))
		}
		if closeErr := c.Close(); err == nil {
			err = closeErr
		}
	}()
	s := &show{Cluster: c, out: out}
	status, err := c.Status()
	if err != nil {
		return err
	}
	s.say("Private Slurm and gresd started in %.1f s.", time.Since(start).Seconds())
	for _, card := range status.Cards {
		s.say("Card %d: %s, %.0f GiB", card.Index, card.Name, gib(card.MemoryBytes))
	}
	return s.play()
}

func (s *show) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func gib(bytes uint64) float64 { return float64(bytes) / (1 << 30) }

func (s *show) play() error {
	a := &job{name: "A", user: "www-data", share: 30, mem: "8G"}
	b := &job{name: "B", user: "games", share: 50, mem: "20G"}
	c := &job{name: "C", user: "nobody", share: 40}
	var err error
	if s.solo, err = s.Solo(a.user, 3); err != nil {
		return err
	}
	// A and B look at their memory first, then work when they are told to.
	for _, j := range []*job{a, b} {
		if err := s.submit(j, cluster.LookScript+"\n"+cluster.WorkScript+"\nsleep 300"); err != nil {
			return err
		}
	}
	for _, j := range []*job{a, b} {
		if err := s.showMemory(j); err != nil {
			return err
		}
	}
	if err := s.submit(c, cluster.LookScript+"\nsleep 300"); err != nil {
		return err
	}
	if err := s.waits(c); err != nil {
		return err
	}
	if err := s.showShares(a, b); err != nil {
		return err
	}
	return s.moveOn(b, c, a)
}

func (s *show) submit(j *job, script string) error {
	id, err := s.Sbatch(j.user, j.args(), script)
	if err != nil {
		return err
	}
	j.id = id
	s.say("\n%s$ sbatch %s job.sh", j.user, strings.Join(j.args(), " "))
	s.say("  job %d is %s", id, j.name)
	return nil
}

// showMemory waits for what the job's program saw, and holds it against what
// the job asked for.
func (s *show) showMemory(j *job) error {
	look, err := s.Look(j.user, j.id)
	if err != nil {
		return err
	}
	records, err := s.Records()
	if err != nil {
		return err
	}
	for _, r := range records {
		if int(r.JobID) != j.id || len(r.Cards) != 1 {
			continue
		}
		s.say("Job %s (%d), user %s: %d %% of card %d", j.name, j.id, j.user, r.Cards[0].Share, r.Cards[0].Index)
		s.say("  memory by CUDA %5.1f GiB, by NVML %5.1f GiB (asked %s)", gib(look.Total), gib(look.NVMLTotal), j.mem)
		s.say("  took %.2f GiB beside %.2f GiB of its CUDA context; the next 256 MiB: %s",
			gib(look.Granted), gib(look.Used-look.Granted), look.Refusal)
		switch want := r.Cards[0].LimitBytes; {
		case look.Total != want || look.NVMLTotal != want:
			return fmt.Errorf("job %s: saw %d bytes by CUDA and %d by NVML, want %d", j.name, look.Total, look.NVMLTotal, want)
		case look.Granted > want:
			return fmt.Errorf("job %s: took %d bytes, want at most %d", j.name, look.Granted, want)
		case look.Refusal == "":
			return fmt.Errorf("job %s: nothing was refused", j.name)
		}
		return nil
	}
	return fmt.Errorf("job %s (%d): gresd has no record of it", j.name, j.id)
}

// waits checks that a job is held back for want of room.
func (s *show) waits(j *job) error {
	time.Sleep(2 * time.Second)
	facts, err := s.Job(j.id)
	if err != nil {
		return err
	}
	if facts["JobState"] != "PENDING" {
		return fmt.Errorf("job %s: %s, want PENDING: 30 + 50 + 40 is more than one card", j.name, facts["JobState"])
	}
	s.say("Job %s (%d), user %s: %s (%s): 30 + 50 + 40 is more than one card", j.name, j.id, j.user, facts["JobState"], facts["Reason"])
	return nil
}

// showShares measures both jobs over the same seconds.
func (s *show) showShares(jobs ...*job) error {
	s.say("\nCompute, both jobs busy all the time, in parts of what one job alone does:")
	var works []cluster.Work
	for _, j := range jobs {
		works = append(works, cluster.Work{User: j.user, Job: j.id})
	}
	rates, err := s.Measure(6, works...)
	if err != nil {
		return err
	}
	var bad error
	for i, j := range jobs {
		got := 100 * rates[i] / s.solo
		s.say("  job %s: asked %d %%, got %.1f %%", j.name, j.share, got)
		if off := got - float64(j.share); off > tolerance || off < -tolerance {
			bad = fmt.Errorf("job %s: got %.1f %% of the card, want %d ± %d", j.name, got, j.share, tolerance)
		}
	}
	return bad
}

// moveOn ends one job; the waiting one must start and see its own limit.
func (s *show) moveOn(ends, starts, last *job) error {
	s.say("\n%s$ scancel %d", ends.user, ends.id)
	if err := s.Cancel(ends.user, ends.id); err != nil {
		return err
	}
	starts.mem = "40 % of the card"
	if err := s.showMemory(starts); err != nil {
		return err
	}
	for _, j := range []*job{starts, last} {
		if err := s.Cancel(j.user, j.id); err != nil {
			return err
		}
	}
	if left := s.Leftovers(5 * time.Second); len(left) != 0 {
		return fmt.Errorf("left after the last job: %s", strings.Join(left, "; "))
	}
	s.say("\nAll jobs have ended; no file, process or record is left.")
	return nil
}
