// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func (s *settings) psCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ps",
		Short: "Show the processes of jobs on cards: all for root, else your own",
		Args:  cobra.NoArgs,
		RunE: s.run(func(cmd *cobra.Command, _ []string) error {
			return s.showJobs(cmd, "ps", true, writeProcesses)
		}),
	}
}

// writeProcesses shows a process once for each card that it uses. nodes are those of the jobs,
// where there are several.
func writeProcesses(w io.Writer, p paint, jobs []wire.Job, nodes ...string) error {
	rows := [][]string{{"JOB", "USER", "CARD", "PID", "PID IN JOB", "MEMORY", "GPU TIME", "UTILIZATION"}}
	at := nodeColumn(rows, nodes)
	unwatched := false
	for i, j := range jobs {
		for _, c := range j.Cards {
			for _, proc := range c.ByProcess {
				pid := "?"
				if proc.PID != 0 {
					pid = fmt.Sprint(proc.PID)
				}
				jobPID := fmt.Sprint(proc.JobPID)
				if proc.Unwatched {
					jobPID += "!"
					unwatched = true
				}
				rows = append(rows, at(i, []string{
					fmt.Sprint(j.JobID), j.Who(), fmt.Sprint(c.Index), pid, jobPID,
					size(proc.UsedBytes), seconds(proc.GPUSeconds), top.Known(proc.Utilization, ratio),
				}))
			}
		}
	}
	if err := table(w, p, rows, "PID IN JOB", "UTILIZATION"); err != nil {
		return err
	}
	if err := writeUnanswered(w, jobs, nodes); err != nil || !unwatched {
		return err
	}
	_, err := fmt.Fprintln(w, "\n! no thread of libvgpu could be started: held at its share at all times")
	return err
}

// ratio writes 0 to 1 as a percentage.
func ratio(r float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*r), ".0") + "%" }
