// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func (s *settings) topCommand() *cobra.Command {
	var once, onRequest bool
	var order string
	every := 2 * time.Second
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show live what the jobs with a share do: compute, memory, waiting",
		Args:  cobra.NoArgs,

		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !slices.Contains(top.Orders, order):
				return fmt.Errorf("--sort: %q: want %s", order, strings.Join(top.Orders, ", "))
			case every < 200*time.Millisecond:
				return fmt.Errorf("--interval: %s: want at least 200ms", every)
			}
			if onRequest {
				return failed(s.answerEach(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout()))
			}
			return failed(s.top(cmd, &top.View{Order: order, ASCII: !isUTF8(), Nodes: s.isAfar()}, every, once))
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&once, "once", false, "print a table once, for scripts")
	flags.BoolVar(&onRequest, "on-request", false, "print a sample for each line of the standard input")
	_ = flags.MarkHidden("on-request") // it is for vgpuctl on another host
	flags.StringVar(&order, "sort", top.Orders[0], "`WORD`: "+strings.Join(top.Orders, ", "))
	flags.DurationVar(&every, "interval", every, "`TIME` between two looks")
	complete(cmd, "sort", top.Orders...)
	complete(cmd, "interval", "1s", "2s", "5s", "10s")
	return cmd
}

func (s *settings) top(cmd *cobra.Command, v *top.View, every time.Duration, once bool) error {
	out := cmd.OutOrStdout()
	if !once && !s.json {
		if !isTerminal(out) {
			return errors.New("top: not a terminal: want vgpuctl top --once, or --json")
		}
		ask := func(ctx context.Context) ([]top.Sample, error) { return one(s.sample(ctx)) }
		if v.Nodes {
			all := s.feeds()
			defer all.close()
			ask = all.samples
		}
		return top.Run(cmd.Context(), v, top.Options{Every: every, Ask: ask, Color: bool(s.paint(out))})
	}
	var view any
	if v.Nodes {
		own, err := s.ownJobs(cmd.Context(), 0)
		if err != nil {
			return err
		}
		samples := []top.Sample{}
		for _, a := range askNodes[top.Sample](cmd.Context(), s, own, "top") {
			if a.err != nil {
				a.got = noSample(a.node, a.err.Error())
			}
			a.got.Status.Node = a.node
			samples = append(samples, a.got)
		}
		v.Add(samples...)
		view = samples
	} else {
		sample, err := s.sample(cmd.Context())
		if err != nil {
			return err
		}
		v.Add(sample)
		view = sample
	}
	return s.print(out, view, func(w io.Writer) error {
		rows := v.Rows()
		for i := range rows {
			if !v.Nodes {
				rows[i].Node = ""
			}
		}
		err := jobTable(w, s.paint(w), rows)
		for _, silent := range v.Silent() {
			fmt.Fprintf(w, "\nnode %s: %s\n", silent.Status.Node, silent.Status.Problems[0])
		}
		return err
	})
}

func (s *settings) sample(ctx context.Context) (top.Sample, error) {
	status, err := s.ask(ctx, wire.Request{Op: wire.OpStatus})
	if err != nil {
		return top.Sample{}, err
	}
	jobs, err := s.ask(ctx, wire.Request{Op: wire.OpJobs})
	return top.Sample{At: time.Now(), Status: *status.Status, Jobs: append([]wire.Job{}, jobs.Jobs...)}, err
}

func one(sample top.Sample, err error) ([]top.Sample, error) { return []top.Sample{sample}, err }

// isUTF8 says whether the terminal shows more than ASCII.
func isUTF8() bool {
	words := strings.ToUpper(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return strings.Contains(words, "UTF-8") || strings.Contains(words, "UTF8")
}
