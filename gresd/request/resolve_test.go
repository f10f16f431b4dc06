// SPDX-License-Identifier: Apache-2.0

package request

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

var card80 = gpu.Card{Index: 2, Memory: 80 * gpu.GiB}

func TestWhatARequestGetsOnACard(t *testing.T) {
	for name, test := range map[string]struct {
		request Request
		units   gpu.Share
		want    Grant
	}{
		"memory and cores follow the share":        {Request{Share: 30, Cards: 1}, 30, Grant{30, 30, 24 * gpu.GiB}},
		"without a share they follow the shards":   {Request{}, 30, Grant{30, 30, 24 * gpu.GiB}},
		"they follow the share, not the dominant":  {Request{Share: 10, Cards: 1, Memory: Memory{Percent: 50}}, 50, Grant{50, 10, 40 * gpu.GiB}},
		"cores above the share, within the shards": {Request{Share: 10, Cards: 1, Cores: 50}, 50, Grant{50, 50, 8 * gpu.GiB}},
		"cores below the share":                    {Request{Share: 30, Cards: 1, Cores: 5}, 30, Grant{30, 5, 24 * gpu.GiB}},
		"memory below the share":                   {Request{Share: 30, Cards: 1, Memory: Memory{Bytes: gpu.GiB}}, 30, Grant{30, 30, gpu.GiB}},
		"memory that the shards just cover":        {Request{Memory: Memory{Bytes: 24 * gpu.GiB}}, 30, Grant{30, 30, 24 * gpu.GiB}},
		"memory that is no whole mebibyte":         {Request{Memory: Memory{Bytes: 1000}}, 30, Grant{30, 30, 1000}},
		"each of two cards":                        {Request{Share: 60, Cards: 2}, 30, Grant{30, 30, 24 * gpu.GiB}},
		"a whole card":                             {Request{Share: 100, Cards: 1}, 100, Grant{100, 100, 80 * gpu.GiB}},
		"a whole card with less memory":            {Request{Share: 100, Cards: 1, Memory: Memory{Bytes: gpu.GiB}}, 100, Grant{100, 100, gpu.GiB}},
		"a share that claims more than the shards": {Request{Share: 90, Cards: 1}, 30, Grant{30, 30, 24 * gpu.GiB}},
		"a het job's cores are lowered":            {Request{Share: 20, Cards: 1, Cores: 50, Clamp: true}, 20, Grant{20, 20, 16 * gpu.GiB}},
		"a het job's memory is lowered":            {Request{Share: 20, Cards: 1, Memory: Memory{Bytes: 60 * gpu.GiB}, Clamp: true}, 20, Grant{20, 20, 16 * gpu.GiB}},
		"a het job's ceiling is no matter":         {Request{Mode: gpu.Soft, Ceiling: 10, Clamp: true}, 20, Grant{20, 20, 16 * gpu.GiB}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.request.OnCard(test.units, card80)
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestMemoryIsWholeMebibytes(t *testing.T) {
	g, err := Request{}.OnCard(30, gpu.Card{Memory: 143771 * gpu.MiB})
	if err != nil || g.Memory != 43131*gpu.MiB {
		t.Errorf("30 %% of 143771 MiB is %v, %v; want 43131 MiB", g.Memory, err)
	}
}

func TestWhatTheShardsDoNotCoverIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		request Request
		units   gpu.Share
		want    string
	}{
		"cores": {
			Request{Cores: 50},
			30,
			`--vgpu-cores: "50": want at most 30, the share of the card that the job holds; or --gres=vgpu:50`,
		},
		"memory": {
			Request{Memory: Memory{Bytes: 30 * gpu.GiB}},
			30,
			`--vgpu-mem: "30G": want at most 24 GiB, which the share 30 covers of the 80 GiB of card 2; or --gres=vgpu:38`,
		},
		"memory as a part": {
			Request{Memory: Memory{Percent: 31}},
			30,
			`--vgpu-mem: "31%": want at most 24 GiB, which the share 30 covers of the 80 GiB of card 2; or --gres=vgpu:31`,
		},
		"memory above the card": {
			Request{Memory: Memory{Bytes: 100 * gpu.GiB}},
			100,
			`--vgpu-mem: "100G": want at most 80 GiB, the memory of card 2, for example 80G`,
		},
		"a ceiling": {
			Request{Mode: gpu.Soft, Ceiling: 20},
			30,
			`--vgpu-mode: "soft:20": want a ceiling of at least the compute share 30, for example --vgpu-mode=soft:30`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.request.OnCard(test.units, card80)
			var mistake *Error
			if !errors.As(err, &mistake) || err.Error() != test.want {
				t.Errorf("got %+v, error\n\t%v\nwant\n\t%s", got, err, test.want)
			}
		})
	}
}

