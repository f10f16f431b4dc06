// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func (s *settings) cordonCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cordon CARD [REASON...]",
		Short: "Give no new shares of a card, named by index or UUID (root only)",
		Args:  cobra.MinimumNArgs(1),

		ValidArgsFunction: s.completeCards,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.change(cmd, wire.Request{Op: wire.OpCordon, Card: args[0], Reason: strings.Join(args[1:], " ")})
		},
	}
}

func (s *settings) uncordonCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "uncordon CARD",
		Short: "Put a card back to use that was cordoned or sick (root only)",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: s.completeCards,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.change(cmd, wire.Request{Op: wire.OpUncordon, Card: args[0]})
		},
	}
}

// change asks for a change and prints what became of it.
func (s *settings) change(cmd *cobra.Command, req wire.Request) error {
	rep, err := s.ask(cmd.Context(), req)
	if err != nil {
		return failure{err}
	}
	return s.print(cmd.OutOrStdout(), rep, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, rep.Message)
		return err
	})
}
