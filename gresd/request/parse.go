// SPDX-License-Identifier: Apache-2.0

package request

import (
	"errors"
	"fmt"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// unwrapValue drops the given value from a value's error: [Error] has it.
func unwrapValue(err error) error {
	var value *gpu.ValueError
	if errors.As(err, &value) {
		return fmt.Errorf("%s, for example %s", value.Want, value.Example)
	}
	return err
}

// parseShare reads the N of --gres=vgpu:N. Whether N fits the number of cards
// is checked once that is known.
func parseShare(s string) (gpu.Share, error) {
	n, err := gpu.ParseCount(s, MaxCards*uint32(gpu.FullCard))
	return gpu.Share(n), err
}

// ParseMemory reads "8G" or "25%": an amount per card. The error has no object;
// the caller names the option or key.
func ParseMemory(s string) (Memory, error) {
	if number, ok := strings.CutSuffix(s, "%"); ok {
		n, err := gpu.ParsePercent(number)
		if err != nil {
			return Memory{}, errors.New("want 1% to 100% of a card, for example 25%")
		}
		return Memory{Percent: n}, nil
	}
	n, err := gpu.ParseBytes(s)
	if err != nil {
		return Memory{}, unwrapValue(err)
	}
	if n == 0 {
		return Memory{}, errors.New("want more than 0, for example 8G or 25%; without the option memory follows the share")
	}
	return Memory{Bytes: n}, nil
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
		return &Error{Option: flagOf("cards"), Given: fmt.Sprint(r.Cards), Want: fmt.Sprintf(
			"want a number of cards that divides the share %d, for example %s=%d", r.Share, flagOf("cards"), fits)}
	case r.Share/gpu.Share(r.Cards) > gpu.FullCard:
		return &Error{Option: flagOf("cards"), Given: fmt.Sprint(r.Cards), Want: fmt.Sprintf(
			"want %d cards for the share %d, for example %s=%d", fits, r.Share, flagOf("cards"), fits)}
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

// coresKnown is the compute share as far as the options tell it.
func (r Request) coresKnown() gpu.Share {
	if r.Cores != 0 {
		return r.Cores
	}
	return r.nominal(0)
}

// checkCeiling holds the ceiling of soft mode against the compute share.
func (r Request) checkCeiling(cores gpu.Share) error {
	if r.Ceiling == 0 || r.Ceiling >= cores {
		return nil
	}
	return &Error{Option: flagOf("mode"), Given: gpu.FormatMode(r.Mode, r.Ceiling), Want: fmt.Sprintf(
		"want a ceiling of at least the compute share %d, for example --vgpu-mode=soft:%d", cores, cores)}
}
