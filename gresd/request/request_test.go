// SPDX-License-Identifier: Apache-2.0

package request

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

func TestOptionsThatAreRight(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		want    Request
	}{
		"nothing":                        {Options{}, Request{}},
		"nil":                            {nil, Request{}},
		"a share":                        {Options{"share": "30"}, Request{Share: 30, Cards: 1}},
		"a whole card":                   {Options{"share": "100"}, Request{Share: 100, Cards: 1}},
		"three whole cards":              {Options{"share": "300"}, Request{Share: 300, Cards: 3}},
		"a share split over two cards":   {Options{"share": "60", "cards": "2"}, Request{Share: 60, Cards: 2}},
		"sixty of each of two cards":     {Options{"share": "120", "cards": "2"}, Request{Share: 120, Cards: 2}},
		"two cards split over four":      {Options{"share": "200", "cards": "4"}, Request{Share: 200, Cards: 4}},
		"memory as a size":               {Options{"mem": "8G"}, Request{Memory: Memory{Bytes: 8 * gpu.GiB}}},
		"memory as a part of the card":   {Options{"mem": "25%"}, Request{Memory: Memory{Percent: 25}}},
		"cores above the share":          {Options{"share": "30", "cores": "50"}, Request{Share: 30, Cards: 1, Cores: 50}},
		"soft mode with a ceiling":       {Options{"mode": "soft:80"}, Request{Mode: gpu.Soft, Ceiling: 80}},
		"a ceiling that is the share":    {Options{"mode": "soft:30", "share": "30"}, Request{Mode: gpu.Soft, Ceiling: 30, Share: 30, Cards: 1}},
		"a ceiling of each of two cards": {Options{"mode": "soft:30", "share": "60", "cards": "2"}, Request{Mode: gpu.Soft, Ceiling: 30, Share: 60, Cards: 2}},
		"all there is": {
			Options{"share": "60", "mem": "8G", "cores": "20", "cards": "2", "mode": "off", "priority": "high", "policy": "topology"},
			Request{
				Share: 60, Cards: 2, Memory: Memory{Bytes: 8 * gpu.GiB}, Cores: 20,
				Mode: gpu.Off, Priority: gpu.High, Policy: gpu.Topology,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(test.options)
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func TestMistakesAreNamedForTheUser(t *testing.T) {
	// The words of all that a user meets: spank/plugin/options.c and job_submit.lua
	// have the same (TestAllClientsSayTheSame of tests/e2e).
	const (
		share    = `want 1 to 100 (hundredths of a card), 100 for each whole card, or with --vgpu-cards a share of several cards, for example --gres=vgpu:30 or --gres=vgpu:200`
		mem      = `want a whole number with K, M, G or T (powers of 1024), or 1% to 100% of the card, for example --vgpu-mem=8G`
		cores    = `want a whole number from 1 to 100, for example --vgpu-cores=30`
		cards    = `want a whole number from 1 to 16, for example --vgpu-cards=2`
		mode     = `want hard, soft, soft:CEILING (1 to 100) or off, for example --vgpu-mode=soft:80`
		priority = `want high, normal or low, for example --vgpu-priority=normal`
		policy   = `want binpack, spread, topology or exclusive, for example --vgpu-policy=binpack`
		engine   = `want time, mps, concurrent or auto, for example --vgpu-engine=time`
	)
	for name, test := range map[string]struct {
		options Options
		want    string
	}{
		"a share of nothing":               {Options{"share": "0"}, `--gres=vgpu: "0": ` + share},
		"a share just above a card":        {Options{"share": "101"}, `--gres=vgpu: "101": ` + share},
		"a share of one and a half cards":  {Options{"share": "150"}, `--gres=vgpu: "150": ` + share},
		"a share below nothing":            {Options{"share": "-5"}, `--gres=vgpu: "-5": ` + share},
		"an empty share":                   {Options{"share": ""}, `--gres=vgpu: "": ` + share},
		"a share with a percent sign":      {Options{"share": "30%"}, `--gres=vgpu: "30%": ` + share},
		"more whole cards than a grant":    {Options{"share": "1700"}, `--gres=vgpu: "1700": ` + share},
		"memory with a decimal":            {Options{"mem": "1.5g"}, `--vgpu-mem: "1.5g": ` + mem},
		"memory with a leading zero":       {Options{"mem": "010m"}, `--vgpu-mem: "010m": ` + mem},
		"no memory":                        {Options{"mem": "0"}, `--vgpu-mem: "0": ` + mem},
		"no memory, in gibibytes":          {Options{"mem": "0G"}, `--vgpu-mem: "0G": ` + mem},
		"empty memory":                     {Options{"mem": ""}, `--vgpu-mem: "": ` + mem},
		"no part of the card":              {Options{"mem": "0%"}, `--vgpu-mem: "0%": ` + mem},
		"more than the card":               {Options{"mem": "101%"}, `--vgpu-mem: "101%": ` + mem},
		"memory below nothing":             {Options{"mem": "-8G"}, `--vgpu-mem: "-8G": ` + mem},
		"no cores":                         {Options{"cores": "0"}, `--vgpu-cores: "0": ` + cores},
		"cores above a card":               {Options{"cores": "101"}, `--vgpu-cores: "101": ` + cores},
		"empty cores":                      {Options{"cores": ""}, `--vgpu-cores: "": ` + cores},
		"no cards":                         {Options{"cards": "0"}, `--vgpu-cards: "0": ` + cards},
		"more cards than a grant can hold": {Options{"cards": "17"}, `--vgpu-cards: "17": ` + cards},
		"several cards that are not said":  {Options{"share": "120"}, `--gres=vgpu: "120": ` + share},
		"one that no cards can have":       {Options{"share": "101", "cards": "2"}, `--gres=vgpu: "101": ` + share},
		"an example that divides, too":     {Options{"share": "150", "cards": "4"}, `--vgpu-cards: "4": want a number of cards that divides the share 150, for example --vgpu-cards=2`},
		"more than a card of each":         {Options{"share": "250", "cards": "2"}, `--vgpu-cards: "2": want 5 cards for the share 250, for example --vgpu-cards=5`},
		"cards that do not divide":         {Options{"share": "50", "cards": "3"}, `--vgpu-cards: "3": want a number of cards that divides the share 50, for example --vgpu-cards=1`},
		"more cards than hundredths":       {Options{"share": "2", "cards": "3"}, `--vgpu-cards: "3": want a number of cards that divides the share 2, for example --vgpu-cards=1`},
		"two cards' worth on one":          {Options{"share": "200", "cards": "1"}, `--vgpu-cards: "1": want 2 cards for the share 200, for example --vgpu-cards=2`},
		"an unknown mode":                  {Options{"mode": "turbo"}, `--vgpu-mode: "turbo": ` + mode},
		"an empty mode":                    {Options{"mode": ""}, `--vgpu-mode: "": ` + mode},
		"a ceiling of nothing":             {Options{"mode": "soft:0"}, `--vgpu-mode: "soft:0": ` + mode},
		"a ceiling of hard mode":           {Options{"mode": "hard:50"}, `--vgpu-mode: "hard:50": ` + mode},
		"a ceiling below the cores":        {Options{"mode": "soft:20", "cores": "30"}, `--vgpu-mode: "soft:20": want a ceiling of at least the compute share 30, for example --vgpu-mode=soft:30`},
		"a ceiling below the share":        {Options{"mode": "soft:20", "share": "40"}, `--vgpu-mode: "soft:20": want a ceiling of at least the compute share 40`},
		"an unknown priority":              {Options{"priority": "urgent"}, `--vgpu-priority: "urgent": ` + priority},
		"an unknown policy":                {Options{"policy": "random"}, `--vgpu-policy: "random": ` + policy},
		"an unknown engine":                {Options{"engine": "turbo"}, `--vgpu-engine: "turbo": ` + engine},
		"an unknown option":                {Options{"memory": "8G"}, `memory: "8G": unknown option, want one of share, mem, cores, cards, mode, priority, policy, engine`},
		"an option in capitals":            {Options{"MEM": "8G"}, `MEM: "8G": unknown option`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(test.options)
			var mistake *Error
			if !errors.As(err, &mistake) {
				t.Fatalf("got %+v, %v; want an Error", got, err)
			}
			if !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("error is\n\t%v\nwant\n\t%s…", err, test.want)
			}
			if got != (Request{}) {
				t.Errorf("a request came with the error: %+v", got)
			}
		})
	}
}

func TestTheFirstMistakeIsAlwaysTheSame(t *testing.T) {
	options := Options{"zz": "1", "aa": "2", "mem": "x", "share": "0"}
	first, _ := Parse(options)
	for range 50 {
		got, err := Parse(options)
		if got != first || !strings.HasPrefix(err.Error(), "aa:") {
			t.Fatalf("error is %v", err)
		}
	}
}

func TestALongValueDoesNotFloodTheMessage(t *testing.T) {
	for _, name := range Names() {
		_, err := Parse(Options{name: strings.Repeat("x", 100000)})
		if err == nil || len(err.Error()) > 400 {
			t.Errorf("%s: message is too long or absent", name)
		}
	}
}

func TestMergeKeepsTheOptionsOfTheFirst(t *testing.T) {
	prolog, token := Options{"mem": "8G"}, Options{"mem": "9G", "share": "30"}
	got := prolog.Merge(token)
	if want := (Options{"mem": "8G", "share": "30"}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(prolog) != 1 || len(token) != 2 {
		t.Errorf("Merge changed its input: %v, %v", prolog, token)
	}
	if got := Options(nil).Merge(nil); got == nil || len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

func TestRequestsSurviveJSON(t *testing.T) {
	for _, want := range []Request{
		{},
		{Share: 30, Cards: 1, Memory: Memory{Bytes: 8 * gpu.GiB}, Cores: 20, Mode: gpu.Soft, Ceiling: 80, Priority: gpu.Low, Policy: gpu.Spread, Clamp: true},
		{Memory: Memory{Percent: 25}},
	} {
		data, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Request
		if err := json.Unmarshal(data, &got); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", data, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("30", "8G", "30", "1", "soft:80", "high", "spread", "")
	f.Add("200", "25%", "", "2", "hard", "", "", "note vgpu(mem=8G,cores=30,mode=soft:80,share=30)")
	f.Add("0", "1.5g", "0", "0", "soft:0", "x", "y", "vgpu(")
	f.Add("\x1b[2J", "\u009b2J", "\xff", "", "", "", "", "vgpu(mem=\u009b,x\u0085=1)")
	f.Add("101", "010m", "101", "17", "soft:100", "normal", "topology", "vgpu(mem=1,mem=2) vgpu()")
	f.Fuzz(func(t *testing.T, share, mem, cores, cards, mode, priority, policy, comment string) {
		options := Options{}
		for i, value := range []string{share, mem, cores, cards, mode, priority, policy} {
			if value != "" {
				options[Names()[i]] = value
			}
		}
		check := func(options Options) {
			r, err := Parse(options)
			if err != nil {
				var mistake *Error
				if !errors.As(err, &mistake) {
					t.Fatalf("%v: error is %T", options, err)
				}
				checkLine(t, err)
				return
			}
			read, err := ParseComment("before " + FormatToken(r.Options()) + " after")
			if err != nil {
				t.Fatalf("%v: token %q: %v", options, FormatToken(r.Options()), err)
			}
			again, err := Parse(read)
			if err != nil || again != r {
				t.Fatalf("%v: read as %+v, written %q, read as %+v, %v", options, r, FormatToken(read), again, err)
			}
			if FormatToken(again.Options()) != FormatToken(r.Options()) {
				t.Fatalf("%v: written %q, then %q", options, FormatToken(r.Options()), FormatToken(again.Options()))
			}
			checkGrants(t, r)
		}
		check(options)
		token, err := ParseComment(comment)
		if err != nil {
			checkLine(t, err)
			return
		}
		check(token)
	})
}

// checkLine holds what a mistake may be in a list of jobs, or in a log.
func checkLine(t *testing.T, err error) {
	if strings.ContainsFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }) || len(err.Error()) > 512 {
		t.Fatalf("%q", err)
	}
}

// checkGrants holds what every request must keep, whatever the shards.
func checkGrants(t *testing.T, r Request) {
	card := gpu.Card{Memory: 143771 * gpu.MiB}
	for _, units := range []gpu.Share{1, 30, 99, 100} {
		for _, clamp := range []bool{false, true} {
			r.Clamp = clamp
			g, err := r.OnCard(units, card)
			if err != nil {
				if clamp {
					t.Fatalf("%+v on %d units: refused though it may be lowered: %v", r, units, err)
				}
				continue
			}
			if g.Units != units || g.Cores < 1 || g.Cores > units || g.Memory < 1 || g.Memory > card.MemoryShare(units) {
				t.Fatalf("%+v on %d units: granted %+v", r, units, g)
			}
		}
	}
	if d := r.DominantOnCard(card.Memory); d >= 1 && d <= 100 {
		r.Clamp = false
		if _, err := r.OnCard(d, card); err != nil {
			t.Fatalf("%+v: its dominant share %d does not cover it: %v", r, d, err)
		}
	}
}
