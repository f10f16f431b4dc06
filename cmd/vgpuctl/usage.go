// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// sayWhatIsWanted makes a wrong command line of the commands below root say
// what they want, where cobra counts arguments.
func sayWhatIsWanted(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		check := cmd.Args
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if check == nil || check(cmd, args) == nil {
				return nil
			}
			return wants(cmd, given(args))
		}
		cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return wants(cmd, err.Error()) })
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
	})
}

// required is an error where a flag is missing that the command cannot do without.
func required(cmd *cobra.Command) error {
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return wants(cmd, err.Error())
	}
	return nil
}

// unknownCommand is the error for a word that is none of root's commands.
func unknownCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	root.SuggestionsMinimumDistance = 1 // of two, "drop" would be "top"
	if len(args[0]) > 4 {
		root.SuggestionsMinimumDistance = 2
	}
	if near := root.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("%q: unknown command, did you mean %s?", args[0], strings.Join(near, " or "))
	}
	var names []string
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() && cmd.Name() != "help" {
			names = append(names, cmd.Name())
		}
	}
	return fmt.Errorf("%q: unknown command, want one of %s", args[0], strings.Join(names, ", "))
}

// wants says how a command is used. The name of the program stands before every error.
func wants(cmd *cobra.Command, found string) error {
	return fmt.Errorf("%s: %s: want %s %s; see %s --help", cmd.Name(), found, cmd.Root().Name(), cmd.Use, cmd.CommandPath())
}

func given(args []string) string {
	if len(args) == 0 {
		return "no argument"
	}
	return fmt.Sprintf("%q", strings.Join(args, " "))
}
