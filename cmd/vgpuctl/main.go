// SPDX-License-Identifier: Apache-2.0

// Command vgpuctl shows what gresd granted on this node. See
// docs/man/vgpuctl.1. Exit status: 0, 1 for an answer that is an error, 2 for
// a wrong command line.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// failure is an error of the work itself, and not of the command line.
type failure struct{ error }

func execute(ctx context.Context, args []string, out, errs io.Writer) int {
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errs)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(errs, "vgpuctl: %v\n", err)
	if errors.As(err, new(failure)) {
		return 1
	}
	return 2
}

// settings are the flags of every command.
type settings struct {
	json           bool
	config, socket string
}

func command() *cobra.Command {
	var s settings
	root := &cobra.Command{
		Use:           "vgpuctl",
		Short:         "Show the GPU shares of this node",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(*cobra.Command, []string) error { return errors.New("want a command, for example: vgpuctl status") },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	flags := root.PersistentFlags()
	flags.BoolVar(&s.json, "json", false, "print JSON")
	flags.StringVar(&s.config, "config", config.DefaultPath, "configuration `FILE` that names the socket")
	flags.StringVar(&s.socket, "socket", "", "`PATH` of gresd's socket, whatever the configuration says")

	add := func(use, short string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) {
		root.AddCommand(&cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
			if err := run(cmd, args); err != nil {
				return failure{err}
			}
			return nil
		}})
	}
	add("status", "Show the cards and what is granted of them", cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
		rep, err := s.ask(cmd.Context(), wire.Request{Op: wire.OpStatus})
		if err != nil {
			return err
		}
		if rep.Status == nil {
			return errors.New("gresd: answer without a status")
		}
		return s.print(cmd.OutOrStdout(), rep.Status, func(w io.Writer) error { return writeStatus(w, *rep.Status) })
	})
	add("jobs", "Show the jobs that have a share: all for root, else your own", cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
		rep, err := s.ask(cmd.Context(), wire.Request{Op: wire.OpJobs})
		if err != nil {
			return err
		}
		jobs := append([]wire.Job{}, rep.Jobs...) // [] and not null
		return s.print(cmd.OutOrStdout(), jobs, func(w io.Writer) error { return writeJobs(w, jobs) })
	})
	root.AddCommand(s.setCommand(), s.cordonCommand(), s.uncordonCommand(), s.topoCommand(), s.psCommand(), s.explainCommand())
	add("inspect FILE", "Decode a grant, a cache, or a cache of HAMi-core", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		return s.inspect(cmd.OutOrStdout(), args[0])
	})
	add("check-config [FILE]", "Check a configuration file", cobra.MaximumNArgs(1), func(cmd *cobra.Command, args []string) error {
		return s.checkConfig(cmd.OutOrStdout(), args)
	})
	return root
}

// print writes v as JSON, or as people read it.
func (s *settings) print(w io.Writer, v any, text func(io.Writer) error) error {
	if !s.json {
		return text(w)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
