// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// completeFor bounds what a press of the Tab key may wait for gresd.
const completeFor = time.Second

// completionCommand prints what a shell reads.
func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion {bash | zsh | fish}",
		Short: "Print the completion of a shell",
		Long: "Print the completion of a shell. make install puts it where the shells look; by hand:\n\n" +
			"  bash: source <(vgpuctl completion bash)\n" +
			"  zsh:  vgpuctl completion zsh >\"${fpath[1]}/_vgpuctl\"\n" +
			"  fish: vgpuctl completion fish >~/.config/fish/completions/vgpuctl.fish\n",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return root.GenBashCompletionV2(out, true)
		},
	}
}

// complete gives the values of a flag.
func complete(cmd *cobra.Command, flag string, words ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag is defined beside the call
	}
}

// completes gives the words of an answer of gresd for the first argument. Without an answer in time it
// gives none.
func (s *settings) completes(op wire.Op, files cobra.ShellCompDirective, words func(wire.Reply) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		socket, err := s.socketPath()
		if err != nil || len(args) > 0 {
			return nil, files
		}
		client := wire.Client{Socket: socket, Timeout: completeFor}
		rep, err := client.Do(cmd.Context(), wire.Request{Op: op})
		if err != nil {
			return nil, files
		}
		return words(rep), files
	}
}

// completeJobs gives the jobs that the user may see, each with what it is.
func (s *settings) completeJobs() cobra.CompletionFunc {
	return s.completes(wire.OpJobs, cobra.ShellCompDirectiveNoFileComp, func(rep wire.Reply) (words []string) {
		for _, j := range rep.Jobs {
			what := j.State
			if len(j.Cards) > 0 {
				what = fmt.Sprintf("%s of card %d", percent(j.Cards[0].Cores), j.Cards[0].Index)
			}
			words = append(words, fmt.Sprintf("%d\t%s, %s", j.JobID, j.Who(), what))
		}
		return words
	})
}

func (s *settings) completeCards() cobra.CompletionFunc {
	return s.completes(wire.OpStatus, cobra.ShellCompDirectiveNoFileComp, func(rep wire.Reply) (words []string) {
		for _, c := range cmp.Or(rep.Status, &wire.Status{}).Cards {
			words = append(words, fmt.Sprintf("%d\t%s, %s granted", c.Index, c.Type, percent(c.Share)))
		}
		return words
	})
}

// completeJobFiles gives the grants and caches that the user may see, beside any file.
func (s *settings) completeJobFiles() cobra.CompletionFunc {
	return s.completes(wire.OpJobs, cobra.ShellCompDirectiveDefault, func(rep wire.Reply) (words []string) {
		for _, j := range rep.Jobs {
			words = append(words, s.jobFile(j.JobID, "grant"), s.jobFile(j.JobID, "cache"))
		}
		return words
	})
}
