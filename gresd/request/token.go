// SPDX-License-Identifier: Apache-2.0

package request

import (
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

const (
	tokenOpen  = "vgpu("
	tokenClose = ")"
)

// tokenForm ends what a user is told of a token, in the words of job_submit.lua.
const tokenForm = "for example --comment='vgpu(mem=8G,cores=30)'"

// ParseComment finds the token vgpu(name=value,…) in a job's comment and
// returns its words, whose values are not yet read; nil when there is none. A token
// that is not closed, that comes twice, or that has an unknown word or one twice is an
// [*Error]: a limit that the user wrote must not be lost silently.
func ParseComment(comment string) (Options, error) {
	start := findToken(comment)
	if start < 0 {
		return nil, nil
	}
	body, rest, closed := strings.Cut(comment[start+len(tokenOpen):], tokenClose)
	if !closed {
		return nil, &Error{"--comment", comment[start:], "want a closing bracket, " + tokenForm}
	}
	if findToken(rest) >= 0 {
		return nil, &Error{"--comment", comment[start:], "want one vgpu(…), " + tokenForm}
	}
	options := Options{}
	if trim(body) == "" {
		return options, nil
	}
	for _, word := range strings.Split(body, ",") {
		name, value, found := strings.Cut(trim(word), "=")
		name, value = trim(name), trim(value)
		if !found || !slices.Contains(Names(), name) {
			// share is not offered: the scripts write it.
			return nil, wrong("--comment", word, "want mem, cores, cards, mode, priority, policy or engine, "+tokenForm)
		}
		if _, twice := options[name]; twice {
			return nil, &Error{"--comment", body, "want " + name + " once, " + tokenForm}
		}
		options[name] = value
	}
	return options, nil
}

// trim takes away the blanks that job_submit.lua does: it knows no others.
func trim(s string) string { return strings.Trim(s, " \t\n\v\f\r") }

// HasToken says whether a job's comment has a token, whole or not.
func HasToken(comment string) bool { return findToken(comment) >= 0 }

// findToken returns where a token starts, or -1. "my_vgpu(1)" is not one.
func findToken(s string) int {
	for from := 0; ; {
		i := strings.Index(s[from:], tokenOpen)
		if i < 0 {
			return -1
		}
		i += from
		if i == 0 || !isWord(s[i-1]) {
			return i
		}
		from = i + 1
	}
}

func isWord(c byte) bool {
	return c == '_' || c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// FormatToken writes options as a token in the order of [Names]; "" for none.
// Names that are no option are left out. The values must be ones that [Parse]
// accepts: others could hold a bracket or a comma.
func FormatToken(options Options) string {
	var words []string
	for _, name := range Names() {
		if value, given := options[name]; given {
			words = append(words, name+"="+value)
		}
	}
	if len(words) == 0 {
		return ""
	}
	return tokenOpen + strings.Join(words, ",") + tokenClose
}

// Options returns the words that [Parse] reads as this request. Clamp is not
// among them.
func (r Request) Options() Options {
	o := Options{}
	number := func(name string, n uint64) {
		if n != 0 {
			o[name] = strconv.FormatUint(n, 10)
		}
	}
	word := func(name, value string) {
		if value != "" {
			o[name] = value
		}
	}
	number("share", uint64(r.Share))
	switch {
	case r.Memory.Percent != 0:
		o["mem"] = strconv.FormatUint(uint64(r.Memory.Percent), 10) + "%"
	case r.Memory.Bytes != 0:
		o["mem"] = r.Memory.Bytes.Compact()
	}
	number("cores", uint64(r.Cores))
	number("cards", uint64(r.Cards))
	word("mode", gpu.FormatMode(r.Mode, r.Ceiling))
	word("priority", string(r.Priority))
	word("policy", string(r.Policy))
	word("engine", string(r.Engine))
	return o
}
