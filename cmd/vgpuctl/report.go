// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func (s *settings) reportCommand() *cobra.Command {
	var asText bool
	var output string
	cmd := &cobra.Command{
		Use:   "report JOB",
		Short: "Write what a job asked for, got and did, and what would have fitted, as an HTML file",
		Example: "  vgpuctl report 4217\n" +
			"  vgpuctl report 4217 --text",
		Args: cobra.ExactArgs(1),

		ValidArgsFunction: s.completeJobs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := jobOf(args[0])
			switch {
			case err != nil:
				return err
			case asText && output != "":
				return errors.New("--text goes to the standard output: want no --output beside it")
			}
			reports, err := s.reports(cmd.Context(), job, cmd.ErrOrStderr())
			if err == nil && (s.json || asText) {
				err = s.print(cmd.OutOrStdout(), reports, func(w io.Writer) error { return writeReports(w, s.paint(w), reports) })
			} else if err == nil {
				err = saveReport(cmd.OutOrStdout(), output, job, reports)
			}
			return failed(err)
		},
	}
	cmd.Flags().BoolVar(&asText, "text", false, "print it as text")
	cmd.Flags().StringVarP(&output, "output", "o", "", "`FILE` to write, - for the standard output (default vgpu-report-JOB.html)")
	return cmd
}

// reports are those of each node of the job: of this one, or where users log in, of all on which
// it runs.
func (s *settings) reports(ctx context.Context, job uint32, problems io.Writer) ([]wire.Report, error) {
	if !s.isAfar() {
		rep, err := s.ask(ctx, wire.Request{Op: wire.OpReport, JobID: job})
		if err != nil {
			return nil, err
		}
		return []wire.Report{*rep.Report}, nil
	}
	own, err := s.ownJobs(ctx, job)
	if err != nil {
		return nil, err
	}
	answers := askNodes[[]wire.Report](ctx, s, own, "report", fmt.Sprint(job))
	if len(answers) == 0 {
		return nil, fmt.Errorf("job %[1]d: none of yours that runs with a share. A node keeps the report of one that has ended; "+
			"ask it in a small job: srun --nodelist=NODE --time=1 vgpuctl report %[1]d --text (sacct -j %[1]d -o NodeList names the node)", job)
	}
	var reports []wire.Report
	for _, a := range answers {
		reports = append(reports, a.got...)
		if a.err != nil {
			err = errors.Join(err, fmt.Errorf("node %s: %w", a.node, a.err))
		}
	}
	if len(reports) > 0 && err != nil { // the other nodes of the job have answered
		fmt.Fprintf(problems, "vgpuctl: %v\n", err)
		err = nil
	}
	return reports, err
}

