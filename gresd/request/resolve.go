// SPDX-License-Identifier: Apache-2.0

package request

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// Defaults are the site's choices for what a user left open.
type Defaults struct {
	Mode     gpu.Mode
	Priority gpu.Priority
	Policy   gpu.Policy
	// Of what follows a job gets no more than its share covers.
	Memory Memory    // per card
	Cores  gpu.Share // per card
	// Cards is over how many a share is split where gresd chooses the cards.
	Cards int
}

// Limits are what a site allows. A zero limit is none; an empty Modes allows
// every mode.
type Limits struct {
	MinShare  gpu.Share // per card
	MaxShare  gpu.Share // per card
	MaxMemory Memory    // per card
	Modes     []gpu.Mode
	MaxCores  gpu.Share // per card
	MaxCards  int
	// Empty ones allow all.
	Priorities []gpu.Priority
	Policies   []gpu.Policy
}

// WithDefaults returns the request with the site's defaults in the fields that
// the user left open.
func (r Request) WithDefaults(d Defaults) Request {
	r.Mode, r.Priority, r.Policy = cmp.Or(r.Mode, d.Mode), cmp.Or(r.Priority, d.Priority), cmp.Or(r.Policy, d.Policy)
	r.site = siteDefaults{memory: d.Memory, cores: d.Cores}
	return r
}

// SplitByDefault returns options with the site's number of cards, where the user
// asked for a share alone and the number divides it.
func (o Options) SplitByDefault(d Defaults) Options {
	share, ok := parseShare(o["share"])
	for _, name := range []string{"cards", "mem", "cores"} {
		if _, given := o[name]; given {
			return o
		}
	}
	if !ok || d.Cards < 2 || share > gpu.FullCard || share%gpu.Share(d.Cards) != 0 {
		return o
	}
	return o.Merge(Options{"cards": fmt.Sprint(d.Cards)})
}

// Check holds the request against those of the site's limits that can be
// checked before a card is known; [Grant.Check] checks the rest. The error is
// an [*Error].
func (r Request) Check(l Limits) error {
	err := cmp.Or(notAllowed("--vgpu-mode", r.Mode, l.Modes), notAllowed("--vgpu-priority", r.Priority, l.Priorities),
		notAllowed("--vgpu-policy", r.Policy, l.Policies))
	if err != nil {
		return err
	}
	if err := checkCores(r.Cores, l); err != nil {
		return err
	}
	if err := CheckCards(r.Cards, l); err != nil {
		return err
	}
	if r.Share == 0 {
		return nil
	}
	return checkLimits(r.nominal(0), l)
}

func checkLimits(share gpu.Share, l Limits) error {
	switch {
	case share < l.MinShare:
		return &Error{"--gres=vgpu", fmt.Sprint(share), fmt.Sprintf(
			"this site allows no less than %d on one card, for example %d", l.MinShare, l.MinShare)}
	case l.MaxShare != 0 && share > l.MaxShare:
		return &Error{"--gres=vgpu", fmt.Sprint(share), fmt.Sprintf(
			"this site allows no more than %d on one card, for example %d", l.MaxShare, l.MaxShare)}
	}
	return nil
}

func checkCores(cores gpu.Share, l Limits) error {
	if l.MaxCores != 0 && cores > l.MaxCores {
		return &Error{"--vgpu-cores", fmt.Sprint(cores), fmt.Sprintf(
			"this site allows no more than %d %% of one card's compute, for example --vgpu-cores=%d", l.MaxCores, l.MaxCores)}
	}
	return nil
}

// CheckCards holds a number of cards against the site's limits. The error is an
// [*Error].
func CheckCards(n int, l Limits) error {
	if l.MaxCards == 1 && n > 1 {
		return &Error{"--vgpu-cards", fmt.Sprint(n), fmt.Sprintf(
			"this site allows a job no more than one card of one node, for example --gres=vgpu:%d", gpu.FullCard)}
	}
	if l.MaxCards != 0 && n > l.MaxCards {
		return &Error{"--vgpu-cards", fmt.Sprint(n), fmt.Sprintf(
			"this site allows a job no more than %d cards of one node, for example --gres=vgpu:%d", l.MaxCards, l.MaxCards*int(gpu.FullCard))}
	}
	return nil
}

// notAllowed is the error for a word that the site does not allow; an empty list allows all.
func notAllowed[T ~string](option string, given T, allowed []T) error {
	if given == "" || len(allowed) == 0 || slices.Contains(allowed, given) {
		return nil
	}
	text := string(allowed[0])
	for i, word := range allowed[1:] {
		if i == len(allowed)-2 {
			text += " and " + string(word)
		} else {
			text += ", " + string(word)
		}
	}
	return &Error{option, string(given), "this site allows " + text}
}

// Grant is what a request amounts to on one card.
type Grant struct {
	Units  gpu.Share // shards it takes
	Cores  gpu.Share // compute share, <= Units
	Memory gpu.Bytes // limit, > 0
}

