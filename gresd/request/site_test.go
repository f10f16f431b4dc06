// SPDX-License-Identifier: Apache-2.0

package request

import (
	"maps"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// What a site gives where the user left it open is never above the share, which
// is all that slurmctld has counted.
func TestSiteDefaultsOfMemoryAndCores(t *testing.T) {
	card := gpu.Card{Memory: 100 * gpu.GiB}
	for name, c := range map[string]struct {
		options Options
		site    Defaults
		units   gpu.Share
		cores   gpu.Share
		memory  gpu.Bytes
	}{
		"below the share":     {Options{"share": "30"}, Defaults{Memory: Memory{Bytes: 2 * gpu.GiB}, Cores: 10}, 30, 10, 2 * gpu.GiB},
		"above the share":     {Options{"share": "30"}, Defaults{Memory: Memory{Bytes: 80 * gpu.GiB}, Cores: 90}, 30, 30, 30 * gpu.GiB},
		"a part of the card":  {Options{"share": "30"}, Defaults{Memory: Memory{Percent: 5}}, 30, 30, 5 * gpu.GiB},
		"above, as a part":    {Options{"share": "30"}, Defaults{Memory: Memory{Percent: 50}}, 30, 30, 30 * gpu.GiB},
		"the user said it":    {Options{"share": "30", "mem": "7G", "cores": "20"}, Defaults{Memory: Memory{Bytes: gpu.GiB}, Cores: 1}, 30, 20, 7 * gpu.GiB},
		"only what was open":  {Options{"share": "30", "cores": "20"}, Defaults{Memory: Memory{Bytes: gpu.GiB}, Cores: 1}, 30, 20, gpu.GiB},
		"shards for the rest": {Options{"share": "10", "mem": "40G"}, Defaults{Cores: 20}, 40, 20, 40 * gpu.GiB},
	} {
		r, err := Parse(c.options)
		if err != nil {
			t.Fatal(err)
		}
		r = r.WithDefaults(c.site)
		g, err := r.OnCard(c.units, card)
		if err != nil || g.Cores != c.cores || g.Memory != c.memory {
			t.Errorf("%s: %+v, %v; want %d and %s", name, g, err, c.cores, c.memory)
		}
	}
}

func TestSiteLimitsOfEachOption(t *testing.T) {
	limits := Limits{
		MaxCores: 50, MaxCards: 2, Priorities: []gpu.Priority{gpu.Normal, gpu.Low}, Policies: []gpu.Policy{gpu.Binpack, gpu.Spread},
	}
	for options, want := range map[string]string{
		"share=30,cores=50,cards=2,priority=low,policy=spread": "",
		"share=60,cores=51":           `--vgpu-cores: "51": this site allows no more than 50 % of one card's compute, for example --vgpu-cores=50`,
		"share=300":                   `--vgpu-cards: "3": this site allows a job no more than 2 cards of one node, for example --gres=vgpu:200`,
		"share=30,cards=3":            `--vgpu-cards: "3": this site allows`,
		"share=30,priority=high":      `--vgpu-priority: "high": this site allows normal and low`,
		"share=30,policy=exclusive":   `--vgpu-policy: "exclusive": this site allows binpack and spread`,
		"mem=8G,priority=high":        `--vgpu-priority: "high"`,
		"share=100,policy=topology":   `--vgpu-policy: "topology": this site allows`,
		"share=30,mode=soft,cores=20": "",
	} {
		words, err := ParseComment("vgpu(" + options + ")")
		if err != nil {
			t.Fatal(err)
		}
		r, err := Parse(words)
		if err != nil {
			t.Fatal(err)
		}
		err = r.Check(limits)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", options, err, want)
		}
	}
	// Cores that follow the share are held on the card.
	if err := (Grant{Units: 60, Cores: 60}).Check(limits, gpu.Card{}); err == nil || !strings.Contains(err.Error(), "--vgpu-cores") {
		t.Errorf("cores of the share: %v", err)
	}
}

func TestSplitByDefault(t *testing.T) {
	two := Defaults{Cards: 2}
	for options, want := range map[string]string{
		"share=30":           "2",
		"share=31":           "", // two do not divide it
		"share=200":          "", // whole cards
		"share=30,cards=1":   "1",
		"share=30,mem=8G":    "", // slurmctld has counted it for one card
		"share=30,cores=20":  "",
		"share=much":         "",
		"share=40,mode=soft": "2",
	} {
		words, err := ParseComment("vgpu(" + options + ")")
		if err != nil {
			t.Fatal(err)
		}
		before := maps.Clone(words)
		if got := words.SplitByDefault(two)["cards"]; got != want || !maps.Equal(words, before) {
			t.Errorf("%s: %q cards, want %q", options, got, want)
		}
	}
	if got := (Options{"share": "30"}).SplitByDefault(Defaults{})["cards"]; got != "" {
		t.Errorf("without a default %q cards", got)
	}
}