func TestTheDominantShareCoversEverything(t *testing.T) {
	for name, test := range map[string]struct {
		request        Request
		each, dominant gpu.Share
	}{
		"the share":                    {Request{Share: 30, Cards: 1}, 30, 30},
		"the memory, rounded up":       {Request{Share: 10, Cards: 1, Memory: Memory{Bytes: 30 * gpu.GiB}}, 38, 38},
		"the memory as a part":         {Request{Share: 10, Cards: 1, Memory: Memory{Percent: 25}}, 25, 25},
		"the cores":                    {Request{Share: 10, Cards: 1, Cores: 40}, 40, 40},
		"each of two cards":            {Request{Share: 60, Cards: 2}, 30, 60},
		"each of two cards, by memory": {Request{Share: 20, Cards: 2, Memory: Memory{Percent: 25}}, 25, 50},
		"memory without a share":       {Request{Memory: Memory{Bytes: 8 * gpu.GiB}}, 10, 10},
		"no other job on the cards":    {Request{Share: 60, Cards: 2, Policy: gpu.Exclusive}, 100, 200},
		"exclusive without a share":    {Request{Policy: gpu.Exclusive}, 0, 0},
		"nothing":                      {Request{}, 0, 0},
		"more memory than a card":      {Request{Memory: Memory{Bytes: 81 * gpu.GiB}}, 102, 102},
	} {
		t.Run(name, func(t *testing.T) {
			each, dominant := test.request.DominantOnCard(card80.Memory), Dominant(test.request, card80.Memory)
			if each != test.each || dominant != test.dominant {
				t.Errorf("got %d and %d, want %d and %d", each, dominant, test.each, test.dominant)
			}
		})
	}
}

func TestTheDominantShareDoesNotOverflow(t *testing.T) {
	huge := Request{Cards: 16, Memory: Memory{Bytes: math.MaxUint64}}
	if got := Dominant(huge, card80.Memory); got != math.MaxUint32 {
		t.Errorf("got %d, want %d", got, uint32(math.MaxUint32))
	}
}

func TestDefaultsFillOnlyWhatIsOpen(t *testing.T) {
	site := Defaults{Mode: gpu.Soft, Priority: gpu.Low, Policy: gpu.Spread}
	if got := (Request{}).WithDefaults(site); got != (Request{Mode: gpu.Soft, Priority: gpu.Low, Policy: gpu.Spread}) {
		t.Errorf("of an open request: %+v", got)
	}
	asked := Request{Mode: gpu.Soft, Ceiling: 80, Priority: gpu.High, Policy: gpu.Binpack}
	if got := asked.WithDefaults(Defaults{Mode: gpu.Hard, Priority: gpu.Low, Policy: gpu.Spread}); got != asked {
		t.Errorf("of a full request: %+v", got)
	}
}

func TestSiteLimits(t *testing.T) {
	limits := Limits{MinShare: 10, MaxShare: 50, MaxMemory: Memory{Percent: 25}, Modes: []gpu.Mode{gpu.Hard, gpu.Soft}}
	for name, test := range map[string]struct {
		request Request
		want    string
	}{
		"within":                {Request{Share: 30, Cards: 1, Mode: gpu.Soft}, ""},
		"no share is known yet": {Request{}, ""},
		"too small":             {Request{Share: 9, Cards: 1}, `--gres=vgpu: "9": this site allows no less than 10 on one card, for example 10`},
		"too large":             {Request{Share: 60, Cards: 1}, `--gres=vgpu: "60": this site allows no more than 50 on one card, for example 50`},
		"each of two cards":     {Request{Share: 100, Cards: 2}, ""},
		"too small on each":     {Request{Share: 12, Cards: 2}, `--gres=vgpu: "6": this site allows no less`},
		"a mode":                {Request{Mode: gpu.Off}, `--vgpu-mode: "off": this site allows hard and soft`},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.request.Check(limits)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want)) {
				t.Errorf("error is %v, want %q", err, test.want)
			}
		})
	}
	for name, test := range map[string]struct {
		grant Grant
		want  string
	}{
		"within":          {Grant{50, 50, 20 * gpu.GiB}, ""},
		"too many shards": {Grant{51, 51, gpu.GiB}, `--gres=vgpu: "51": this site allows no more than 50`},
		"too few shards":  {Grant{9, 9, gpu.GiB}, `--gres=vgpu: "9": this site allows no less than 10`},
		"too much memory": {Grant{50, 50, 21 * gpu.GiB}, `--vgpu-mem: "21G": this site allows no more than 20 GiB on one card, for example 20G`},
	} {
		t.Run("grant "+name, func(t *testing.T) {
			err := test.grant.Check(limits, card80)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want)) {
				t.Errorf("error is %v, want %q", err, test.want)
			}
		})
	}
	if err := (Grant{100, 100, 80 * gpu.GiB}).Check(Limits{}, card80); err != nil {
		t.Errorf("without limits: %v", err)
	}
	if err := (Grant{100, 100, 80 * gpu.GiB}).Check(Limits{MaxMemory: Memory{Bytes: 64 * gpu.GiB}}, card80); err == nil {
		t.Error("more than max_mem was allowed")
	}
	if err := (Request{Mode: gpu.Off, Share: 1, Cards: 1}).Check(Limits{}); err != nil {
		t.Errorf("without limits: %v", err)
	}
}
