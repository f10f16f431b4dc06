// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
)

// writeProcesses writes one row for each card that a process uses.
func writeProcesses(w io.Writer, p paint, jobs []placed) error {
	rows := [][]string{{"JOB", "USER", "CARD", "PID", "PID IN JOB", "MEMORY", "GPU TIME", "UTILIZATION"}}
	unwatched := ""
	for _, j := range jobs {
		who := j.Who()
		if j.Node != "" { // the user is always the same
			who, rows[0][1] = j.Node, "NODE"
		}
		for _, c := range j.Cards {
			for _, proc := range c.ByProcess {
				pid, jobPID := fmt.Sprint(proc.PID), fmt.Sprint(proc.JobPID)
				if proc.PID == 0 {
					pid = "?" // it was not found on the host
				}
				if proc.Unwatched {
					jobPID += "!"
					unwatched = "\n! no thread of libvgpu could be started: held at its share at all times\n"
				}
				rows = append(rows, []string{
					fmt.Sprint(j.JobID), who, fmt.Sprint(c.Index), pid, jobPID,
					size(proc.UsedBytes), top.Seconds(proc.GPUSeconds), top.Known(proc.Utilization, ratio),
				})
			}
		}
	}
	if err := table(w, p, rows, "PID IN JOB", "UTILIZATION"); err != nil {
		return err
	}
	writeUnanswered(w, jobs)
	_, err := io.WriteString(w, unwatched)
	return err
}

// ratio writes 0 to 1 as a percentage.
func ratio(r float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*r), ".0") + "%" }
