// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
)

// self is this program, also after its file was replaced.
const self = "/proc/self/exe"

// probeContext is the command that learn runs as its child.
const probeContext = "probe-context"

// learn measures the unknown costs of contexts. It runs in the background, because the driver may
// be slow.
func learn(ctx context.Context, cfg config.Config, costs *probe.Costs, cards *driver.NVML) {
	list, _ := cards.Cards() // the readable cards; the server reports the other cards
	costs.Learn(ctx, cards, list, func(ctx context.Context, uuid gpu.UUID) (probe.Figure, error) {
		return probe.MeasureInChild(ctx, []string{self, probeContext, "--uuid", string(uuid), "--nvml", cfg.NVML.Library}, uuid)
	})
}

// probeCommand is the child process of learn. It needs no configuration, and no other gresd may run
// it.
func probeCommand() *cobra.Command {
	var uuid, library string
	cmd := &cobra.Command{
		Use:    probeContext,
		Short:  "Make a CUDA context and print what it takes of a card",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cards, err := driver.Open(library)
			if err != nil {
				return err
			}
			defer cards.Close()
			f, err := probe.MeasureContext(cards, probe.Library(library), gpu.UUID(uuid))
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(f)
		},
	}
	cmd.Flags().StringVar(&uuid, "uuid", "", "NVML `UUID` of the card")
	cmd.Flags().StringVar(&library, "nvml", "", "`PATH` of libnvidia-ml.so.1")
	if err := cmd.MarkFlagRequired("uuid"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

// clearSlots is the command that a reclaimer runs as its child.
const clearSlots = "clear-slots"

// slotsCommand is the child process of a reclaimer.
func slotsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    clearSlots + " UID:GID SLOTS",
		Short:  "Clear slots of the cache that is open as file 3",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := grant.ClearInherited(args)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), n)
			return err
		},
	}
}

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

// testSlices begins when the context costs are known, because a new context changes the result of
// that measurement.
func (d *gresd) testSlices(ctx context.Context) {
	d.costs.Await(ctx)
	d.slices.Run(ctx)
}

// workCommand is the child process of a tester of slices.
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
