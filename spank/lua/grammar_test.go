// SPDX-License-Identifier: Apache-2.0

package lua

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// What users write: right, wrong, and right only beside something else.
var written = map[string][]string{
	"mem":      {"8G", "40G", "25%", "100%", "820M", "1.5g", "0", "101%", "500G", "8 G", ""},
	"cores":    {"1", "30", "60", "100", "0", "101", "05", "x"},
	"cards":    {"1", "2", "3", "4", "5", "7", "8", "16", "0", "17", "02", "two"},
	"mode":     {"hard", "soft", "off", "soft:20", "soft:60", "soft:100", "soft:0", "fast"},
	"priority": {"high", "normal", "low", "urgent"},
	"policy":   {"binpack", "spread", "topology", "exclusive", "none"},
	"engine":   {"time", "mps", "cuda"},
}

func anyOf(r *rand.Rand, words ...string) string { return words[r.IntN(len(words))] }

// aShare is a count: of whole cards, of part of some, or none at all.
func aShare(r *rand.Rand) string {
	switch r.IntN(8) {
	case 0:
		return fmt.Sprint(100 * (1 + r.IntN(17)))
	case 1:
		return anyOf(r, "", "0", "-5", "030", "30%", "30.5", "1e2", "x", "vgpu")
	case 2, 3:
		return fmt.Sprint(1 + r.IntN(100))
	}
	return fmt.Sprint(1 + r.IntN(1700))
}

func aJob(r *rand.Rand) job {
	j := job{site: anyOf(r, "slurm", "gresd"), typed: request.Options{}}
	name := anyOf(r, "vgpu", "vgpu", "vgpu", "vgpu", "shard")
	word := anyOf(r, "gres:", "gres/", "") + name + anyOf(r, "", "", ":h200", ":a100") + anyOf(r, ":", ":", "=") + aShare(r)
	if r.IntN(20) == 0 {
		word = anyOf(r, "", "vgpu", "shard", "gres:nic:1", "vgpu:30,gpu:1", "vgpu:30,vgpu:20", "gpu:vgpu:30")
	}
	j.gres = anyOf(r, "", "", "cpu=2,") + word + anyOf(r, "", "", ",gres:nic:mlx:2")
	var words []string
	for _, option := range typedOptions {
		most := 8
		if option == "cards" {
			most = 2
		}
		value := anyOf(r, written[option]...)
		switch r.IntN(most) {
		case 0:
			j.typed[option] = value
		case 1:
			if r.IntN(4) == 0 {
				words = append(words, option+"="+value)
			}
		}
	}
	if r.IntN(10) == 0 {
		words = append(words, anyOf(r, "share="+aShare(r), "mem", "memory=8G", "mem=8G", ""))
	}
	if len(words) > 0 {
		j.comment = anyOf(r, "", "night ") + "vgpu(" + strings.Join(words, ",") + anyOf(r, ")", ")", ")", ") b", "")
	}
	return j
}

// Whatever is asked, job_submit.lua and Go take the same, count the same, and refuse with
// the same line. The inputs are the same each time.
func TestLuaAndGoAreOneGrammar(t *testing.T) {
	s := startSites(t, "slurm", "gresd")
	r := rand.New(rand.NewPCG(31, 8))
	outcomes := map[string]int{}
	for range 12000 {
		j := aJob(r)
		checkJob(t, s, j)
		want, why := judge(j)
		switch {
		case why == notJudged:
		case why == "" && want.request.Cards > 1 && want.request.Share%100 != 0:
			outcomes["taken, parts of several cards"]++
		case why == "":
			outcomes["taken"]++
		case strings.HasPrefix(why, "--"):
			option, _, _ := strings.Cut(why, ":")
			outcomes["refused, the same line: "+strings.TrimSuffix(option, "=shard")]++
		default:
			outcomes["refused"]++
		}
	}
	for what, least := range map[string]int{
		"taken": 1000, "taken, parts of several cards": 100, "refused, the same line: --vgpu-cards": 100,
		"refused, the same line: --gres=vgpu": 1000, "refused, the same line: --vgpu-mode": 100, "refused, the same line: --comment": 100,
	} {
		if outcomes[what] < least {
			t.Errorf("%s: %d jobs, want %d: %v", what, outcomes[what], least, outcomes)
		}
	}
}
