// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/watch"
)

// What the random jobs are made of.
const (
	stressCards  = 6
	stressMemory = 80 // GiB of each card
)

// jobSpec is one random submission.
type jobSpec struct {
	name   string
	user   string
	args   []string
	script string
	ask    watch.Ask
	tasks  int      // of an array; 0: none
	srun   bool     // not a batch job
	ends   []string // states in which it may end when nobody disturbs it
	cancel bool     // somebody cancels it, some time
}

// mix makes random jobs. The same seed makes the same jobs.
type mix struct {
	*rand.Rand
	gresd bool // gresd chooses the cards
	pools bool // whole cards are of a type of their own
	made  int
}

func (m *mix) job() jobSpec {
	m.made++
	j := jobSpec{
		name: fmt.Sprintf("s%d", m.made), user: []string{alice, bob, carol}[m.IntN(3)],
		ends: []string{"COMPLETED"}, cancel: m.IntN(100) < 8,
	}
	usesCard := true
	switch kind := m.IntN(100); {
	case kind < 52:
		m.share(&j)
	case kind < 66:
		m.share(&j)
		j.tasks, j.cancel = 2+m.IntN(4), false
		j.args = append(j.args, fmt.Sprintf("--array=1-%d", j.tasks))
	case kind < 76:
		m.whole(&j)
	case kind < 82:
		j.args = []string{"--gres=vgpu:30", "--vgpu-policy=exclusive"}
		if m.gresd {
			j.args[0] = "--gres=vgpu:100" // what slurmctld must count
		}
		j.ask = watch.Ask{Units: 100, Memory: stressMemory * gib * 30 / 100}
	case kind < 90:
		m.share(&j)
		j.srun = true
	case kind < 95 && !m.gresd:
		j.args, usesCard = []string{"--gres=gpu:1"}, false // Slurm's own, without a share
		if m.pools {
			j.args = []string{"--gres=gpu:whole:1"}
		}
	default:
		usesCard = false
	}
	j.script = m.program(&j, usesCard)
	return j
}

// share asks for a part of one card, by compute, memory or both.
func (m *mix) share(j *jobSpec) {
	share := 5 * (1 + m.IntN(20))
	j.args = []string{fmt.Sprintf("--gres=vgpu:%d", share)}
	j.ask = watch.Ask{Units: share, Memory: uint64(share) * stressMemory * gib / 100}
	if m.IntN(100) < 30 {
		mem := 2 + m.IntN(70)
		need := (100*mem + stressMemory - 1) / stressMemory
		if m.gresd && need > share { // there the count is what the user writes
			share = need
			j.args[0] = fmt.Sprintf("--gres=vgpu:%d", share)
		}
		j.args = append(j.args, fmt.Sprintf("--vgpu-mem=%dG", mem))
		j.ask = watch.Ask{Units: max(share, need), Memory: uint64(mem) * gib}
	}
	if m.IntN(100) < 30 {
		j.args = append(j.args, "--vgpu-mode=soft")
	}
}

// whole asks for several whole cards, or for one.
func (m *mix) whole(j *jobSpec) {
	cards := 1 + m.IntN(3)
	gres := fmt.Sprintf("--gres=vgpu:%d", 100*cards)
	if m.pools && cards > 1 {
		gres = "--gres=vgpu:whole:200" // of two such cards
	}
	j.args = []string{gres}
	j.ask = watch.Ask{Units: 100, Memory: stressMemory * gib}
}

// ownEnd fails for a program that could not use its card, and not for one that the
// test has killed.
const ownEnd = "e=$?; [ $e = 0 ] || [ $e -ge 128 ]"

// program is what the job runs: it says that it ran, and ends within a second or
// so unless it is disturbed.
func (m *mix) program(j *jobSpec, usesCard bool) string {
	script := `echo "$SLURM_JOB_NAME.${SLURM_ARRAY_TASK_ID:-0}" >>ran; `
	rest := float64(m.IntN(10)) / 10
	switch what := m.IntN(100); {
	case usesCard && what < 40:
		return script + fmt.Sprintf("%s --alloc %dM --hold %.1f; %s", worker, 64+m.IntN(900), rest, ownEnd)
	case usesCard && what < 50:
		return script + fmt.Sprintf("%[1]s --alloc 64M --hold %.1[2]f & %[1]s --alloc 64M --hold %.1[2]f; %[3]s || exit 1; wait $!; %[3]s", worker, rest, ownEnd)
	case what < 58:
		j.ends = []string{"FAILED"}
		return script + fmt.Sprintf("sleep %.1f; exit 3", rest)
	case what < 62:
		j.ends = []string{"FAILED"}
		return script + "kill -KILL $$"
	case what < 68:
		return script + "true"
	}
	return script + fmt.Sprintf("sleep %.1f", rest)
}
