// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func (s *settings) setCommand() *cobra.Command {
	var cores uint32
	cmd := &cobra.Command{
		Use:   "set JOB --cores N",
		Short: "Change the compute share of a running job (root only)",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: s.completeJobs,
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil || job == 0 {
				return fmt.Errorf("job %q: want the number of a job, for example 4217; squeue -O JobID gives it for an array's", args[0])
			}
			rep, err := s.ask(cmd.Context(), wire.Request{Op: wire.OpSet, JobID: uint32(job), Cores: cores})
			if err != nil {
				return failure{err}
			}
			return s.print(cmd.OutOrStdout(), rep, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, rep.Message)
				return err
			})
		},
	}
	cmd.Flags().Uint32Var(&cores, "cores", 0, "compute share `N` of each card, in hundredths: 1 to the job's share")
	complete(cmd, "cores")
	if err := cmd.MarkFlagRequired("cores"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}
