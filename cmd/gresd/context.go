// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
)

// self is this program, also after its file was replaced.
const self = "/proc/self/exe"

// probeContext is the command that learn runs as its child.
const probeContext = "probe-context"

// openCosts returns what is known of the cost of a context without asking any
// card.
func openCosts(cfg config.Config, driver string, log *slog.Logger) *probe.Costs {
	if m := cfg.Memory; m.ContextMiB != 0 {
		return probe.Fixed(probe.Figure{
			Context:   gpu.Bytes(m.ContextMiB-m.UncountedMiB) * gpu.MiB,
			Uncounted: gpu.Bytes(m.UncountedMiB) * gpu.MiB, Idle: true,
		})
	}
	return probe.OpenCosts(filepath.Join(cfg.Paths.StateDir, "context.json"), driver, log)
}

// learn measures the rest. It runs beside everything else, because the driver
// may take its time.
func learn(ctx context.Context, cfg config.Config, costs *probe.Costs, cards *driver.NVML) {
	list, _ := cards.Cards() // those that can be read; the server names the others
	costs.Learn(ctx, cards, list, func(ctx context.Context, uuid gpu.UUID) (probe.Figure, error) {
		return probe.MeasureInChild(ctx, []string{
			self, probeContext, "--uuid", string(uuid), "--nvml", cfg.NVML.Library,
			"--cuda", probe.Library(cfg.CUDA.Library, cfg.NVML.Library),
		}, uuid)
	})
}

// probeCommand is what the child of learn does. It needs no configuration, and
// no other gresd may run it.
func probeCommand() *cobra.Command {
	var uuid, cuda, library string
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
			f, err := probe.MeasureContext(cards, probe.Library(cuda, library), gpu.UUID(uuid))
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(f)
		},
	}
	cmd.Flags().StringVar(&uuid, "uuid", "", "NVML `UUID` of the card")
	cmd.Flags().StringVar(&cuda, "cuda", "", "`PATH` of libcuda.so.1")
	cmd.Flags().StringVar(&library, "nvml", "", "`PATH` of libnvidia-ml.so.1")
	if err := cmd.MarkFlagRequired("uuid"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}
