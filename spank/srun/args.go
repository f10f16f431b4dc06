// SPDX-License-Identifier: Apache-2.0

package srun

import (
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/spank/options"
)

// srun takes its own options up to the first word that is neither an option
// nor the value of one; the program and its arguments follow. To find that
// word one must know which options have a value in the next word. These are
// all of 22.05, 24.11 and 26.05; a test holds them against the installed Slurm.
// Options of SPANK plugins are unknown here: they never take the next word.
var (
	flagsWithoutValue = words(`
		async bcast compress consolidate-segments contiguous debugger-test disable-status exact exclusive
		external external-launcher help hold immediate interactive kill-on-bad-exit label multi-prog nice
		no-allocate no-kill oom-kill-step overcommit overlap oversubscribe parsable preserve-env propagate
		pty quiet quit-on-interrupt reboot resv-ports send-libs share spread-job spread-segments stepmgr
		test-only unbuffered usage use-min-nodes verbose version wait-for-children whole x11`)
	optionsWithValue = words(`
		accel-bind account acctg-freq autocomplete bb bbf bcast-exclude begin chdir cluster
		cluster-constraint clusters comment constraint container container-id container-type context
		core-spec cores-per-socket cpu-bind cpu-freq cpu_bind cpus-per-gpu cpus-per-task deadline
		delay-boot dependency distribution epilog error exclude export extra extra-node-info gid gpu-bind
		gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags het-group hint
		ignore-signals input job-name jobid licenses mail-type mail-user mcs-label mem mem-bind
		mem-per-cpu mem-per-gpu mem-update mincpus mpi msg-timeout network nodefile nodelist nodes ntasks
		ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output
		pack-group partition power prefer priority profile prolog qos relative reservation resources
		segment signal slurmd-debug sockets-per-node switches task-epilog task-prolog tasks-per-node
		thread-spec threads threads-per-core time time-min tmp treewidth tres-bind tres-per-task uid wait
		wckey`)
)

// lettersWithValue are the short options whose value is the rest of the word or
// the next word.
const lettersWithValue = "AbBcCdDeFGiJLmMnNopPqrStTUwWx"

// fullName is the option that a name or the beginning of one stands for, by
// the rule of getopt: an exact name, else the only one that begins so. Any
// other is returned as it is, for srun to refuse.
func fullName(name string) string {
	found := ""
	for _, set := range []map[string]bool{flagsWithoutValue, optionsWithValue, ownOptions} {
		if set[name] {
			return name
		}
		for option := range set {
			if name == "" || !strings.HasPrefix(option, name) {
				continue
			}
			if found != "" {
				return name
			}
			found = option
		}
	}
	if found == "" {
		return name
	}
	return found
}

// ownOptions are those of vgpu-srun.
var ownOptions = func() map[string]bool {
	own := words("show")
	for _, o := range options.List {
		own[flagPrefix+o.Name] = true
	}
	return own
}()

func words(list string) map[string]bool {
	set := map[string]bool{}
	for word := range strings.FieldsSeq(list) {
		set[word] = true
	}
	return set
}

// option is one option as it was written: one or two words.
type option struct {
	name  string // "gres" of --gres=…; "" for short options and "--"
	value string
	words []string
}

// split takes the words of a command line apart: srun's options, ours among
// them, and the program with its arguments.
func split(args []string) (given []option, program []string) {
	for len(args) > 0 {
		word := args[0]
		if word == "--" {
			return append(given, option{words: args[:1]}), args[1:]
		}
		if len(word) < 2 || word[0] != '-' {
			return given, args
		}
		next := readOption(args)
		given = append(given, next)
		args = args[len(next.words):]
	}
	return given, nil
}

// components takes the components of a het job apart, which srun separates by
// ":" in a word of its own, behind the program of each.
func components(args []string) [][]string {
	var all [][]string
	for {
		_, program := split(args)
		end := slices.Index(program, ":")
		if end < 0 {
			return append(all, args)
		}
		end += len(args) - len(program)
		all, args = append(all, args[:end]), args[end+1:]
	}
}

func readOption(args []string) option {
	word := args[0]
	long, isLong := strings.CutPrefix(word, "--")
	if !isLong {
		return option{words: args[:shortLength(word, len(args))]}
	}
	name, value, hasValue := strings.Cut(long, "=")
	name = fullName(name)
	switch {
	case hasValue || len(args) == 1 || name == "show" || !optionsWithValue[name] && !ownOptions[name]:
		return option{name: name, value: value, words: args[:1]}
	default:
		return option{name: name, value: args[1], words: args[:2]}
	}
}

// isUnclear reports an option of a SPANK plugin without "=": the next word can be its value or the
// program. split takes that word for the program. The difference matters only if an option that
// vgpu-srun reads follows the word.
func isUnclear(last option, program []string) bool {
	name := last.name
	if name == "" || flagsWithoutValue[name] || optionsWithValue[name] || ownOptions[name] || strings.Contains(last.words[0], "=") {
		return false
	}
	behind, _ := split(program[min(1, len(program)):])
	return slices.ContainsFunc(behind, func(o option) bool {
		return ownOptions[o.name] || o.name == "gres" || o.name == "comment" || o.name == "jobid" || o.asksForGPUs()
	})
}

// asksForGPUs says whether srun takes the option as a request for cards: -G, --gpus and its like, or a
// list for each task.
func (o option) asksForGPUs() bool {
	switch {
	case o.name == "tres-per-task":
		return namesCards(o.value)
	case o.name != "":
		return strings.HasPrefix(o.name, "gpus")
	}
	// "-G1", "-lG 1": the first letter with a value ends the letters.
	word := strings.TrimPrefix(o.words[0], "-")
	at := strings.IndexAny(word, lettersWithValue)
	return at >= 0 && word[at] == 'G'
}

// namesCards says whether a list of TRES has whole cards or shares in it.
func namesCards(list string) bool {
	return strings.Contains(list, "gpu") || strings.Contains(list, "shard")
}

// shortLength returns how many words "-n2", "-n 2", "-lQ" or "-ln 2" are.
func shortLength(word string, available int) int {
	for i := 1; i < len(word); i++ {
		switch {
		case strings.IndexByte(lettersWithValue, word[i]) < 0:
			continue
		case i == len(word)-1 && available > 1:
			return 2
		default:
			return 1
		}
	}
	return 1
}

// quote writes a word so that a shell reads it as it is.
func quote(word string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_=:,./@%+", r)
	}
	if word != "" && strings.TrimFunc(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = quote(word)
	}
	return strings.Join(quoted, " ")
}
