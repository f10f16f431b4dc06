// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// cutCard is a card with two MIG instances, and one without.
var cutCard = cluster.Options{Cards: []cluster.Card{
	{Name: "Simulated H100", Memory: "80G", Instances: []cluster.Instance{{Profile: "1g.10gb", Memory: "10G"}, {Profile: "2g.20gb", Memory: "20G"}}},
	{Name: "Simulated H100", Memory: "80G"},
}}

// had are the parts of its card that jobs had lately, in percent, by the card's records.
func (s site) had(jobs ...int) []float64 {
	s.t.Helper()
	records, err := s.Records()
	if err != nil {
		s.t.Fatal(err)
	}
	parts := make([]float64, len(jobs))
	for i, job := range jobs {
		for _, r := range records {
			if r.JobID == uint32(job) && len(r.Cards) == 1 && r.Cards[0].Had != nil {
				parts[i] = 100 * *r.Cards[0].Had
			}
		}
	}
	return parts
}

// A MIG instance is a card: jobs share it in parts of its time and memory, or one has it whole,
// beside instances of the same GPU.
func TestSharesOfMIGInstances(t *testing.T) {
	s := up(t, cutCard)
	status, err := s.Status()
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, c := range status.Cards {
		types = append(types, fmt.Sprintf("%s of %d GiB", c.Type, c.MemoryBytes>>30))
	}
	if got := strings.Join(types, ", "); got != "1g.10gb of 10 GiB, 2g.20gb of 20 GiB, simulated-h100 of 80 GiB" {
		t.Fatalf("the node has %s", got)
	}

	list := "echo visible $CUDA_VISIBLE_DEVICES; " + cluster.Worker + " --list --count; " + cluster.LookScript
	halves := map[int]string{}
	for _, user := range []string{alice, bob} {
		halves[s.submit(user, "--gres=vgpu:1g.10gb:50", list)] = user
	}
	for job, user := range halves {
		s.seesItsInstance(status.Cards, user, job, 0, 5)
	}
	whole := s.submit(carol, "--gres=vgpu:2g.20gb:100", list)
	s.seesItsInstance(status.Cards, carol, whole, 1, 20)

	// Slurm's own word for whole cards; its numbers are not CUDA's.
	for gres, card := range map[string]int{"gpu:1g.10gb:1": 0, "gpu:2g.20gb:1": 1, "gpu:simulated-h100:1": 2} {
		want := "visible " + status.Cards[card].UUID + "\n"
		script := "echo visible $CUDA_VISIBLE_DEVICES; srun --gres=" + gres + " sh -c 'echo visible $CUDA_VISIBLE_DEVICES'; " + cluster.LookScript
		out := s.completed(carol, s.submit(carol, "--gres="+gres, script))
		if got := look(t, out); !strings.HasPrefix(out, want+want) || got.Total != []uint64{10, 20, 80}[card]*gib {
			t.Errorf("%s: saw %+v; %s", gres, got, out)
		}
	}

	s.halvesHold()

	if r := s.TrySbatch(alice, []string{"--gres=vgpu:1g.10gb:30", "--vgpu-mem=11G"}, "true"); r.Code == 0 {
		t.Errorf("more memory than the instance has: %s", r)
	}
}

