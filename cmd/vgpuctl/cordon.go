// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func (s *settings) cordonCommand() *cobra.Command {
	return s.cardCommand(wire.OpCordon, "cordon CARD [REASON...]", "Give no new shares of a card, named by index or UUID (root only)", cobra.MinimumNArgs(1))
}

func (s *settings) uncordonCommand() *cobra.Command {
	return s.cardCommand(wire.OpUncordon, "uncordon CARD", "Put a card back to use that was cordoned or sick (root only)", cobra.ExactArgs(1))
}

func (s *settings) cardCommand(op wire.Op, use, short string, args cobra.PositionalArgs) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: args, ValidArgsFunction: s.completeCards,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.change(cmd, wire.Request{Op: op, Card: args[0], Reason: strings.Join(args[1:], " ")})
		},
	}
}
