// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
)

// workOnCard is the command that a tester of slices runs as its children.
const workOnCard = "work-on-card"

func (d *gresd) sliceTester(cfg config.Config, meter probe.CardTimes, driver string) *probe.SliceTester {
	return probe.NewSliceTester(probe.SliceTestParts{
		Off: func() string {
			if !d.config.Get().Arbiter.SliceTest {
				return "slice_test = false"
			}
			return ""
		},
		Cards: func() []gpu.Card { return d.cards.Now().Cards },
		Jobs:  d.grants.Jobs, Processes: d.driver.Processes, Meter: meter,
		Library: cfg.Paths.Library,
		Child:   []string{self, workOnCard, "--cuda", probe.Library(cfg.NVML.Library)},
		Dir:     filepath.Join(cfg.Paths.RunDir, "slicetest"), Path: filepath.Join(cfg.Paths.StateDir, "slices.json"),
		Driver: driver, Log: d.log,
	})
}

// testSlices begins when the context costs are known: who makes a context then changes what
// is measured.
func (d *gresd) testSlices(ctx context.Context) {
	d.costs.Await(ctx)
	d.slices.Run(ctx)
}

// workCommand is what the children of a tester of slices do.
func workCommand() *cobra.Command {
	var cuda string
	cmd := &cobra.Command{
		Use:    workOnCard,
		Short:  "Keep a card busy until standard input is closed",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return probe.Work(cuda) },
	}
	cmd.Flags().StringVar(&cuda, "cuda", "libcuda.so.1", "`PATH` of libcuda.so.1")
	return cmd
}
