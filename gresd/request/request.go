// SPDX-License-Identifier: Apache-2.0

// Package request turns what a user wrote (SPANK options, the token in a job's
// comment) into a checked [Request]. It is pure.
//
// The order of use: [ParseComment] and [Options.Merge] gather the words,
// [Parse] reads them, [Request.WithDefaults] fills the gaps, [Request.Check]
// holds the site's limits against them. Package place then asks [Request.OnCard]
// what the job gets on a card, and gresd's server holds the limits against that by [Grant.Check].
package request

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/spank/options"
)

// MaxCards is the most cards one job can have on one node; grant files have
// room for as many.
const MaxCards = 16

// Memory is an amount per card: Bytes, or Percent of the card. At most one is
// set; when both are 0 the memory follows the share.
type Memory struct {
	Bytes   gpu.Bytes   `json:"bytes,omitempty"`
	Percent gpu.Percent `json:"percent,omitempty"`
}

// Request is what one job asks of one node. A zero field was not asked for.
type Request struct {
	// Share is the N of --gres=vgpu:N, in hundredths over all cards: 30 is
	// 30 % of one card, 200 two whole cards. It is what the user wrote, which
	// may be less than the shards that slurmctld counts (see [Request.Dominant]).
	Share gpu.Share `json:"share,omitempty"`
	// Cards is the number of cards that the share is split over.
	Cards    int          `json:"cards,omitempty"`
	Memory   Memory       `json:"memory,omitzero"` // per card
	Cores    gpu.Share    `json:"cores,omitempty"` // compute share per card
	Mode     gpu.Mode     `json:"mode,omitempty"`
	Ceiling  gpu.Share    `json:"ceiling,omitempty"` // of mode soft, per card; 0: none
	Priority gpu.Priority `json:"priority,omitempty"`
	Policy   gpu.Policy   `json:"policy,omitempty"`
	// Engine is what divides a card between jobs; "": the site's choice.
	Engine gpu.Engine `json:"engine,omitempty"`
	// Clamp makes OnCard lower memory and cores to what the shards cover where
	// it would refuse. For components of het jobs, which can receive the
	// options of another component.
	Clamp bool `json:"clamp,omitempty"`

	// site is what the site gives where the user left memory or cores open. It is
	// not written down: a grant has what came of it.
	site siteDefaults
}

type siteDefaults struct {
	memory Memory
	cores  gpu.Share
}

// Error is a mistake in one option, in words for the user who made it. The words
// are those of the SPANK plugin and of job_submit.lua, whoever finds it first.
type Error struct {
	Option string // as the user writes it: "--vgpu-mem"
	Given  string // as the user wrote it; "" where the error is not one value
	Want   string // what is possible, with numbers
}

func (e *Error) Error() string {
	if e.Given == "" {
		return fmt.Sprintf("%s: %s", e.Option, e.Want)
	}
	return fmt.Sprintf("%s: \"%s\": %s", e.Option, shown(e.Given), e.Want)
}

// shown keeps a hostile value from flooding a log, forging a line of it, or commanding
// the terminal of an administrator who lists refused jobs.
func shown(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown], "")
	}
	return s
}

const maxShown = 64

// knownOptions lists the words of a token. Format writes them in this order.
var knownOptions = append([]options.Option{{Name: "share", Want: wantShare}}, options.List...)

const wantShare = "1 to 100 (hundredths of a card), 100 for each whole card, or with --vgpu-cards a share " +
	"of several cards, for example --gres=vgpu:30 or --gres=vgpu:200"

// mistake is the error for a value that cannot be read.
func mistake(name, value string) *Error {
	o := knownOptions[slices.Index(Names(), name)] // Parse has looked at the names
	flag, want := "--gres=vgpu", "want "+o.Want
	if name != "share" {
		flag = "--vgpu-" + name
		want += fmt.Sprintf(", for example %s=%s", flag, o.Example)
	}
	return wrong(flag, value, want)
}

// wrong is an error about one value, also where that is "".
func wrong(option, value, want string) *Error {
	if value == "" {
		want = `"": ` + want
	}
	return &Error{Option: option, Given: value, Want: want}
}

// Names returns the option names in their fixed order: share, mem, cores,
// cards, mode, priority, policy, engine.
func Names() []string {
	names := make([]string, len(knownOptions))
	for i, o := range knownOptions {
		names[i] = o.Name
	}
	return names
}

// Options are raw words by option name (see [Names]). A key that is present
// with an empty value was given as empty, which is a mistake of the user.
type Options map[string]string

// Merge returns a copy of o with the options of more added where o has none.
// Neither map is changed.
func (o Options) Merge(more Options) Options {
	merged := Options{}
	maps.Copy(merged, more)
	maps.Copy(merged, o)
	return merged
}

// Parse reads options. The error is an [*Error] and names the first wrong
// option in the order of [Names]; an unknown name is named first of all.
func Parse(words Options) (r Request, err error) {
	names := Names()
	for _, name := range slices.Sorted(maps.Keys(words)) {
		if !slices.Contains(names, name) {
			return r, &Error{shown(name), words[name], "unknown option, want one of " + strings.Join(names, ", ")}
		}
	}
	for _, name := range names {
		value, given := words[name]
		if !given {
			continue
		}
		n, ok := uint32(0), true
		switch name {
		case "share":
			r.Share, ok = parseShare(value)
		case "mem":
			r.Memory, err = ParseMemory(value)
		case "cores":
			n, ok = gpu.ParseCount(value, uint32(gpu.FullCard))
			r.Cores = gpu.Share(n)
		case "cards":
			n, ok = gpu.ParseCount(value, MaxCards)
			r.Cards = int(n)
		case "mode":
			r.Mode, r.Ceiling, ok = gpu.ParseMode(value)
		case "priority":
			r.Priority, ok = oneOf(value, gpu.Priorities())
		case "policy":
			r.Policy, ok = oneOf(value, gpu.Policies())
		case "engine":
			r.Engine, ok = oneOf(value, gpu.Engines())
		}
		if err != nil || !ok {
			return Request{}, mistake(name, value)
		}
	}
	if err := r.checkShare(); err != nil {
		return Request{}, err
	}
	if err := r.checkCeiling(cmp.Or(r.Cores, r.nominal(0))); err != nil {
		return Request{}, err
	}
	return r, nil
}

