// SPDX-License-Identifier: Apache-2.0

// vgpu-gpu-check runs PyTorch jobs on a private Slurm with the NVIDIA cards of
// this machine, and holds what they get against what they asked for.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/platforms"
)

func main() {
	build := flag.String("build", "build", "folder of built programs")
	script := flag.String("torch", "tests/gpu-check/torch_job.py", "the PyTorch program")
	python := flag.String("python", "python3", "a Python that has PyTorch")
	seconds := flag.Int("seconds", 10, "length of each measurement; what happens at a start counts for more in a short one")
	flag.Parse()
	if err := cluster.EnterForCards(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ok, err := check(*build, *script, *python, *seconds)
	if err != nil {
		fmt.Printf("\ngpu-check: FAILED: %v\n", err)
		os.Exit(1)
	}
	if !ok {
		fmt.Println("\ngpu-check: FAILED: see the lines marked NO")
		os.Exit(1)
	}
	fmt.Println("\ngpu-check: OK")
	if err := record(*build); err != nil {
		fmt.Fprintf(os.Stderr, "gpu-check: this run is not written down: %v\n", err)
	}
}

// record notes that it has run here, for docs/platforms.md.
func record(build string) error {
	c := platforms.Of("/").WithCards("/")
	c.Cgroup, c.Command = "none", "make gpu-check"
	c.What = "PyTorch jobs of ordinary users in a private Slurm: memory, shares"
	return platforms.RecordBuilt(build, c)
}

// table is the report: what was looked at, wanted and got. A row is printed as soon as it is known:
// a run takes minutes, and may be ended before.
type table struct {
	bad bool
}

const columns = "%-40s %-20s %-20s %s\n"

func (t *table) row(what, want, got string, ok bool) {
	verdict := "yes"
	if !ok {
		verdict, t.bad = "NO", true
	}
	fmt.Printf(columns, what, want, got, verdict)
}

// within adds a row for a compute share in percent.
func (t *table) within(what string, got, want, tolerance float64) {
	t.row(what, fmt.Sprintf("%.0f ± %.0f %%", want, tolerance), fmt.Sprintf("%.1f %%", got),
		got >= want-tolerance && got <= want+tolerance)
}

const (
	first  = "www-data"
	second = "games"
)

func check(build, script, python string, seconds int) (ok bool, err error) {
	c, err := cluster.Up(cluster.Options{Build: build, Real: true})
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			fmt.Println(c.Tail(20))
		}
		err = errors.Join(err, c.Close())
	}()
	// The job's user may not be able to read the checkout.
	const program = cluster.Dir + "/torch_job.py"
	text, err := os.ReadFile(script)
	if err != nil {
		return false, err
	}
	if err := os.WriteFile(program, text, 0o644); err != nil {
		return false, err
	}
	run := python + " " + program + " "
	report := &table{}
	fmt.Printf(columns, "what", "wanted", "got", "ok")
	if err := memory(c, report, run+"memory"); err != nil {
		return false, err
	}
	if err := torchShares(c, report, run, seconds); err != nil {
		return false, err
	}
	if err := workerShares(c, report, seconds); err != nil {
		return false, err
	}
	left := c.Leftovers(10 * time.Second)
	report.row("left after all jobs", "nothing", strings.Join(append(left, ""), "; "), len(left) == 0)
	return !report.bad, nil
}

// values reads "name value" lines.
func values(out string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			m[name] = value
		}
	}
	return m
}

func completed(c *cluster.Cluster, user string, job int, limit time.Duration) (map[string]string, error) {
	state, err := c.Wait(job, limit)
	if err != nil {
		return nil, err
	}
	out := c.Output(user, job)
	if state != "COMPLETED" {
		return nil, fmt.Errorf("job %d: %s, output:\n%s", job, state, out)
	}
	return values(out), nil
}

