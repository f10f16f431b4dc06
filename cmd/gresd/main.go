// SPDX-License-Identifier: Apache-2.0

// Command gresd is the node daemon: it shares the GPUs of one node between
// Slurm jobs. See docs/man/gresd.8.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/doctor"
)

// version is set by the linker.
var version = "dev"

func main() {
	// A second signal ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "gresd: %v\n", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var path string
	root := &cobra.Command{
		Use:           "gresd",
		Short:         "Share the GPUs of this node between Slurm jobs",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(path)
			if err != nil {
				return err
			}
			return run(cmd.Context(), path, cfg)
		},
	}
	root.PersistentFlags().StringVar(&path, "config", config.DefaultPath, "configuration `FILE`")
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(probeCommand(), slotsCommand(), workCommand(), gresConfCommand(&path), &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "gresd %s (%s)\n", version, runtime.Version())
			return err
		},
	})
	return root
}

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
