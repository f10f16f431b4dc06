// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"

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

// learn measures the unknown costs of contexts. It runs beside everything else, because the driver
// may take its time.
func learn(ctx context.Context, cfg config.Config, costs *probe.Costs, cards *driver.NVML) {
	list, _ := cards.Cards() // those that can be read; the server names the others
	costs.Learn(ctx, cards, list, func(ctx context.Context, uuid gpu.UUID) (probe.Figure, error) {
		return probe.MeasureInChild(ctx, []string{self, probeContext, "--uuid", string(uuid), "--nvml", cfg.NVML.Library}, uuid)
	})
}

// probeCommand is what the child of learn does. It needs no configuration, and
// no other gresd may run it.
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
