// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gresconf"
)

func gresConfCommand(path *string) *cobra.Command {
	var count bool
	var names string
	command := &cobra.Command{
		Use:   "gres-conf",
		Short: "Print the lines of gres.conf for this node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(*path)
			if err != nil {
				return err
			}
			node, err := gresconf.Read(cfg)
			if err != nil {
				return err
			}
			node.Count, node.Names = count, names
			_, err = io.WriteString(cmd.OutOrStdout(), gresconf.Text(node))
			return err
		},
	}
	gresconf.Flags(command.Flags(), &count, &names)
	return command
}
