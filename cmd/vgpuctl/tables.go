// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
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
		fmt.Fprintf(w, "%s %s\n", p.code(red, "problem:"), problem)
	}
	rows := [][]string{{"CARD", "TYPE", "SHARE", "BUSY", "MEMORY", "JOBS", "STATE", "UUID"}}
	for _, c := range st.Cards {
		health := p.code(green, "ok")
		if !c.Healthy {
			health = p.code(red, "out") // cordoned, sick, or in MIG mode
		}
		jobs := fmt.Sprint(c.Jobs)
		if c.Throttled > 0 {
			jobs += p.code(yellow, fmt.Sprintf(", %d throttled", c.Throttled))
		}
		rows = append(rows, []string{
			fmt.Sprint(c.Index), c.Type, top.Share(c.Share, c.Cores), top.Percent(c.ComputePercent),
			top.Memory(&c.GrantedBytes, c.MemoryBytes), jobs, health, c.UUID,
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

// jobColumns are the columns of a table of jobs.
var jobColumns = []string{"JOB", "USER", "CARD", "SHARE", "GOT", "THROTTLED", "LIMITED BY", "MEMORY", "MODE", "GPU TIME", "PROCS", "SLICE"}

// jobTable writes one row for each card of a job. On several nodes it names the node and not the
// user, who is always the same.
func jobTable(w io.Writer, p paint, rows []top.Row) error {
	titles := slices.Clone(jobColumns)
	if slices.ContainsFunc(rows, func(r top.Row) bool { return r.Node != "" }) {
		titles[1] = "NODE"
	}
	texts := [][]string{titles}
	for _, r := range rows {
		texts = append(texts, r.Cells(titles...))
	}
	return table(w, p, texts, "SLICE", "GPU TIME", "PROCS", "LIMITED BY", "THROTTLED")
}

func writeJobs(w io.Writer, p paint, jobs []placed) error {
	var rows []top.Row
	for _, j := range jobs {
		rows = append(rows, top.Rows(j.Node, []wire.Job{j.Job})...)
	}
	if err := jobTable(w, p, rows); err != nil {
		return err
	}
	writeUnanswered(w, jobs)
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

// writeUnanswered prints why nodes do not answer, once for each node.
func writeUnanswered(w io.Writer, jobs []placed) {
	said := ""
	for _, j := range jobs {
		if j.State == unanswered && said != j.Node+j.Reason {
			said = j.Node + j.Reason
			fmt.Fprintf(w, "\nnode %s: %s\n", j.Node, j.Reason)
		}
	}
}

func percent(n uint32) string { return fmt.Sprintf("%d%%", n) }

func size(n uint64) string { return gpu.Bytes(n).String() }

// isScaled reports whether the site grants more memory than the card has. An older gresd does not
// report the physical memory.
func isScaled(all, physical uint64) bool { return physical != 0 && physical < all }
