// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// settings are the flags of every command.
type settings struct {
	json           bool
	config, socket string
	color          string
}

func command() *cobra.Command {
	var s settings
	root := &cobra.Command{
		Use:           "vgpuctl",
		Short:         "Show the GPU shares of this node",
		Version:       version,
		Args:          unknownCommand,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(*cobra.Command, []string) error { return errors.New("want a command, for example: vgpuctl status") },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(colorWords, s.color) {
				return fmt.Errorf("--color: %q: want auto, always or never", s.color)
			}
			return required(cmd)
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true // ours says where its output goes
	flags := root.PersistentFlags()
	flags.BoolVar(&s.json, "json", false, "print JSON")
	flags.StringVar(&s.config, "config", config.DefaultPath, "configuration `FILE` that names the socket")
	flags.StringVar(&s.socket, "socket", "", "`PATH` of gresd's socket, whatever the configuration says")
	flags.StringVar(&s.color, "color", colorAuto, "`WHEN` to use colour: auto (on a terminal, unless NO_COLOR is set), always, never")
	complete(root, "color", colorWords...)

	// Answers of gresd, tables.
	status := s.add(root, "status", "Show the cards, what is granted of them, and who waits", cobra.NoArgs, nil)
	noQueue := status.Flags().Bool("no-queue", false, "do not ask Slurm for jobs that wait for a share")
	status.RunE = s.run(func(cmd *cobra.Command, _ []string) error { return s.status(cmd, !*noQueue) })
	s.add(root, "jobs", "Show the jobs that have a share: all for root, else your own", cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
		return s.showJobs(cmd, "jobs", writeJobs)
	})
	s.add(root, "ps", "Show the processes of jobs on cards: all for root, else your own", cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
		return s.showJobs(cmd, "ps", writeProcesses)
	})
	s.add(root, "topo", "Show how the cards are joined, and what is free of each", cobra.NoArgs, s.topo)
	s.add(root, "nodes", "Show the cards of all nodes and who waits for a share, from slurmctld alone", cobra.NoArgs, s.nodes)
	s.add(root, "cordon CARD [REASON...]", "Give no new shares of a card, named by index or UUID (root only)", cobra.MinimumNArgs(1), s.cardChange(wire.OpCordon)).ValidArgsFunction = s.completeCards()
	s.add(root, "uncordon CARD", "Put a card back to use that was cordoned or sick (root only)", cobra.ExactArgs(1), s.cardChange(wire.OpUncordon)).ValidArgsFunction = s.completeCards()
	root.AddCommand(s.topCommand(), s.setCommand(), s.explainCommand(), s.reportCommand(), s.webCommand())

	// Files and the node itself, without gresd.
	inspect := s.add(root, "inspect FILE", "Decode a grant, a cache, or a cache of HAMi-core", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		err := s.inspect(cmd.OutOrStdout(), args[0])
		if job, number := strconv.ParseUint(args[0], 10, 32); errors.Is(err, fs.ErrNotExist) && number == nil {
			return fmt.Errorf("inspect: %q: want a file; those of a job are %s and cache beside it", args[0], s.jobFile(uint32(job), "grant"))
		}
		return err
	})
	inspect.ValidArgsFunction = s.completeJobFiles()
	check := s.add(root, "check-config [FILE]", "Check a configuration file", cobra.MaximumNArgs(1), func(cmd *cobra.Command, args []string) error {
		return s.checkConfig(cmd.OutOrStdout(), args)
	})
	check.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"toml"}, cobra.ShellCompDirectiveFilterFileExt
	}
	root.AddCommand(s.doctorCommand(), probeLibraryCommand(), s.benchCommand(), completionCommand())
	sayWhatIsWanted(root)
	return root
}

// add adds a command. What it returns is a failure of the work.
func (s *settings) add(root *cobra.Command, use, short string, args cobra.PositionalArgs, run func(*cobra.Command, []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: args, ValidArgsFunction: cobra.NoFileCompletions, RunE: s.run(run)}
	root.AddCommand(cmd)
	return cmd
}

func (s *settings) run(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return failed(run(cmd, args)) }
}

// print writes v as JSON, or as people read it.
func (s *settings) print(w io.Writer, v any, text func(io.Writer) error) error {
	if !s.json {
		return text(onScreen(w))
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// cardChange asks for a change of a card.
func (s *settings) cardChange(op wire.Op) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return s.change(cmd, wire.Request{Op: op, Card: args[0], Reason: strings.Join(args[1:], " ")})
	}
}

// jobFile returns the path of the grant or the cache of a job, by the configuration.
func (s *settings) jobFile(job uint32, name string) string {
	return filepath.Join(s.configuration().Paths.Job(job), name)
}
