// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"math"
	"strings"
	"testing"
)

func TestSizesThatAreRight(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0":                    0,
		"1":                    1,
		"1024":                 KiB,
		"8K":                   8 * KiB,
		"8k":                   8 * KiB,
		"8G":                   8 * GiB,
		"8g":                   8 * GiB,
		"8GiB":                 8 * GiB,
		"8gib":                 8 * GiB,
		"8GIB":                 8 * GiB,
		"1536M":                1536 * MiB,
		"1536MiB":              1536 * MiB,
		"2T":                   2 * TiB,
		"2TiB":                 2 * TiB,
		"10":                   10,
		"18446744073709551615": math.MaxUint64,
		"16777215T":            16777215 * TiB,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestSizesThatAreRefused(t *testing.T) {
	for text, test := range map[string]struct{ want, example string }{
		"":                     {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"1.5g":                 {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"1.5":                  {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"0.5T":                 {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"2.25GiB":              {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"1.x5G":                {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"010m":                 {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"00":                   {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"-1":                   {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"-8G":                  {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"+8G":                  {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"G":                    {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"eight":                {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		" 8G":                  {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"8 G":                  {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"8G ":                  {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"8Gx":                  {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"8GG":                  {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"8Gi":                  {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"8GB":                  {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"512mb":                {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"8P":                   {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"8B":                   {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"8e9":                  {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"0x10":                 {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"1_000":                {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"8G\n":                 {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"٨G":                   {"want a whole number, then K, M, G or T (powers of 1024)", "8G"},
		"18446744073709551616": {"want a size below", "80G"},
		"16777216T":            {"want a size below", "80G"},
	} {
		got, err := ParseBytes(text)
		if err == nil || !strings.HasPrefix(err.Error(), test.want) || !strings.HasSuffix(err.Error(), ", for example "+test.example) {
			t.Errorf("%q: got %d, %v; want …%s…, for example %s", text, got, err, test.want, test.example)
		}
		if n, err := ParseBytes(test.example); err != nil || n == 0 {
			t.Errorf("%q: the example %q is not right itself: %v", text, test.example, err)
		}
	}
}

func TestSizesAreWrittenForPeopleAndForMachines(t *testing.T) {
	for size, want := range map[Bytes][2]string{
		0:                    {"0 B", "0"},
		1000:                 {"1000 B", "1000"},
		8 * GiB:              {"8 GiB", "8G"},
		1536 * MiB:           {"1536 MiB", "1536M"},
		143771 * MiB:         {"143771 MiB", "143771M"},
		2 * TiB:              {"2 TiB", "2T"},
		4 * KiB:              {"4 KiB", "4K"},
		1500 * KiB:           {"1.5 MiB", "1500K"},
		GiB + 1:              {"1.0 GiB", "1073741825"},
		math.MaxUint64:       {"16777216.0 TiB", "18446744073709551615"},
		Bytes(8*GiB + 5*KiB): {"8.0 GiB", "8388613K"},
	} {
		if got := size.String(); got != want[0] {
			t.Errorf("%d: String is %q, want %q", size, got, want[0])
		}
		if got := size.Compact(); got != want[1] {
			t.Errorf("%d: Compact is %q, want %q", size, got, want[1])
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"8G", "1.5g", "010m", "", "-1", "18446744073709551616T", "1.99999999999999999999T", "0.5K"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseBytes(s)
		if err != nil {
			return
		}
		if again, err := ParseBytes(n.Compact()); err != nil || again != n {
			t.Fatalf("%q is %d, written %q, read %d, %v", s, n, n.Compact(), again, err)
		}
	})
}

func TestHundredthsAreRoundedUp(t *testing.T) {
	for _, test := range []struct {
		part, total Bytes
		want        Percent
	}{
		{0, 80 * GiB, 0},
		{1, 80 * GiB, 1},
		{8 * GiB, 80 * GiB, 10},
		{8*GiB + 1, 80 * GiB, 11},
		{80 * GiB, 80 * GiB, 100},
		{80*GiB + 1, 80 * GiB, 101},
		{160 * GiB, 80 * GiB, 200},
		{math.MaxUint64, math.MaxUint64, 100},
		{math.MaxUint64, 1, math.MaxUint32},
		{math.MaxUint64 / 3, 7, math.MaxUint32},
		{5, 0, 0},
	} {
		if got := test.part.Of(test.total); got != test.want {
			t.Errorf("%d of %d: got %d, want %d", test.part, test.total, got, test.want)
		}
	}
}

// The two directions must agree: shards that cover an amount cover it.
func TestAShareOfTheDominantSizeCoversTheMemory(t *testing.T) {
	for _, total := range []Bytes{143771 * MiB, 81559 * MiB, 80 * GiB, 99, 101, math.MaxUint64} {
		for share := Share(1); share <= 100; share++ {
			card := Card{Memory: total}
			covered := card.MemoryShare(share)
			if got := covered.Of(total); got > Percent(share) {
				t.Errorf("share %d of %d covers %d, which needs %d", share, total, covered, got)
			}
			if covered < total && share < 100 {
				if got := (covered + 1).Of(total); got != Percent(share)+1 {
					t.Errorf("one byte more than share %d of %d needs %d", share, total, got)
				}
			}
		}
	}
	if got := (Card{Memory: 7}).MemoryShare(250); got != 7 {
		t.Errorf("250 %% of a card of 7 bytes is %d", got)
	}
}

func TestModes(t *testing.T) {
	for text, want := range map[string]struct {
		mode    Mode
		ceiling Share
		written string
	}{
		"hard":     {Hard, 0, "hard"},
		"soft":     {Soft, 0, "soft"},
		"soft:80":  {Soft, 80, "soft:80"},
		"soft:1":   {Soft, 1, "soft:1"},
		"soft:100": {Soft, 0, "soft"},
		"off":      {Off, 0, "off"},
	} {
		mode, ceiling, ok := ParseMode(text)
		if !ok || mode != want.mode || ceiling != want.ceiling {
			t.Errorf("%q: got %s, %d, %v", text, mode, ceiling, ok)
		}
		if got := FormatMode(mode, ceiling); got != want.written {
			t.Errorf("%q: written %q, want %q", text, got, want.written)
		}
	}
	for _, text := range []string{"", "Hard", "turbo", "soft:0", "soft:", "soft:101", "soft:080", "soft:8%", "hard:80", "off:1"} {
		if mode, ceiling, ok := ParseMode(text); ok {
			t.Errorf("%q: got %s, %d", text, mode, ceiling)
		}
	}
}

func TestCounts(t *testing.T) {
	for _, text := range []string{"", "0", "-5", "+5", "05", "5 ", "5%", "5.0", "17", "4294967297", "five"} {
		if got, ok := ParseCount(text, 16); ok {
			t.Errorf("count %q: got %d", text, got)
		}
	}
	if got, ok := ParseCount("16", 16); !ok || got != 16 {
		t.Errorf("16: got %d, %v", got, ok)
	}
}

func TestScaled(t *testing.T) {
	card := Card{Memory: 143771 * MiB}
	for scaling, want := range map[float64]Bytes{1: 143771 * MiB, 1.5: 215656 * MiB, 2: 287542 * MiB, 16: 2300336 * MiB, 0: 143771 * MiB} {
		got := card.Scaled(scaling)
		if got.Memory != want || got.Physical != card.Memory {
			t.Errorf("scaled by %v: %s of %s, want %s of %s", scaling, got.Memory, got.Physical, want, card.Memory)
		}
		// Scaling what was scaled starts again from the card's own memory.
		if again := got.Scaled(scaling); again != got {
			t.Errorf("scaled by %v twice: %+v, want %+v", scaling, again, got)
		}
	}
}

func TestPhysicalPart(t *testing.T) {
	card := Card{Memory: 80 * GiB}
	if got := card.PhysicalPart(3 * GiB); got != 3*GiB {
		t.Errorf("without scaling: %s, want all of it", got)
	}
	double := card.Scaled(2)
	for part, want := range map[Bytes]Bytes{160 * GiB: 80 * GiB, 48 * GiB: 24 * GiB, 1: 0, 0: 0, 999 * TiB: 80 * GiB} {
		if got := double.PhysicalPart(part); got != want {
			t.Errorf("%s of twice the card: %s, want %s", part, got, want)
		}
	}
	// However the parts are cut, the card has them all.
	odd := Card{Memory: 143771 * MiB}.Scaled(1.7)
	var sum Bytes
	for share := Share(1); share <= 13; share++ { // 91 %
		sum += odd.PhysicalPart(odd.MemoryShare(share))
	}
	if sum += odd.PhysicalPart(odd.MemoryShare(9)); sum > odd.Physical || sum < odd.Physical-20 {
		t.Errorf("parts of 100 %% are %d of %d bytes", sum, odd.Physical)
	}
}