func memory(c *cluster.Cluster, report *table, run string) error {
	job, err := c.Sbatch(first, []string{"--gres=vgpu:30", "--vgpu-mem=8G"}, run)
	if err != nil {
		return err
	}
	got, err := completed(c, first, job, 3*time.Minute)
	if err != nil {
		return err
	}
	for _, r := range []struct{ what, name, want string }{
		{"torch.cuda.mem_get_info, MiB", "torch_total_mib", "8192"},
		{"nvidia-smi, MiB", "smi_total_mib", "8192"},
		{"half of it allocated, MiB", "half_allocated_mib", "4096"},
		{"allocation above it", "above", "refused"},
		{"tensor after the refusal", "sum_after", strconv.Itoa(1 << 20)},
	} {
		report.row(r.what, r.want, got[r.name], got[r.name] == r.want)
	}
	report.row("its message", "an OutOfMemoryError", got["above_message"], strings.Contains(got["above_message"], "out of memory"))
	return nil
}

// startup is how long PyTorch may take from the start of its job.
const startup = 25 * time.Second

// torchRates runs one PyTorch job for each share, all counting over the same
// seconds, and returns products a second.
func torchRates(c *cluster.Cluster, run string, seconds int, shares ...int) ([]float64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return nil, err
	}
	start := time.Duration(now.Nano()) + startup
	users := []string{first, second}
	jobs := make([]int, len(shares))
	for i, share := range shares {
		var err error
		jobs[i], err = c.Sbatch(users[i], []string{fmt.Sprintf("--gres=vgpu:%d", share)},
			fmt.Sprintf("%s work %.3f %d", run, start.Seconds(), seconds))
		if err != nil {
			return nil, err
		}
	}
	rates := make([]float64, len(shares))
	for i, job := range jobs {
		got, err := completed(c, users[i], job, startup+time.Duration(seconds)*time.Second+time.Minute)
		if err != nil {
			return nil, err
		}
		if rates[i], err = strconv.ParseFloat(got["rate"], 64); err != nil {
			return nil, fmt.Errorf("job %d: rate: %w", job, err)
		}
	}
	return rates, nil
}

func torchShares(c *cluster.Cluster, report *table, run string, seconds int) error {
	solo, err := torchRates(c, run, seconds, 100)
	if err != nil {
		return err
	}
	capped, err := torchRates(c, run, seconds, 30)
	if err != nil {
		return err
	}
	pair, err := torchRates(c, run, seconds, 30, 70)
	if err != nil {
		return err
	}
	// The cap is on GPU time. Where full load is held down by the power limit, the
	// card runs faster at 30 % of the time, and does more work in it.
	alone := 100 * capped[0] / solo[0]
	report.row("PyTorch, 30 % alone on the card", "28 to 40 %", fmt.Sprintf("%.1f %%", alone), alone >= 28 && alone <= 40)
	report.within("PyTorch, 30 % beside 70 %", 100*pair[0]/solo[0], 30, 2)
	report.within("PyTorch, 70 % beside 30 %", 100*pair[1]/solo[0], 70, 3)
	return nil
}

// workerShares is the same with plain kernels.
func workerShares(c *cluster.Cluster, report *table, seconds int) error {
	solo, err := c.Solo(first, seconds)
	if err != nil {
		return err
	}
	alone, err := c.Sbatch(first, []string{"--gres=vgpu:30"}, cluster.WorkScript)
	if err != nil {
		return err
	}
	capped, err := c.Measure(seconds, cluster.Work{User: first, Job: alone})
	if err != nil {
		return err
	}
	if _, err := c.Wait(alone, 30*time.Second); err != nil {
		return err
	}
	report.within("plain kernels, 30 % alone on the card", 100*capped[0]/solo, 30, 2)

	var works []cluster.Work
	for i, share := range []int{30, 70} {
		user := []string{first, second}[i]
		job, err := c.Sbatch(user, []string{fmt.Sprintf("--gres=vgpu:%d", share)}, cluster.WorkScript)
		if err != nil {
			return err
		}
		works = append(works, cluster.Work{User: user, Job: job})
	}
	pair, err := c.Measure(seconds, works...)
	if err != nil {
		return err
	}
	for i, w := range works {
		fmt.Printf("plain kernels, %d %%, each 100 ms of the first 2 s: %.0f\n", []int{30, 70}[i], c.FirstWindows(w))
	}
	report.within("plain kernels, 30 % beside 70 %", 100*pair[0]/solo, 30, 2)
	report.within("plain kernels, 70 % beside 30 %", 100*pair[1]/solo, 70, 3)
	for _, w := range works {
		if _, err := c.Wait(w.Job, 30*time.Second); err != nil {
			return err
		}
	}
	return nil
}