// With the device cgroup, a job may open the file of its own instance's capability, and no other's.
// What happens to the GPU happens to its instances, and to no other card.
func TestMIGInstancesHaveFilesAndFaults(t *testing.T) {
	s := upConfined(t, cutCard, "a job opens the files of its own MIG instance only; an XID puts all instances of its card out of use")
	const try = `for file in nvidia1 nvidia-caps/nvidia-cap13 nvidia-caps/nvidia-cap22; do
	echo "$file: $(cat ` + cluster.Dir + `/dev/$file 2>&1 | sed 's/.*: //')"; done`
	for gres, may := range map[string]string{"vgpu:1g.10gb:50": "nvidia-caps/nvidia-cap13", "vgpu:2g.20gb:100": "nvidia-caps/nvidia-cap22", "gpu:2g.20gb:1": "nvidia-caps/nvidia-cap22"} {
		var want string
		for _, file := range []string{"nvidia1", "nvidia-caps/nvidia-cap13", "nvidia-caps/nvidia-cap22"} {
			answer := mayNotOpen
			if file == may {
				answer = mayOpen
			}
			want += file + ": " + answer + "\n"
		}
		if out := s.completed(alice, s.submit(alice, "--gres="+gres, try)); out != want {
			t.Errorf("%s:\n%swant\n%s", gres, out, want)
		}
	}

	s.sim("xid --card 0 --code 79")
	if why := s.card(false); !strings.Contains(why, "XID 79") {
		t.Errorf("the first instance is out of use for %s", why)
	}
	s.eventually(shortWait, "the other instance is out of use, and the other card is not", func() bool {
		status, err := s.Status()
		return err == nil && !status.Cards[1].Healthy && strings.Contains(status.Cards[1].Why, "XID 79") && status.Cards[2].Healthy
	})
	if r := s.As(bob, "srun", "--gres=vgpu:1g.10gb:10", "true"); r.Code == 0 || !strings.Contains(r.Err, "XID 79") {
		t.Errorf("a job on an instance of a sick GPU: %s", r)
	}
	if r := s.As(bob, "srun", "--gres=vgpu:simulated-h100:10", cluster.Worker, "--alloc", "1G"); r.Code != 0 {
		t.Errorf("a job on the card that is well: %s", r)
	}
}

// Where gresd chooses, slurmctld counts by types of instances, and a job that wants several cards
// has none of them.
func TestGresdPlacesJobsOnMIGInstances(t *testing.T) {
	opts := cutCard
	opts.GresdPlaces = true
	s := up(t, opts)
	const script = "echo visible $CUDA_VISIBLE_DEVICES; " + cluster.LookScript + "; exec sleep 300"
	job := s.submit(alice, "--gres=vgpu:1g.10gb:50", script)
	s.running(job)
	status, err := s.Status()
	if err != nil {
		t.Fatal(err)
	}
	s.eventually(shortWait, "the job has looked", func() bool { return len(cluster.Looks(s.Output(alice, job))) > 0 })
	out := s.Output(alice, job)
	if got := look(t, out); s.cardOf(job) != 0 || got.Total != 5*gib || !strings.HasPrefix(out, "visible "+status.Cards[0].UUID+"\n") {
		t.Errorf("half of an instance on card %d saw %+v; %s", s.cardOf(job), got, out)
	}
	r := s.As(bob, "srun", "--gres=vgpu:60", "--vgpu-cards=2", "true")
	if r.Code == 0 || !strings.Contains(r.Err, "want 2 cards, this node can share 0 of its") {
		t.Errorf("two instances: %s", r)
	}
	s.cancel(alice, job)
}

// Where slurmctld chooses, gresd refuses a job that got several.
func TestAJobHasOneMIGInstance(t *testing.T) {
	half := cluster.Instance{Profile: "3g.40gb", Memory: "40G"}
	s := up(t, cluster.Options{Cards: []cluster.Card{{Name: "Simulated H100", Memory: "80G", Instances: []cluster.Instance{half, half}}}})
	r := s.As(bob, "srun", "--gres=vgpu:3g.40gb:200", "true")
	if r.Code == 0 || !strings.Contains(r.Err, "is a MIG instance, of which a program can use one") {
		t.Errorf("two whole instances: %s", r)
	}
	if got := look(t, s.completed(alice, s.submit(alice, "--gres=vgpu:100", cluster.LookScript))); got.Total != 40*gib {
		t.Errorf("one saw %+v", got)
	}
	if state := s.NodeState(); strings.Contains(state, "DRAIN") {
		t.Errorf("the node is %s", state)
	}
}

