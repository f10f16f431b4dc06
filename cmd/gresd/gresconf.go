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
	options.Flags(command.Flags())
	return command
}
