// SPDX-License-Identifier: Apache-2.0

package man

import (
	"flag"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Cobra returns the parts "commands" and "options" of a program's page. Hidden
// commands are the program's own business.
func Cobra(root *cobra.Command) map[string]string {
	var commands strings.Builder
	for _, cmd := range root.Commands() {
		if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		about := cmd.Long
		if about == "" {
			about = cmd.Short + "."
		}
		usage := strings.TrimSpace(strings.TrimPrefix(cmd.UseLine(), root.Name()))
		usage = strings.TrimSuffix(usage, " [flags]")
		fmt.Fprintf(&commands, "## %s\n\n%s\n\n", usage, about)
		commands.WriteString(options(cmd.LocalNonPersistentFlags()))
		if cmd.Example != "" {
			commands.WriteString("For example:\n\n")
			for line := range strings.Lines(cmd.Example) {
				commands.WriteString("    " + strings.TrimSpace(line) + "\n")
			}
			commands.WriteString("\n")
		}
	}
	root.InitDefaultVersionFlag()
	return map[string]string{"commands": commands.String(), "options": options(root.LocalFlags())}
}

func options(set *pflag.FlagSet) string {
	var out strings.Builder
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		value, about := pflag.UnquoteUsage(f)
		out.WriteString(option("--"+f.Name, value, about, f.DefValue))
	})
	return out.String()
}

// Flags returns the part "options" of a program that uses the standard flags.
func Flags(set *flag.FlagSet) map[string]string {
	var out strings.Builder
	set.VisitAll(func(f *flag.Flag) {
		value, about := flag.UnquoteUsage(f)
		out.WriteString(option("--"+f.Name, value, about, f.DefValue))
	})
	return map[string]string{"options": out.String()}
}

func option(name, value, about, byDefault string) string {
	term := "**" + name + "**"
	if value != "" {
		term += " *" + value + "*"
	}
	switch byDefault {
	case "", "0", "false", "[]":
	default:
		about += fmt.Sprintf(" (default: %s)", byDefault)
	}
	return fmt.Sprintf("%s\n:   %s.\n\n", term, sentence(about))
}

// sentence capitalizes the first word, unless the word is a literal such as a path.
func sentence(s string) string {
	word, _, _ := strings.Cut(s, " ")
	if strings.ContainsFunc(word, func(r rune) bool { return r < 'a' || r > 'z' }) {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
