// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
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
	out, most := cmd.OutOrStdout(), math.MaxInt
	live := !once && !s.json
	if live {
		most = mostFeeds
	}
	if live && !isTerminal(out) {
		return errors.New("top: not a terminal: want vgpuctl top --once, or --json")
	}
	ask, done := s.source(most)
	defer done()
	if live {
		return top.Run(cmd.Context(), v, top.Options{Every: every, Ask: ask, Color: bool(s.paint(out))})
	}
	samples, err := ask(cmd.Context())
	if err != nil {
		return err
	}
	v.Add(samples...)
	var view any = samples
	if !v.Nodes {
		view = samples[0]
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

// source takes samples of this node, or where users log in, of at most so many nodes with jobs of the user.
func (s *settings) source(most int) (ask func(context.Context) ([]top.Sample, error), done func()) {
	if s.isAfar() {
		all := &feeds{s: s, client: s.slurm("", stepLimit), most: most}
		return all.samples, all.close
	}
	return func(ctx context.Context) ([]top.Sample, error) {
		sample, err := s.sample(ctx)
		return []top.Sample{sample}, err
	}, func() {}
}

// isUTF8 says whether the terminal shows more than ASCII.
func isUTF8() bool {
	words := strings.ToUpper(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return strings.Contains(words, "UTF-8") || strings.Contains(words, "UTF8")
}
