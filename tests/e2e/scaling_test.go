// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// A card whose memory is shared out twice: jobs are told, and given, twice what
// the card has for them, and everybody can see that it is so.
func TestMemoryThatIsSharedOutTwice(t *testing.T) {
	opts := oneCard
	opts.Config = "[card.default]\nmem_scaling = 2.0\n"
	s := up(t, opts)

	// What fits into the physical share first, then the rest. The simulated card
	// keeps paged memory to itself, so a second job has only what is left of it.
	jobs := map[string]int{
		alice: s.submit(alice, "--gres=vgpu:50", cluster.Worker+" --report --alloc 35G --alloc 20G --alloc 20G --alloc 20G --hold 300"),
		bob:   s.submit(bob, "--gres=vgpu:50", cluster.Worker+" --report --alloc 3G --alloc 81G --hold 300"),
	}
	for user, want := range map[string]uint64{alice: 75 * gib, bob: 3 * gib} {
		s.eventually(shortWait, "the job has all that it may have", func() bool {
			_, refused := cluster.Taken(s.Output(user, jobs[user]))
			return refused > 0
		})
		out := s.Output(user, jobs[user])
		if got, refused := cluster.Taken(out); got != want || refused != 1 {
			t.Errorf("%s got %d bytes, %d pieces refused; want %d of 80 GiB and the last refused:\n%s", user, got, refused, want, out)
		}
		if paged := strings.Contains(out, "past the card's physical share"); paged != (want > 40*gib) {
			t.Errorf("%s has %d bytes of 40 GiB and was told that memory is paged: %v:\n%s", user, want, paged, out)
		}
		if v := s.inspect(jobs[user], "grant").Cards[0]; v.Limit != 80*gib || v.Physical != 40*gib {
			t.Errorf("grant: %d bytes, of which the card has %d; want 80 and 40 GiB", v.Limit, v.Physical)
		}
		if v := s.inspect(jobs[user], "cache").Cards[0]; v.Used < want || v.Used > want+2*gib {
			t.Errorf("cache: %d bytes in use, want %d and a context", v.Used, want)
		}
	}
	for _, show := range []struct{ command, want string }{
		{"status", "card 0: 160 GiB are shared out, of which the card has 80 GiB"},
		{"jobs", fmt.Sprintf("job %d: of its limit 80 GiB, card 0 has 40 GiB", jobs[alice])},
	} {
		if r := s.As("root", "vgpuctl", show.command); r.Code != 0 || !strings.Contains(r.Out, show.want) {
			t.Errorf("vgpuctl %s: want %q in: %s", show.command, show.want, r)
		}
	}
	s.cancel(alice, jobs[alice])
	s.cancel(bob, jobs[bob])

	// By CUDA and by NVML it is a card of 80 GiB, and not one byte more.
	got := look(t, s.completed(alice, s.submit(alice, "--gres=vgpu:50", cluster.LookScript)))
	if got.Total != 80*gib || got.NVMLTotal != 80*gib || got.Granted > 80*gib || got.Granted < 77*gib || got.Refusal != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("saw %+v, want a card of 80 GiB", got)
	}
}

// slurmctld must be told the same memory as gresd: it turns --vgpu-mem into a
// share of the card.
func TestSharesOfScaledMemory(t *testing.T) {
	opts := oneCard
	opts.Config = "[card.default]\nmem_scaling = 2.0\n"
	s := up(t, opts)
	for _, run := range []struct {
		mib   int
		share uint32
	}{{80 << 10, 50}, {160 << 10, 25}} {
		lua := fmt.Sprintf("return {default = %d}\n", run.mib)
		if err := os.WriteFile("/etc/slurm/vgpu_cards.lua", []byte(lua), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Scontrol("reconfigure"); err != nil {
			t.Fatal(err)
		}
		job := s.submit(alice, "--gres=vgpu:10 --vgpu-mem=40G", "sleep 300")
		s.running(job)
		cards := s.records()[uint32(job)].Cards
		if len(cards) != 1 || cards[0].Share != run.share || cards[0].LimitBytes != 40*gib {
			t.Errorf("vgpu_cards.lua says %d MiB: got %+v, want %d %% for 40 GiB", run.mib, cards, run.share)
		}
		s.cancel(alice, job)
	}
}
