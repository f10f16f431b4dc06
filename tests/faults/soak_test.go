// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// soakTime is how long random jobs run: 30 minutes, or VGPU_SOAK.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("VGPU_SOAK")
	switch {
	case text == "" && !long:
		t.Skip("takes half an hour: set VGPU_LONG=1, or VGPU_SOAK to a time")
	case text == "":
		return 30 * time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const pprofSocket = cluster.RunDir + "/pprof.sock"

// witness is a job of the whole time: one process that stays, and others that
// come and go, each with a slot of the same cache.
const witness = cluster.Worker + " --alloc 512M --saturate 100000 & " +
	"while :; do " + cluster.Worker + " --alloc 64M --saturate 0.2; sleep 0.5; done"

// kinds of jobs, by what they do; $S is a number of seconds.
var soakJobs = []string{
	cluster.LookScript,
	cluster.Worker + " --alloc 512M --saturate $S",
	"for i in 1 2 3; do " + cluster.Worker + " --alloc 256M --saturate $S & done; wait",
	"srun --overlap " + cluster.Worker + " --alloc 512M --saturate $S; srun --overlap true",
	cluster.Worker + " --alloc 1G --saturate 100 & sleep $S; kill -9 $!",
	"exit 3",
	"sleep $S",
}

// TestSoak runs random jobs for a long time, in rounds. After each, when only the
// witness is left, everything that could leak is counted.
func TestSoak(t *testing.T) {
	total := soakTime(t)
	// The short jobs before take up to ten minutes.
	if end, ok := t.Deadline(); ok && time.Until(end) < total+15*time.Minute {
		t.Fatalf("%s and the jobs before them do not end in %s: go test -timeout 3h", total, time.Until(end).Round(time.Second))
	}
	round := min(time.Minute, total/8)
	seed := seedOf(t)
	dice := rand.New(rand.NewPCG(seed, 11))
	n := up(t, fmt.Sprintf("[debug]\npprof = %q\n[metrics]\nprocesses = true\n", pprofSocket))
	n.tellSlurmd()
	w := n.submit(alice, 10, witness)
	n.working(30*time.Second, w)
	stays := n.find(cluster.Worker, "--alloc 512M --saturate 100000")
	n.fillMemory()
	start, jobs, refused := time.Now(), 0, 0
	series := map[string][]float64{}
	var jobsAfter []int // that ran until the end of each round
	for rounds := 0; time.Since(start) < total; rounds++ {
		var own []job
		for end := time.Now().Add(round); time.Now().Before(end); time.Sleep(time.Duration(100+dice.IntN(500)) * time.Millisecond) {
			queue, err := n.Queue()
			n.must(err)
			if len(queue) >= 7 && len(own) == 0 {
				continue
			}
			switch {
			case len(queue) < 7:
				j, ok := n.anyJob(dice)
				jobs++
				if !ok {
					refused++
					continue
				}
				own = append(own, j)
			case dice.IntN(8) == 0:
				n.As("root", "scancel", strconv.Itoa(own[dice.IntN(len(own))].id))
			case dice.IntN(8) == 0:
				n.As("root", "scontrol", "requeue", strconv.Itoa(own[dice.IntN(len(own))].id))
			}
		}
		n.end(own...)
		n.eventually(90*time.Second, "only the witness is left", func() bool {
			queue, err := n.Queue()
			folders, _ := filepath.Glob(cluster.RunDir + "/jobs/*")
			return err == nil && len(queue) == 1 && len(folders) == 1
		})
		time.Sleep(2 * time.Second) // gresd and slurmd have put away what was of the jobs
		line := ""
		jobsAfter = append(jobsAfter, jobs-refused)
		counts := n.count(w, stays)
		for _, what := range sortedKeys(counts) {
			series[what] = append(series[what], counts[what])
			line += fmt.Sprintf(" %s=%.0f", what, counts[what])
		}
		t.Logf("round %d, %d jobs:%s", rounds, jobs, line)
		n.report()
	}
	n.end(w)
	n.clean(60 * time.Second)
	samples, checked, _ := n.Counts()
	t.Logf("seed %d: %.0f s, %d jobs (%d of them refused); %d samples, %d invariants checked",
		seed, time.Since(start).Seconds(), jobs, refused, samples, checked)
	over, beside, who := n.Over()
	t.Logf("the most that a job had beyond its share in %s: %d ms alone on its card (allowed: %d), %d ms beside others: %s",
		computeWindow, over.Milliseconds(), (computeWindow*computePoints/100 + computeBurst).Milliseconds(), beside.Milliseconds(), who)
	// The first rounds fill what is kept for reuse.
	warm := min(3, len(jobsAfter)/4)
	t.Logf("%d jobs from the first value to the last", jobsAfter[len(jobsAfter)-1]-jobsAfter[warm])
	for _, what := range sortedKeys(series) {
		v := series[what][warm:]
		trend, least := TrendOf(v), leastOf(what, v[0], jobsAfter[len(jobsAfter)-1]-jobsAfter[warm])
		t.Logf("%-28s %s; leaks from %.0f", what, trend, least)
		if trend.Leaks(least) {
			t.Errorf("%s is not flat: %s: %.0f", what, trend, series[what])
		}
	}
}

// remembered is of how many jobs gresd keeps the decision (server.maxDecisions).
const remembered = 1000

// fillMemory has gresd decide about as many jobs as it remembers: what it holds grows
// until then, and must not afterwards.
func (n *node) fillMemory() {
	n.t.Helper()
	began := time.Now()
	r := n.TrySbatch(carol, []string{fmt.Sprintf("--array=1-%d", remembered), "--gres=vgpu:5"}, "true")
	if r.Code != 0 {
		n.t.Fatal(r)
	}
	n.eventually(15*time.Minute, "many short jobs have run", func() bool {
		r := n.As("root", "squeue", "-h", "-u", carol)
		return r.Code == 0 && r.Out == ""
	})
	n.t.Logf("%d short jobs first, in %.0f s", remembered, time.Since(began).Seconds())
}

// anyJob submits a random job; ok is false for one that is refused, as some must be.
func (n *node) anyJob(dice *rand.Rand) (j job, ok bool) {
	n.t.Helper()
	user := []string{alice, bob, carol}[dice.IntN(3)]
	share := 5 + 5*dice.IntN(10)
	script := strings.ReplaceAll(soakJobs[dice.IntN(len(soakJobs))], "$S", fmt.Sprint(1+dice.IntN(4)))
	args := []string{"--hold", "--requeue", fmt.Sprintf("--gres=vgpu:%d", share)}
	memory := uint64(share) * 80 * gib / 100
	switch dice.IntN(6) {
	case 0:
		memory = 2 * gib
		args = append(args, "--vgpu-mem=2G")
	case 1:
		if r := n.TrySbatch(user, []string{"--gres=vgpu:30", "--vgpu-mem=81G"}, script); r.Code == 0 {
			n.t.Errorf("a job that asks for more memory than a card has was taken: %s", r)
		}
		return j, false
	}
	id, err := n.Sbatch(user, args, script)
	n.must(err)
	n.Expect(id, Want{UID: uids[user], Share: share, Memory: memory})
	j = job{id, user, share}
	n.release(j)
	return j, true
}

func get(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