func oneOf[T ~string](word string, all []T) (T, bool) { return T(word), slices.Contains(all, T(word)) }

// parseShare reads the N of --gres=vgpu:N. Whether N fits the number of cards
// is checked once that is known.
func parseShare(s string) (share gpu.Share, ok bool) {
	n, ok := gpu.ParseCount(s, MaxCards*uint32(gpu.FullCard))
	return gpu.Share(n), ok
}

// ParseMemory reads "8G" or "25%": an amount per card. The error has no object;
// the caller names the option or key.
func ParseMemory(s string) (Memory, error) {
	if number, ok := strings.CutSuffix(s, "%"); ok {
		n, ok := gpu.ParseCount(number, 100)
		if !ok {
			return Memory{}, errors.New("want 1% to 100% of a card, for example 25%")
		}
		return Memory{Percent: gpu.Percent(n)}, nil
	}
	n, err := gpu.ParseBytes(s)
	if err == nil && n == 0 {
		return Memory{}, errors.New("want more than 0, for example 8G or 25%; without the option memory follows the share")
	}
	return Memory{Bytes: n}, err
}

// checkShare holds the share against the number of cards.
func (r *Request) checkShare() error {
	if r.Share == 0 {
		return nil
	}
	if r.Cards == 0 && (r.Share <= gpu.FullCard || r.Share%gpu.FullCard == 0) {
		r.Cards = max(1, int(r.Share/gpu.FullCard))
		return nil
	}
	fits := fewestCards(r.Share)
	switch {
	case r.Cards == 0 || fits == 0:
		return mistake("share", fmt.Sprint(r.Share))
	case r.Share%gpu.Share(r.Cards) != 0:
		return &Error{Option: "--vgpu-cards", Given: fmt.Sprint(r.Cards), Want: fmt.Sprintf(
			"want a number of cards that divides the share %d, for example %s=%d", r.Share, "--vgpu-cards", fits)}
	case r.Share/gpu.Share(r.Cards) > gpu.FullCard:
		return &Error{Option: "--vgpu-cards", Given: fmt.Sprint(r.Cards), Want: fmt.Sprintf(
			"want %d cards for the share %d, for example %s=%d", fits, r.Share, "--vgpu-cards", fits)}
	}
	return nil
}

// fewestCards is the least number of cards that a share can be split over, each a
// whole number of hundredths; 0 where there is none, as for 101.
func fewestCards(share gpu.Share) int {
	for cards := gpu.Share(1); cards <= MaxCards; cards++ {
		if share%cards == 0 && share/cards <= gpu.FullCard {
			return int(cards)
		}
	}
	return 0
}

// checkCeiling holds the ceiling of soft mode against the compute share.
func (r Request) checkCeiling(cores gpu.Share) error {
	if r.Ceiling == 0 || r.Ceiling >= cores {
		return nil
	}
	return &Error{Option: "--vgpu-mode", Given: gpu.FormatMode(r.Mode, r.Ceiling), Want: fmt.Sprintf(
		"want a ceiling of at least the compute share %d, for example --vgpu-mode=soft:%d", cores, cores)}
}

// nominal is the user's share on each card; otherwise where it is not known.
func (r Request) nominal(otherwise gpu.Share) gpu.Share {
	if r.Share == 0 {
		return otherwise
	}
	return r.Share / gpu.Share(max(1, r.Cards))
}

const (
	tokenOpen  = "vgpu("
	tokenClose = ")"
)

// tokenForm ends messages about a token. job_submit.lua has the same text.
const tokenForm = "for example --comment='vgpu(mem=8G,cores=30)'"

// ParseComment finds the token vgpu(name=value,…) in a job's comment and returns its words, with
// values as text; nil when there is none. A token without an end, a second token, and a word that
// is unknown or repeated are an [*Error]: a limit that the user wrote must not be lost silently.
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

// HasToken reports whether a job's comment has a token, whole or not.
func HasToken(comment string) bool { return findToken(comment) >= 0 }

// token begins a token: "my_vgpu(1)" does not.
var token = regexp.MustCompile(`(?:^|[^\w-])vgpu\(`)

// findToken returns where a token starts, or -1.
func findToken(s string) int {
	at := token.FindStringIndex(s)
	if at == nil {
		return -1
	}
	return at[1] - len(tokenOpen)
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
	o := Options{
		"share": fmt.Sprint(r.Share), "mem": r.Memory.Bytes.Compact(), "cores": fmt.Sprint(r.Cores), "cards": fmt.Sprint(r.Cards),
		"mode":     gpu.FormatMode(r.Mode, r.Ceiling),
		"priority": string(r.Priority), "policy": string(r.Policy), "engine": string(r.Engine),
	}
	if r.Memory.Percent != 0 {
		o["mem"] = fmt.Sprintf("%d%%", r.Memory.Percent)
	}
	maps.DeleteFunc(o, func(_, value string) bool { return value == "" || value == "0" })
	return o
}
