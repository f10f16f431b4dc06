// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
			by, ok := top.ParseOrder(order)
			switch {
			case !ok:
				return fmt.Errorf("--sort: %q: want %s", order, strings.Join(top.Orders(), ", "))
			case every < 200*time.Millisecond:
				return fmt.Errorf("--interval: %s: want at least 200ms", every)
			}
			if onRequest {
				return failed(s.answerEach(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout()))
			}
			return failed(s.top(cmd, &top.View{Order: by, ASCII: !isUTF8(), Nodes: s.isAfar()}, every, once))
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&once, "once", false, "print a table once, for scripts")
	flags.BoolVar(&onRequest, "on-request", false, "print a sample for each line of the standard input")
	_ = flags.MarkHidden("on-request") // it is for vgpuctl on another host
	flags.StringVar(&order, "sort", top.ByCompute.String(), "`WORD`: "+strings.Join(top.Orders(), ", "))
	flags.DurationVar(&every, "interval", every, "`TIME` between two looks")
	complete(cmd, "sort", top.Orders()...)
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
	if v.Nodes {
		samples, err := s.afarSamples(cmd.Context())
		if err != nil {
			return err
		}
		v.Add(samples...)
		return s.print(out, samples, func(w io.Writer) error { return table(w, s.paint(w), v.Table()) })
	}
	sample, err := s.sample(cmd.Context())
	if err != nil {
		return err
	}
	v.Add(sample)
	return s.print(out, sample, func(w io.Writer) error { return table(w, s.paint(w), v.Table()) })
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

// afarSamples asks every node with jobs of the user once.
func (s *settings) afarSamples(ctx context.Context) ([]top.Sample, error) {
	own, err := s.ownJobs(ctx)
	if err != nil {
		return nil, err
	}
	nodes, client := nodesOf(own), s.slurm()
	samples := make([]top.Sample, len(nodes))
	each(nodes, func(i int, a asked) {
		if err := stepAnswer(ctx, client, a, &samples[i], "top"); err != nil {
			samples[i] = noSample(a.node, err.Error())
		}
		samples[i].Status.Node = a.node
	})
	return samples, ctx.Err()
}

// isUTF8 says whether the terminal shows more than ASCII.
func isUTF8() bool {
	words := strings.ToUpper(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return strings.Contains(words, "UTF-8") || strings.Contains(words, "UTF8")
}
