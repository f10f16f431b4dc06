// SPDX-License-Identifier: Apache-2.0

// Package scale counts what slurm-vgpu asks of a real slurmctld that has many nodes and a long
// queue, and holds it against what Slurm itself sends.
package scale

import (
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rpcs are how many messages of each type slurmctld has received.
type rpcs map[string]int

var rpcLine = regexp.MustCompile(`(?m)^\s+([A-Z_]+)\s*\(\s*\d+\)\s*count:(\d+)`)

// received asks slurmctld, by sdiag, whose own messages are left out.
func received() (rpcs, error) {
	out, err := exec.Command("sdiag").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("sdiag: %w: %s", err, out)
	}
	return parseRPCs(string(out)), nil
}

func parseRPCs(text string) rpcs {
	_, text, _ = strings.Cut(text, "by message type")
	text, _, _ = strings.Cut(text, "by user")
	found := rpcs{}
	for _, m := range rpcLine.FindAllStringSubmatch(text, -1) {
		if n, err := strconv.Atoi(m[2]); err == nil && m[1] != "REQUEST_STATS_INFO" {
			found[m[1]] = n
		}
	}
	return found
}

// since is what came after an earlier look.
func (r rpcs) since(before rpcs) rpcs {
	more := rpcs{}
	for name, n := range r {
		if n > before[name] {
			more[name] = n - before[name]
		}
	}
	return more
}

// asked are the types of message by which commands ask and change: in a window in which nobody
// else runs commands, they are of gresd.
var asked = regexp.MustCompile(`^REQUEST_(JOB_|NODE_INFO|BUILD_INFO|FED_INFO|PARTITION_INFO|UPDATE_|CANCEL_JOB|KILL_JOB|ASSOC_|RESERVATION_INFO|CTLD_)`)

// whole are those whose answer grows with the cluster or its queue.
var whole = regexp.MustCompile(`^REQUEST_(JOB_INFO|JOB_USER_INFO|NODE_INFO)$`)

func (r rpcs) sum(of *regexp.Regexp, matching bool) (n int) {
	for name, count := range r {
		if of.MatchString(name) == matching {
			n += count
		}
	}
	return n
}

func (r rpcs) ours() int   { return r.sum(asked, true) }
func (r rpcs) slurms() int { return r.sum(asked, false) }
func (r rpcs) whole() int  { return r.sum(whole, true) }

func (r rpcs) String() string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		words = append(words, fmt.Sprintf("%s %d", name, r[name]))
	}
	return strings.Join(words, ", ")
}
