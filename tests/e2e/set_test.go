// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
)

// A change of a job's compute share is in its grant at once, and its program,
// which knows nothing of it, does that much work from then on.
func TestSetChangesTheWorkOfARunningJob(t *testing.T) {
	s := up(t, oneCard)
	solo, err := s.Solo(alice, 3)
	if err != nil {
		t.Fatal(err)
	}
	const runs, seconds = 9, 2
	job := s.submit(alice, "--gres=vgpu:60", cluster.Worker+strings.Repeat(fmt.Sprint(" --saturate ", seconds), runs))
	s.running(job)
	grant := filepath.Join(cluster.JobDir(job), "grant")
	done := func() int { rates, _ := cluster.Rates(s.Output(alice, job)); return len(rates) }
	// waited is how long this test and gresd have waited for a processor.
	waited := func() time.Duration { return processor.Waited(os.Getpid()) + processor.Waited(s.Gresd.PID()) }
	set := func(cores uint32) {
		t.Helper()
		before := waited()
		if r := s.As("root", "vgpuctl", "set", fmt.Sprint(job), "--cores", fmt.Sprint(cores)); r.Code != 0 {
			t.Fatal(r)
		}
		for began := time.Now(); ; time.Sleep(2 * time.Millisecond) {
			_, schedules, err := libvgpu.ReadGrant(grant)
			late := time.Since(began) - (waited() - before)
			if err == nil && len(schedules) == 1 && schedules[0].Cores == cores {
				t.Logf("in the grant %s after vgpuctl", late.Round(time.Millisecond))
				break
			}
			if late > 200*time.Millisecond {
				t.Fatalf("not in the grant after %s: %+v, %v", late, schedules, err)
			}
		}
		if got := s.inspect(job, "grant").Cards[0].Cores; got != cores {
			t.Errorf("vgpuctl inspect shows %d %%, want %d %%", got, cores)
		}
	}
	// The run in which a share changes has some of both.
	var at []int
	for _, cores := range []uint32{60, 20, 45} {
		if cores != 60 {
			set(cores)
		}
		from := done() + 1
		s.eventually(shortWait, "the job has worked at that share", func() bool { return done() > from })
		at = append(at, from)
	}
	for _, wrong := range []struct{ user, cores, say string }{
		{"root", "61", "want 1 to 60"},
		{"root", "0", "want 1 to 100"},
		{alice, "10", "root"},
	} {
		r := s.As(wrong.user, "vgpuctl", "set", fmt.Sprint(job), "--cores", wrong.cores)
		if r.Code == 0 || !strings.Contains(r.Err, wrong.say) {
			t.Errorf("%s sets %s: want a refusal with %q: %s", wrong.user, wrong.cores, wrong.say, r)
		}
	}
	// What was set outlives gresd.
	s.Gresd.Kill()
	if err := s.Gresd.Start(); err != nil {
		t.Fatal(err)
	}
	s.eventually(shortWait, "the new gresd holds the job at what was set", func() bool {
		_, schedules, err := libvgpu.ReadGrant(grant)
		return err == nil && len(schedules) == 1 && schedules[0].Cores == 45 && schedules[0].Gate != 0
	})
	rates, late := cluster.Rates(s.completed(alice, job))
	for i, want := range []float64{60, 20, 45} {
		got := 100 * rates[at[i]] / solo
		t.Logf("set to %.0f %%, got %.1f %%; without a processor for %.3f of the time", want, got, late[at[i]])
		if got < (want-tolerance)*(1-late[at[i]]) || got > want+tolerance {
			t.Errorf("set to %.0f %%: got %.1f %% of the card; all runs: %.4g of %.4g", want, got, rates, solo)
		}
	}
}