// seesItsInstance looks at what a job with so many GiB of an instance was shown.
func (s site) seesItsInstance(cards []wire.Card, user string, job, card int, memory uint64) {
	s.t.Helper()
	out := s.completed(user, job)
	if visible := "visible " + cards[card].UUID + "\n"; !strings.HasPrefix(out, visible) {
		s.t.Errorf("job %d: want %s, got %s", job, visible, out)
	}
	if n := cluster.Devices(out); n != 1 {
		s.t.Errorf("job %d: %d devices", job, n)
	}
	if got := look(s.t, out); got.Total != memory*gib || got.NVMLTotal != memory*gib || got.Granted > memory*gib || got.Refusal != "CUDA_ERROR_OUT_OF_MEMORY" {
		s.t.Errorf("job %d: saw %+v, want %d GiB", job, got, memory)
	}
	var got []string
	for _, l := range cluster.List(out) {
		got = append(got, fmt.Sprintf("%s %s %d", l.Kind, l.Name, l.Total>>30))
		if i := map[string]int{"Simulated H100 MIG 1g.10gb": 0, "Simulated H100 MIG 2g.20gb": 1}[l.Name]; l.Kind == "MIG" && l.UUID != cards[i].UUID {
			s.t.Errorf("job %d: %s is %s, want %s", job, l.Name, l.UUID, cards[i].UUID)
		}
	}
	size := []uint64{10, 20}
	size[card] = memory
	want := []string{
		"GPU Simulated H100 80", fmt.Sprintf("MIG Simulated H100 MIG 1g.10gb %d", size[0]),
		fmt.Sprintf("MIG Simulated H100 MIG 2g.20gb %d", size[1]), "GPU Simulated H100 80",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("job %d: NVML lists\n%q, want\n%q", job, got, want)
	}
}

// halvesHold has two halves of an instance work, beside a whole one.
func (s site) halvesHold() {
	t := s.t
	var works []cluster.Work
	for user, share := range map[string]string{alice: "1g.10gb:50", bob: "1g.10gb:50", carol: "2g.20gb:100"} {
		works = append(works, cluster.Work{User: user, Job: s.submit(user, "--gres=vgpu:"+share, cluster.WorkScript)})
	}
	var halves []int
	for _, w := range works {
		if w.User != carol {
			halves = append(halves, w.Job)
		}
	}
	var parts [][]float64
	stop, stopped := make(chan bool), make(chan bool)
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
				parts = append(parts, s.had(halves...))
			}
		}
	}()
	const seconds, lastLooks = 10, 6
	rates, late, err := s.MeasureLate(seconds, works...)
	close(stop)
	<-stopped
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range works {
		s.completed(w.User, w.Job)
	}
	// A half that is late does less, and the other one can do more.
	both, off := 0.0, float64(tolerance)
	for i, w := range works {
		if w.User != carol {
			both += rates[i]
			off = max(off, tolerance+50*late[i])
		}
	}
	for i, w := range works {
		if w.User != carol && math.Abs(100*rates[i]/both-50) > off {
			t.Errorf("%s did %.1f %% of what both did; without a processor for %.3f of the time", w.User, 100*rates[i]/both, late[i])
		}
	}
	// The last ones: what was had lately counts less, the longer ago it was.
	sums, n := make([]float64, 2), 0.0
	for _, p := range parts[max(0, len(parts)-lastLooks):] {
		sums[0], sums[1], n = sums[0]+p[0], sums[1]+p[1], n+1
	}
	t.Logf("work done %v; %v looks at the records: %.1f and %.1f %% of the instance", rates, n, sums[0]/n, sums[1]/n)
	for _, sum := range sums {
		if n < lastLooks || math.Abs(sum/n-50) > off {
			t.Errorf("had %.1f %% of the instance by its records, want 50 ± %d", sum/n, tolerance)
		}
	}
}