// OnCard returns what the request gets on a card, within the given shards
// (units, 1 to 100) of it. Without an option, memory and cores follow the
// user's share. It refuses memory or cores that the units do not cover, or
// lowers them if Clamp is set. The error is an [*Error].
func (r Request) OnCard(units gpu.Share, card gpu.Card) (Grant, error) {
	share := min(r.nominal(units), units)
	cores, err := r.coresOn(share, units)
	if err != nil {
		return Grant{}, err
	}
	if err := r.checkCeiling(cores); err != nil && !r.Clamp {
		return Grant{}, err
	}
	memory, err := r.memoryOn(share, units, card)
	if err != nil {
		return Grant{}, err
	}
	return Grant{Units: units, Cores: cores, Memory: memory}, nil
}

// coresOn never returns more than the units: the sum of compute shares of a
// card's jobs is then at most the card.
func (r Request) coresOn(share, units gpu.Share) (gpu.Share, error) {
	switch {
	case r.Cores == 0 && r.site.cores != 0:
		return min(r.site.cores, units), nil
	case r.Cores == 0:
		return share, nil
	case r.Cores <= units:
		return r.Cores, nil
	case r.Clamp:
		return units, nil
	}
	return 0, &Error{"--vgpu-cores", fmt.Sprint(r.Cores), fmt.Sprintf(
		"want at most %d, the share of the card that the job holds; or --gres=vgpu:%d", units, r.Cores)}
}

func (r Request) memoryOn(share, units gpu.Share, card gpu.Card) (gpu.Bytes, error) {
	covered := card.MemoryShare(units)
	want := wholeMiB(card.MemoryShare(share))
	switch {
	case r.Memory.Percent != 0:
		want = wholeMiB(card.MemoryShare(gpu.Share(r.Memory.Percent)))
	case r.Memory.Bytes != 0:
		want = r.Memory.Bytes
	case r.site.memory.Percent != 0:
		want = min(wholeMiB(card.MemoryShare(gpu.Share(r.site.memory.Percent))), wholeMiB(covered))
	case r.site.memory.Bytes != 0:
		want = min(r.site.memory.Bytes, wholeMiB(covered))
	}
	switch {
	case want <= covered:
		return want, nil
	case r.Clamp:
		return wholeMiB(covered), nil
	case want > card.Memory:
		return 0, &Error{"--vgpu-mem", r.Options()["mem"], fmt.Sprintf(
			"want at most %s, the memory of card %d, for example %s",
			card.Memory, card.Index, wholeMiB(card.Memory).Compact())}
	}
	return 0, &Error{"--vgpu-mem", r.Options()["mem"], fmt.Sprintf(
		"want at most %s, which the share %d covers of the %s of card %d; or --gres=vgpu:%d",
		wholeMiB(covered), units, card.Memory, card.Index, want.Of(card.Memory))}
}

// wholeMiB rounds down, so that people read whole numbers; a size below 1 MiB
// is left as it is, because no limit may become 0.
func wholeMiB(b gpu.Bytes) gpu.Bytes {
	if b < gpu.MiB {
		return b
	}
	return b - b%gpu.MiB
}

// Check holds what was granted on a card against the site's limits. The error
// is an [*Error].
func (g Grant) Check(l Limits, card gpu.Card) error {
	if err := checkLimits(g.Units, l); err != nil {
		return err
	}
	if err := checkCores(g.Cores, l); err != nil {
		return err
	}
	most := l.MaxMemory.Bytes
	if l.MaxMemory.Percent != 0 {
		most = wholeMiB(card.MemoryShare(gpu.Share(l.MaxMemory.Percent)))
	}
	if most != 0 && g.Memory > most {
		return &Error{"--vgpu-mem", g.Memory.Compact(), fmt.Sprintf(
			"this site allows no more than %s on one card, for example %s", most, most.Compact())}
	}
	return nil
}

// DominantOnCard returns the shards that the request needs on each card of
// that memory: the largest of its share, its memory in hundredths of the card
// rounded up, and its cores; the whole card where no other job may be on it.
// Above 100 it can never fit.
func (r Request) DominantOnCard(cardMemory gpu.Bytes) gpu.Share {
	memory := r.Memory.Percent
	if r.Memory.Bytes != 0 {
		memory = r.Memory.Bytes.Of(cardMemory)
	}
	share := max(r.nominal(0), r.Cores, gpu.Share(memory))
	if r.Policy == gpu.Exclusive && share > 0 {
		return max(share, gpu.FullCard)
	}
	return share
}

// Dominant returns the shards that slurmctld must count for the request:
// DominantOnCard for each of its cards.
func Dominant(r Request, cardMemory gpu.Bytes) gpu.Share {
	const most = ^gpu.Share(0)
	one, n := r.DominantOnCard(cardMemory), gpu.Share(max(1, r.Cards))
	if one > most/n {
		return most
	}
	return one * n
}
