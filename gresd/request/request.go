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
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
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

// optionNames are the words of a token in the order in which Format writes
// them, with the option that a user knows each by.
// want is what each takes, and what would be right.
var optionNames = [...]struct{ name, flag, want, example string }{
	{"share", "--gres=vgpu", wantShare, ""},
	{"mem", "--vgpu-mem", "a whole number with K, M, G or T (powers of 1024), or 1% to 100% of the card", "8G"},
	{"cores", "--vgpu-cores", "a whole number from 1 to 100", "30"},
	{"cards", "--vgpu-cards", "a whole number from 1 to 16", "2"},
	{"mode", "--vgpu-mode", "hard, soft, soft:CEILING (1 to 100) or off", "soft:80"},
	{"priority", "--vgpu-priority", "high, normal or low", "normal"},
	{"policy", "--vgpu-policy", "binpack, spread, topology or exclusive", "binpack"},
	{"engine", "--vgpu-engine", "time, mps, concurrent or auto", "time"},
}

const wantShare = "1 to 100 (hundredths of a card), 100 for each whole card, or with --vgpu-cards a share " +
	"of several cards, for example --gres=vgpu:30 or --gres=vgpu:200"

// mistake is the error for a value that cannot be read.
func mistake(name, value string) *Error {
	for _, o := range optionNames {
		if o.name == name {
			want := "want " + o.want
			if o.example != "" {
				want += fmt.Sprintf(", for example %s=%s", o.flag, o.example)
			}
			return wrong(o.flag, value, want)
		}
	}
	return nil // Parse has looked at the names
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
	names := make([]string, len(optionNames))
	for i, o := range optionNames {
		names[i] = o.name
	}
	return names
}

// flagOf returns the option that a user knows the name by.
func flagOf(name string) string {
	for _, o := range optionNames {
		if o.name == name {
			return o.flag
		}
	}
	return name
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
func Parse(options Options) (Request, error) {
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if !slices.Contains(Names(), name) {
			return Request{}, &Error{
				Option: shown(name), Given: options[name],
				Want: "unknown option, want one of " + strings.Join(Names(), ", "),
			}
		}
	}
	var r Request
	for _, name := range Names() {
		value, given := options[name]
		if !given {
			continue
		}
		if err := r.set(name, value); err != nil {
			return Request{}, mistake(name, value)
		}
	}
	if err := r.checkShare(); err != nil {
		return Request{}, err
	}
	if err := r.checkCeiling(r.coresKnown()); err != nil {
		return Request{}, err
	}
	return r, nil
}

// set reads one value. Parse has the words for errors.
func (r *Request) set(name, value string) (err error) {
	switch name {
	case "share":
		r.Share, err = parseShare(value)
	case "mem":
		r.Memory, err = ParseMemory(value)
	case "cores":
		var n gpu.Percent
		n, err = gpu.ParsePercent(value)
		r.Cores = gpu.Share(n)
	case "cards":
		var n uint32
		n, err = gpu.ParseCount(value, MaxCards)
		r.Cards = int(n)
	case "mode":
		r.Mode, r.Ceiling, err = gpu.ParseMode(value)
	case "priority":
		r.Priority, err = gpu.ParsePriority(value)
	case "policy":
		r.Policy, err = gpu.ParsePolicy(value)
	case "engine":
		r.Engine, err = gpu.ParseEngine(value)
	}
	return err
}
