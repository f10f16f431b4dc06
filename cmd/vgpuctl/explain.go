// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func (s *settings) explainCommand() *cobra.Command {
	req := wire.Request{Op: wire.OpExplain}
	cmd := &cobra.Command{
		Use:   "explain {JOB | --gres=vgpu:N [--vgpu-OPTION=VALUE ...]}",
		Short: "Say of every card why a job took it or not, or what a request would find now",
		Example: "  vgpuctl explain 4217\n" +
			"  vgpuctl explain --gres=vgpu:30 --vgpu-mem=20G",
		Args: cobra.MaximumNArgs(1),

		ValidArgsFunction: s.completeJobs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (req.GRES != "") {
				return errors.New("want a job or a request, for example: vgpuctl explain 4217, or vgpuctl explain --gres=vgpu:30")
			}
			if len(args) == 1 {
				job, err := jobOf(args[0])
				if err != nil {
					return err
				}
				if req.Options != (wire.Options{}) {
					return fmt.Errorf("job %d: its own options count: want no --vgpu option beside it", job)
				}
				req.JobID = job
			}
			return s.run(func(cmd *cobra.Command, _ []string) error { return s.explain(cmd, req) })(cmd, args)
		},
	}
	o := &req.Options
	for _, f := range []struct {
		value       *string
		name, usage string
		words       []string
	}{
		{&req.GRES, "gres", "`vgpu[:TYPE]:N`, as for sbatch", []string{"vgpu:10", "vgpu:30", "vgpu:50", "vgpu:100"}},
		{&o.Mem, "vgpu-mem", "memory per card: `SIZE` or PCT%", nil},
		{&o.Cores, "vgpu-cores", "compute share `PCT` per card", nil},
		{&o.Cards, "vgpu-cards", "`COUNT` of cards to split the share over", nil},
		{&o.Mode, "vgpu-mode", "`MODE`: hard, soft[:CEILING] or off", []string{"hard", "soft", "off"}},
		{&o.Priority, "vgpu-priority", "`WORD`: high, normal or low", []string{"high", "normal", "low"}},
		{&o.Policy, "vgpu-policy", "`WORD`: binpack, spread, topology or exclusive", []string{"binpack", "spread", "topology", "exclusive"}},
		{&o.Engine, "vgpu-engine", "`WORD`: time, mps, concurrent or auto", []string{"time", "mps", "concurrent", "auto"}},
	} {
		cmd.Flags().StringVar(f.value, f.name, "", f.usage)
		complete(cmd, f.name, f.words...)
	}
	return cmd
}

func (s *settings) explain(cmd *cobra.Command, req wire.Request) error {
	switch {
	case s.isAfar() && req.JobID == 0:
		return errors.New("no gresd here: want a job of yours, or ask a node with cards; vgpuctl nodes shows where room is")
	case s.isAfar():
		return s.explainAfar(cmd.Context(), cmd.OutOrStdout(), req.JobID)
	}
	rep, err := s.ask(cmd.Context(), req)
	if err != nil {
		return err
	}
	return s.print(cmd.OutOrStdout(), rep.Explain, func(w io.Writer) error { return writeExplanation(w, *rep.Explain) })
}

func writeExplanation(w io.Writer, e wire.Explanation) error {
	who := "a request now"
	if e.JobID != 0 {
		who = fmt.Sprintf("job %d", e.JobID)
	}
	if e.Decided != nil {
		who += ", decided " + e.Decided.Format(time.RFC3339)
	}
	fmt.Fprintf(w, "%s: %s\n%s\n", who, e.Request, verdict(e))
	if e.EngineWhy != "" {
		fmt.Fprintf(w, "engine %s: %s\n", e.Engine, e.EngineWhy)
	}
	if e.Lost {
		fmt.Fprintln(w, "gresd was started anew since: of the cards that were not taken, their room now is shown")
	}
	if len(e.Cards) == 0 {
		return nil
	}
	rows, legend := [][]string{{"CARD", "TYPE", "FREE", "WANTED", "JOBS", "REASON"}}, [][]string{}
	for _, c := range e.Cards {
		wanted := "-"
		if c.WantShare != 0 {
			wanted = amount(c.WantShare, c.WantBytes)
		}
		rows = append(rows, []string{
			fmt.Sprint(c.Index), c.Type, amount(c.FreeShare, c.FreeBytes), wanted, jobsOn(c), c.Reason,
		})
		if !slices.ContainsFunc(legend, func(row []string) bool { return row[0] == c.Reason }) {
			legend = append(legend, []string{c.Reason, c.Why})
		}
	}
	fmt.Fprintln(w)
	if err := table(w, false, rows, "TYPE", "JOBS"); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return table(w, false, legend)
}

// verdict is what became of the request as a whole.
func verdict(e wire.Explanation) string {
	cards := func(reason string) (text string) {
		var indexes []string
		for _, c := range e.Cards {
			if c.Reason == reason {
				indexes = append(indexes, fmt.Sprint(c.Index))
			}
		}
		if len(indexes) > 0 {
			text = strings.Repeat("s", min(len(indexes)-1, 1)) + " " + strings.Join(indexes, ", ")
		}
		return text
	}
	taken, fit := cards("taken"), cards("fits")
	switch {
	case e.Message != "":
		return "not placed: " + e.Message
	case taken != "" && e.JobID == 0:
		return "would get card" + taken
	case taken != "":
		return "got card" + taken
	case fit != "":
		return "slurmctld can choose card" + fit
	}
	return "not placed"
}

func amount(share uint32, bytes uint64) string { return percent(share) + " " + size(bytes) }

// jobsOn names at most three jobs; --json has all.
func jobsOn(c wire.CardVerdict) string {
	var ids []string
	for _, id := range slices.Sorted(slices.Values(c.JobIDs)) {
		ids = append(ids, fmt.Sprint(id))
	}
	if len(ids) > 3 {
		ids = append(ids[:3], "…")
	}
	return strings.TrimSuffix(fmt.Sprintf("%d: %s", c.Jobs, strings.Join(ids, ",")), ": ")
}