// saveReport writes the page, and says where.
func saveReport(out io.Writer, path string, job uint32, reports []wire.Report) error {
	if path == "-" {
		return writePage(out, reports)
	}
	if path == "" {
		path = fmt.Sprintf("vgpu-report-%d.html", job)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = errors.Join(writePage(f, reports), f.Close())
	if err == nil {
		_, err = fmt.Fprintln(out, path)
	}
	return err
}

// fact is a line of a report.
type fact struct{ Name, Value string }

// cardReport is what a report says of one card.
type cardReport struct {
	Title string
	Facts []fact
	// Parts of what it may have, 0 to 1, for bars; below 0: not known.
	Memory, Got, Share float64
	Limits             []bar
}

// bar is a part of the time in which the job had work.
type bar struct {
	Word, Text string
	Part       float64
}

// jobReport is a report as people read it.
type jobReport struct {
	Title string
	Facts []fact
	Cards []cardReport
	Notes []string // what the job was told
	// Advice is what to ask for the next time, and why.
	Advice []string
	Next   string // the options of it; "" where nothing is known
}

// read makes sentences of numbers.
func readReport(r wire.Report) jobReport {
	j := r.Job
	wall := r.Until.Sub(j.Created)
	state := "runs"
	if r.Ended != nil {
		state = "ended " + r.Ended.Format(time.DateTime)
	}
	v := jobReport{
		Title: fmt.Sprintf("Job %d of %s on %s", j.JobID, j.Who(), r.Node),
		Facts: []fact{
			{"Since", j.Created.Format(time.DateTime) + ", " + wall.Round(time.Second).String()},
			{"State", state},
			{"Mode", top.Mode(j) + ", priority " + j.Priority},
		},
		Notes: j.Messages,
	}
	for i, c := range j.Cards {
		more := wire.ReportCard{}
		if i < len(r.Cards) {
			more = r.Cards[i]
		}
		v.Cards = append(v.Cards, readCard(c, more, wall))
	}
	v.Advice, v.Next = advise(r)
	return v
}

func readCard(c wire.JobCard, more wire.ReportCard, wall time.Duration) cardReport {
	v := cardReport{Title: fmt.Sprintf("Card %d", c.Index), Memory: -1, Got: -1, Share: float64(c.Cores) / 100}
	add := func(name, value string) { v.Facts = append(v.Facts, fact{name, value}) }
	asked := top.Share(c.AskedShare, c.AskedCores) + " of the card"
	if c.AskedBytes != nil {
		asked += ", " + size(*c.AskedBytes)
	}
	add("Requested", asked)
	add("Share", top.Share(c.Share, c.Cores)+", "+size(c.LimitBytes)+" of memory")
	if more.PeakBytes != 0 && c.LimitBytes != 0 {
		v.Memory = float64(more.PeakBytes) / float64(c.LimitBytes)
		add("Memory, peak", fmt.Sprintf("%s, %s of the limit", size(more.PeakBytes), ratio(v.Memory)))
	}
	if c.Refused != nil && *c.Refused > 0 {
		add("Allocations refused", fmt.Sprint(*c.Refused))
	}
	if c.GPUSeconds != nil {
		v.Got = got(c, wall)
		add("Got", fmt.Sprintf("%s of GPU time, %s of the card over its whole time", top.Seconds(*c.GPUSeconds), ratio(v.Got)))
	}
	if c.ThrottledSeconds != nil && c.LaunchesThrottled != nil {
		add("Throttled", fmt.Sprintf("%d launches, %s in sum of its threads", *c.LaunchesThrottled, top.Seconds(*c.ThrottledSeconds)))
	}
	sum := limitedSum(more)
	for _, word := range []string{"limit", "program", "neighbors", "card"} {
		if d := more.LimitedBySeconds[word]; d > 0 {
			v.Limits = append(v.Limits, bar{word, top.Seconds(d), d / sum})
		}
	}
	return v
}

// got is the part of the card that a job had over its whole time.
func got(c wire.JobCard, wall time.Duration) float64 {
	if c.GPUSeconds == nil || wall <= 0 {
		return 0
	}
	return min(*c.GPUSeconds/wall.Seconds(), 1)
}

func limitedSum(c wire.ReportCard) (sum float64) {
	for _, d := range c.LimitedBySeconds {
		sum += d
	}
	return sum
}

const (
	// enoughSeen is how long a job must have had work for a word about its compute.
	enoughSeen = 30.0
	// mostly is the part of that time from which one reason is the reason.
	mostly = 0.5
	// spareMemory and spareShare are left above what was used.
	spareMemory, spareShare = 1.1, 1.25
	// nearLimit is a peak that was probably cut by the limit.
	nearLimit = 0.97
)

// advise says what would have fitted, by the card that had the most need.
func advise(r wire.Report) (advice []string, next string) {
	var share uint32
	var memory uint64
	wall := r.Until.Sub(r.Job.Created)
	say := func(format string, args ...any) { advice = append(advice, fmt.Sprintf(format, args...)) }
	for i, c := range r.Job.Cards {
		if i >= len(r.Cards) {
			break
		}
		more := r.Cards[i]
		share, memory = max(share, c.AskedShare), max(memory, c.LimitBytes)
		if i > 0 {
			continue // several cards are alike; the request is one
		}
		memory = adviseMemory(c, more, say)
		share = adviseShare(c, more, got(c, wall), r.Job.Mode == string(gpu.Hard), say)
	}
	if len(advice) == 0 {
		return []string{"Too little was seen to say what would fit."}, ""
	}
	return advice, fmt.Sprintf("--gres=vgpu:%d --vgpu-mem=%s", share, gpu.Bytes(memory).Compact())
}

func adviseMemory(c wire.JobCard, more wire.ReportCard, say func(string, ...any)) uint64 {
	refused := c.Refused != nil && *c.Refused > 0
	fits := roundMemory(uint64(float64(more.PeakBytes) * spareMemory))
	switch {
	case refused || float64(more.PeakBytes) > nearLimit*float64(c.LimitBytes):
		more := roundMemory(c.LimitBytes + c.LimitBytes/4)
		say("Memory reached its limit, %s: ask for more, if the program did not make room by itself.", size(c.LimitBytes))
		return more
	case more.PeakBytes == 0:
		return c.LimitBytes
	case fits < c.LimitBytes*4/5:
		say("Of %s it used %s at the most: %s would have fitted.", size(c.LimitBytes), size(more.PeakBytes), size(fits))
		return fits
	}
	say("Memory fits: %s of %s at the most.", size(more.PeakBytes), size(c.LimitBytes))
	return c.LimitBytes
}

func adviseShare(c wire.JobCard, more wire.ReportCard, got float64, hard bool, say func(string, ...any)) uint32 {
	sum := limitedSum(more)
	if sum < enoughSeen {
		return c.AskedShare
	}
	fits := uint32(max(5, 5*math.Ceil(100*got*spareShare/5)))
	switch {
	case more.LimitedBySeconds["limit"] > mostly*sum:
		say("While it had work, its share held it back for %s of the time: a larger share makes it faster.", ratio(more.LimitedBySeconds["limit"]/sum))
		if hard {
			say("With --vgpu-mode=soft it has what others leave idle, too.")
		}
		return min(100, (c.AskedShare*3/2+4)/5*5)
	case more.LimitedBySeconds["neighbors"] > mostly*sum:
		say("It waited for the turns of its neighbors for %s of the time: larger batches or --vgpu-priority=high help.", ratio(more.LimitedBySeconds["neighbors"]/sum))
	case more.LimitedBySeconds["program"] > mostly*sum && fits < c.AskedShare:
		say("Its own program (data, CPU, waits for results) held it back for %s of the time: a share of %d%% would have done.",
			ratio(more.LimitedBySeconds["program"]/sum), fits)
		return fits
	default:
		say("The share fits.")
	}
	return c.AskedShare
}

// roundMemory rounds up to GiB, small ones to 256 MiB.
func roundMemory(bytes uint64) uint64 {
	step := uint64(gpu.GiB)
	if bytes < 2*step {
		step /= 4
	}
	return max(1, (bytes+step-1)/step) * step
}

func writeReports(w io.Writer, p paint, reports []wire.Report) error {
	for i, r := range reports {
		if i > 0 {
			fmt.Fprintln(w)
		}
		v := readReport(r)
		fmt.Fprintln(w, p.code(bold, v.Title))
		rows := [][]string{}
		for _, f := range v.Facts {
			rows = append(rows, []string{"", f.Name, f.Value})
		}
		for _, c := range v.Cards {
			rows = append(rows, []string{c.Title})
			for _, f := range c.Facts {
				rows = append(rows, []string{"", f.Name, f.Value})
			}
			for _, b := range c.Limits {
				rows = append(rows, []string{"", "Limited by " + b.Word, b.Text + ", " + ratio(b.Part) + " of the time with work"})
			}
		}
		if err := table(w, false, rows); err != nil {
			return err
		}
		for _, note := range v.Notes {
			fmt.Fprintln(w, "It was told: "+note)
		}
		fmt.Fprintln(w)
		for _, line := range v.Advice {
			fmt.Fprintln(w, line)
		}
		if v.Next != "" {
			fmt.Fprintln(w, "Next time: "+strings.TrimSpace(v.Next))
		}
	}
	return nil
}
