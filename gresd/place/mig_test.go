// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// A program sees one MIG instance, whatever its job was given.
func TestAJobHasOneMIGInstance(t *testing.T) {
	cards := node(4)
	for i := range cards[:2] {
		cards[i].Instance = gpu.Instance{GPU: "GPU-0"}
	}
	if d, err := Check(cards, nil, share(30, 1), []CardChoice{{0, 30}}); err != nil || len(d.Placement.Cards) != 1 {
		t.Errorf("one instance: %+v, %v", d, err)
	}
	d, err := Check(cards, nil, share(60, 2), []CardChoice{{1, 30}, {2, 30}})
	if !errors.Is(err, ErrNoCard) || errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), "card 1 (GPU-01) is a MIG instance, of which a program can use one") {
		t.Errorf("an instance and a card: %+v, %v", d, err)
	}
	if d, err := Choose(cards, used(cards, 0, 0, 50, 50), share(30, 1), nil); err != nil || d.Placement.Cards[0].Index != 3 {
		t.Errorf("the fullest that fits: %+v, %v", d, err)
	}
	d, err = Choose(cards, nil, share(60, 2), nil)
	if err != nil || len(d.Placement.Cards) != 2 || d.Placement.Cards[0].Index != 2 {
		t.Errorf("two cards: %+v, %v", d, err)
	}
	if reasons := reasonsOf(d); !slices.Equal(reasons, []Reason{OneOfMIG, OneOfMIG, Taken, Taken}) {
		t.Errorf("reasons %v", reasons)
	}
	if d, err := Choose(cards[:2], nil, share(60, 2), nil); !errors.Is(err, ErrNoCard) {
		t.Errorf("two instances: %+v, %v", d, err)
	}
}
