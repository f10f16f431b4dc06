// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func (s *settings) setCommand() *cobra.Command {
	var cores uint32
	cmd := &cobra.Command{
		Use:   "set JOB --cores N",
		Short: "Change the compute share of a running job (root only)",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: s.completeJobs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := jobOf(args[0])
			if err != nil {
				return err
			}
			return s.change(cmd, wire.Request{Op: wire.OpSet, JobID: job, Cores: cores})
		},
	}
	cmd.Flags().Uint32Var(&cores, "cores", 0, "compute share `N` of each card, in hundredths: 1 to the job's share")
	complete(cmd, "cores")
	if err := cmd.MarkFlagRequired("cores"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}
