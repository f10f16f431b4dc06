// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func writeStatus(w io.Writer, p paint, st wire.Status) error {
	state := "ready"
	if !st.Ready {
		state = "starting"
	}
	node := cmp.Or(st.Node, "a node without a Prolog yet")
	fmt.Fprintf(w, "gresd %s on %s: %s, up %s, cards chosen by %s, jobs %d\n", st.Version, node, state,
		time.Since(st.Started).Round(time.Second), st.Placement, st.Jobs)
	for _, problem := range st.Problems {
		fmt.Fprintf(w, "%s %s\n", p.red("problem:"), problem)
	}
	rows := [][]string{{"CARD", "TYPE", "SHARE", "BUSY", "GRANTED", "JOBS", "STATE", "UUID"}}
	for _, c := range st.Cards {
		health := p.green("ok")
		if !c.Healthy {
			health = p.red("out") // cordoned, sick, or in MIG mode
		}
		rows = append(rows, []string{
			fmt.Sprint(c.Index), c.Type, shareOf(c.Share, c.Cores), top.Percent(c.ComputePercent),
			ofSize(size(c.GrantedBytes), size(c.MemoryBytes)), jobsAndWaiting(p, c), health, c.UUID,
		})
	}
	fmt.Fprintln(w)
	if err := table(w, p, rows, "UUID", "TYPE", "BUSY"); err != nil {
		return err
	}
	for _, c := range st.Cards {
		if !c.Healthy && c.Why != "" {
			fmt.Fprintf(w, "\ncard %d is out: %s\n", c.Index, c.Why)
		}
		if c.Slices == string(probe.Ignored) {
			fmt.Fprintf(w, "\ncard %d does not obey time slices: its jobs take turns\n", c.Index)
		}
		if isScaled(c.MemoryBytes, c.PhysicalBytes) {
			fmt.Fprintf(w, "\ncard %d: %s are shared out, of which the card has %s\n", c.Index, size(c.MemoryBytes), size(c.PhysicalBytes))
		}
	}
	return nil
}

// writeJobs shows a job once for each card. nodes are those of the jobs, where there are several.
func writeJobs(w io.Writer, p paint, jobs []wire.Job, nodes ...string) error {
	rows := [][]string{{"JOB", "USER", "CARD", "SHARE", "GOT", "WAIT", "BOUND", "MEMORY", "MODE", "GPU TIME", "PROCS", "SLICE"}}
	at := nodeColumn(rows, nodes)
	for i, j := range jobs {
		first := []string{fmt.Sprint(j.JobID), j.Who()}
		if len(j.Cards) == 0 {
			rows = append(rows, at(i, append(first, "-", "-", "-", "-", "-", "-", j.State, "-", "-", "-")))
		}
		for _, c := range j.Cards {
			rows = append(rows, at(i, append(first,
				fmt.Sprint(c.Index), shareOf(c.Share, c.Cores), top.Percent(c.ComputePercent), top.Percent(c.WaitPercent), cmp.Or(c.Bound, "-"),
				ofSize(top.Known(c.UsedBytes, size), size(c.LimitBytes)), top.Mode(j),
				top.Known(c.GPUSeconds, seconds), top.Known(c.Processes, func(n int) string { return fmt.Sprint(n) }), slice(c))))
			first = []string{"", ""}
		}
	}
	if err := table(w, p, rows, "SLICE", "GPU TIME", "PROCS", "BOUND", "WAIT"); err != nil {
		return err
	}
	if err := writeUnanswered(w, jobs, nodes); err != nil {
		return err
	}
	for _, j := range jobs {
		for _, c := range j.Cards {
			if isScaled(c.LimitBytes, c.PhysicalBytes) {
				fmt.Fprintf(w, "\njob %d: of its limit %s, card %d has %s\n", j.JobID, size(c.LimitBytes), c.Index, size(c.PhysicalBytes))
			}
		}
		if j.Reason != "" && j.State != unanswered {
			fmt.Fprintf(w, "\njob %d: %s\n", j.JobID, j.Reason)
		}
		for _, message := range j.Messages {
			fmt.Fprintf(w, "\njob %d: %s\n", j.JobID, message)
		}
	}
	return nil
}

// nodeColumn makes the column USER of the header one of nodes, for the user is always the same
// then, and returns what puts the i-th node into a row; without nodes both do nothing.
func nodeColumn(rows [][]string, nodes []string) func(i int, row []string) []string {
	if len(nodes) == 0 {
		return func(_ int, row []string) []string { return row }
	}
	rows[0][1] = "NODE"
	return func(i int, row []string) []string {
		if row[0] != "" { // else it is one more card of the same job
			row[1] = nodes[i]
		}
		return row
	}
}

// writeUnanswered says why nodes do not say what their jobs do, once for each.
func writeUnanswered(w io.Writer, jobs []wire.Job, nodes []string) error {
	said := ""
	for i, j := range jobs {
		if j.State != unanswered || said == nodes[i]+j.Reason {
			continue
		}
		said = nodes[i] + j.Reason
		if _, err := fmt.Fprintf(w, "\nnode %s: %s\n", nodes[i], j.Reason); err != nil {
			return err
		}
	}
	return nil
}

// jobsAndWaiting is "3", or "3, 1 waits" where launches of one are held back.
func jobsAndWaiting(p paint, c wire.Card) string {
	if c.Waiting == 0 {
		return fmt.Sprint(c.Jobs)
	}
	return fmt.Sprintf("%d, ", c.Jobs) + p.yellow(fmt.Sprintf("%d waits", c.Waiting))
}

// shareOf is the share of the card, and of its compute where that is another one.
func shareOf(share, cores uint32) string {
	if share == cores {
		return percent(share)
	}
	return percent(share) + "/" + percent(cores)
}

// ofSize is "3/8 GiB" or "512 MiB/8 GiB".
func ofSize(part, all string) string {
	number, unit, _ := strings.Cut(part, " ")
	if _, other, _ := strings.Cut(all, " "); unit == other {
		return number + "/" + all
	}
	return part + "/" + all
}

func percent(n uint32) string { return fmt.Sprintf("%d%%", n) }

func size(n uint64) string { return gpu.Bytes(n).String() }

// isScaled says whether the site shares out more memory than the card has. An
// older gresd does not tell what that is.
func isScaled(all, physical uint64) bool { return physical != 0 && physical < all }

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}

func slice(c wire.JobCard) string {
	text := "driver's"
	if c.SliceUS != 0 {
		text = fmt.Sprintf("%.3g ms", float64(c.SliceUS)/1000)
	}
	if c.Gate {
		text += " gate"
	}
	return text
}
