// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// pageSample is one sample of the page.
type pageSample struct {
	Nodes []struct {
		Status wire.Status
		Jobs   []wire.Job
	}
	Queue []struct {
		JobID  string `json:"job_id"`
		Reason string
	}
}

// page starts vgpuctl web as a user, and returns a reader of its samples.
func (s site) page(name string) (next func() pageSample) {
	s.t.Helper()
	cmd, err := s.Command(name, "vgpuctl", "--json", "web", "--interval", "500ms")
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var told struct{ URL string }
	if err := json.NewDecoder(out).Decode(&told); err != nil {
		s.t.Fatalf("%s: no address: %v", name, err)
	}
	browser := &http.Client{}
	if browser.Jar, err = cookiejar.New(nil); err != nil {
		s.t.Fatal(err)
	}
	page, err := browser.Get(told.URL)
	if err != nil || page.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %v, %v", told.URL, page, err)
	}
	page.Body.Close()
	events, err := browser.Get(page.Request.URL.String() + "events")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { events.Body.Close() })
	lines := bufio.NewScanner(events.Body)
	lines.Buffer(nil, 8<<20)
	return func() pageSample {
		s.t.Helper()
		for lines.Scan() {
			if data, is := strings.CutPrefix(lines.Text(), `data: {"time"`); is {
				var l pageSample
				if err := json.Unmarshal([]byte(`{"time"`+data), &l); err != nil {
					s.t.Fatal(err)
				}
				return l
			}
		}
		s.t.Fatalf("%s: the page has no more: %v", name, lines.Err())
		return pageSample{}
	}
}

// On a node with real jobs: the page tells a user what gresd and Slurm tell him, and no more.
func TestPageShowsWhatItsUserMaySee(t *testing.T) {
	s := up(t, oneCard)
	a := s.submit(alice, "--gres=vgpu:30", cluster.BusyScript(300))
	b := s.submit(bob, "--gres=vgpu:50", cluster.BusyScript(300))
	s.running(a, b)
	waits := s.submit(alice, "--gres=vgpu:60", "true")
	others := s.submit(bob, "--gres=vgpu:70", "true")
	s.eventually(shortWait, "both jobs compute, two more wait for room", func() bool {
		status := s.As("root", "vgpuctl", "status").Out
		return strings.Contains(status, "Resources") && strings.Contains(status, "Priority") && strings.Count(s.As("root", "vgpuctl", "ps").Out, "\n") == 2
	})
	for name, c := range map[string]struct{ jobs, queue []int }{
		alice:  {[]int{a}, []int{waits}},
		"root": {[]int{a, b}, []int{waits, others}},
	} {
		next := s.page(name)
		// What a job got is known after two looks of gresd.
		var l pageSample
		for deadline := time.Now().Add(shortWait); ; {
			l = next()
			if len(l.Nodes) == 1 && len(l.Nodes[0].Jobs) == len(c.jobs) && l.Nodes[0].Jobs[0].Cards[0].GotPercent != nil && *l.Nodes[0].Jobs[0].Cards[0].GotPercent > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: want the jobs %v at work: %+v", name, c.jobs, l)
			}
		}
		var jobs, queue []int
		for _, j := range l.Nodes[0].Jobs {
			jobs = append(jobs, int(j.JobID))
		}
		for _, q := range l.Queue {
			var job int
			if _, err := fmt.Sscan(q.JobID, &job); err != nil {
				t.Error(err)
			}
			queue = append(queue, job)
		}
		slices.Sort(queue)
		card := l.Nodes[0].Status.Cards[0]
		if !slices.Equal(jobs, c.jobs) || !slices.Equal(queue, c.queue) || card.Share != 80 || card.Jobs != 2 {
			t.Errorf("%s sees the jobs %v, the queue %v, and of the card %d %% for %d jobs; want %v, %v, 80 %% for 2", name, jobs, queue, card.Share, card.Jobs, c.jobs, c.queue)
		}
	}
	// Those that wait first: else they begin.
	s.cancel(alice, waits)
	s.cancel(bob, others)
	s.cancel(alice, a)
	s.cancel(bob, b)
}
