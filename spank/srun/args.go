// SPDX-License-Identifier: Apache-2.0

package srun

import (
	"strings"
)

// srun takes its own options up to the first word that is neither an option
// nor the value of one; the program and its arguments follow. To find that
// word one must know which options have no value in the next word. All others
// of all releases do, or have theirs behind "=".
var flagsWithoutValue = words(`
	bcast compress consolidate-segments contiguous disable-status exact exclusive external help hold
	immediate interactive kill-on-bad-exit label multi-prog nice no-allocate no-kill overcommit overlap
	oversubscribe parsable preserve-env propagate pty quiet quit-on-interrupt reboot resv-ports send-libs
	share spread-job stepmgr unbuffered usage use-min-nodes verbose version whole`)

// lettersWithValue are the short options whose value is the rest of the word or
// the next word.
const lettersWithValue = "AbBcCdDeGiJLmMnNopPqrStTUwWx"

func words(list string) map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.Fields(list) {
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
func split(args []string) (options []option, program []string) {
	for len(args) > 0 {
		word := args[0]
		if word == "--" {
			return append(options, option{words: args[:1]}), args[1:]
		}
		if len(word) < 2 || word[0] != '-' {
			return options, args
		}
		next := readOption(args)
		options = append(options, next)
		args = args[len(next.words):]
	}
	return options, nil
}

func readOption(args []string) option {
	word := args[0]
	long, isLong := strings.CutPrefix(word, "--")
	if !isLong {
		return option{words: args[:shortLength(word, len(args))]}
	}
	name, value, hasValue := strings.Cut(long, "=")
	switch {
	case hasValue || flagsWithoutValue[name] || isOwnFlag(name) || len(args) == 1:
		return option{name: name, value: value, words: args[:1]}
	default:
		return option{name: name, value: args[1], words: args[:2]}
	}
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
