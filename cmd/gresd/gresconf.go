// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/doctor"
)

func gresConfCommand(path *string) *cobra.Command {
	var options doctor.GresConfOptions
	command := &cobra.Command{
		Use:   "gres-conf",
		Short: "Print the lines of gres.conf for this node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := options.Text(*path)
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.Nodes, "nodes", "", "the `NODES` that are like this one, for example gpu[01-08]: lines with NodeName=, for one gres.conf for several kinds of nodes")
	flags.BoolVar(&options.Count, "count", false, "also a count of gres/vgpu, for count = true in vgpu_cards.lua")
	return command
}
