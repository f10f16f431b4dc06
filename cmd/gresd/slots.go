// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
)

// clearSlots is the command that a reclaimer runs as its child.
const clearSlots = "clear-slots"

// slotsCommand is what the child of a reclaimer does.
func slotsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    clearSlots + " SLOT...",
		Short:  "Clear slots of the cache that is open as file 3",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
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
