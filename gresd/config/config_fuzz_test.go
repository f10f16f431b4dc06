// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// FuzzFile: every text is a configuration that holds its own rules, or is
// refused with the file's name and lines that it has.
func FuzzFile(f *testing.F) {
	shipped, err := os.ReadFile("../../etc/vgpu.toml")
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{
		string(shipped), "", "version = 1", "version = 2", "version = 1.0", "version = \"1\"",
		"version = 1\n[limits]\nmax_mem = \"1.5g\"\nmin_share_percent = 4294967296",
		"version = 1\n[card.default]\nmem_scaling = nan\n[card.\"GPU-5f\"]\nmem_scaling = 2\n",
		"version = 1\ncard = 7\nlimits = []\npaths.run_dir = \"/run\"", "version = 1\n[[card]]\n", "version = 1\n[card.\"a.b\\\"c\"]\n",
		"version = 1\n[limits]\nmodes = [\"hard\", 7]\n[arbiter]\ntick_ms = -1\nperiod_us = 1e3\n[placement]\npatience = 1e3",
		"version = 1\n[mps]\nenabled = true\nauto = true\ndefault_engine = 3\n[limits]\nallow_off = 1\n[cuda]\n[placement]\nmode = []",
		"version = 1\n[metrics]\nlisten = \"0.0.0.0:1\"\n\"\" = 1\n[\"\"]\n", "version = 1979-05-27T07:32:00Z", "\xef\xbb\xbfversion = 1", "version = 1\r\n[log]\nlevel = 'info'",
	} {
		f.Add(s)
	}
	path := filepath.Join(f.TempDir(), "vgpu.toml")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path)
		if err != nil {
			checkErrors(t, err, path, strings.Count(text, "\n")+1)
			return
		}
		if err := c.Validate(); err != nil || c.Version != 1 || c.Path != path {
			t.Fatalf("accepted, but %v: %+v", err, c)
		}
		for name, card := range c.Cards {
			if !(card.MemScaling >= 1 && card.MemScaling <= 16) {
				t.Fatalf("card %q: scaling %v", name, card.MemScaling)
			}
		}
		if _, all := c.Cards[AllCards]; !all {
			t.Fatal("no settings for the other cards")
		}
		l := c.RequestLimits()
		if l.MinShare < 1 || l.MinShare > l.MaxShare || l.MaxShare > gpu.FullCard || len(l.Modes) == 0 {
			t.Fatalf("limits %+v", l)
		}
		if c.Limits.MaxMem != "" && l.MaxMemory == (request.Memory{}) {
			t.Fatalf("max_mem %q is no limit", c.Limits.MaxMem)
		}
	})
}

func checkErrors(t *testing.T, err error, path string, lines int) {
	t.Helper()
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			checkErrors(t, e, path, lines)
		}
		return
	}
	if !strings.HasPrefix(err.Error(), path+":") {
		t.Fatalf("an error that does not name the file: %v", err)
	}
	var key *KeyError
	if errors.As(err, &key) && (key.Line < 0 || key.Line > lines || key.What == "") {
		t.Fatalf("line %d of %d: %v", key.Line, lines, err)
	}
}

var memoryForm = regexp.MustCompile(`\A(?:([1-9][0-9]?|100)%|([1-9][0-9]*)(?:([kmgtKMGT])(?:[iI][bB])?)?)\z`)

// wantMemory reads a size or a percentage without any of the code under test.
func wantMemory(s string) (request.Memory, bool) {
	part := memoryForm.FindStringSubmatch(s)
	switch {
	case part == nil:
		return request.Memory{}, false
	case part[1] != "":
		n, err := strconv.Atoi(part[1])
		return request.Memory{Percent: gpu.Percent(n)}, err == nil
	}
	n, _ := new(big.Int).SetString(part[2], 10)
	if part[3] != "" {
		n.Lsh(n, 10*uint(strings.Index("kmgt", strings.ToLower(part[3]))+1))
	}
	return request.Memory{Bytes: gpu.Bytes(n.Uint64())}, n.IsUint64()
}

// FuzzMemoryValues: sizes, percentages and factors in their places in a file.
func FuzzMemoryValues(f *testing.F) {
	for _, s := range []string{"64G", "50%", "100%", "1.5g", "010m", "-1", " 4G", "4G ", "101%", "0%", "05%", "%", "4\u212a", "0", "18446744073709551616", "16777215TiB"} {
		f.Add(s, 1.5, uint64(143771<<20))
	}
	for _, x := range []float64{1, 16, 0.999, 16.001, -2, 0, math.NaN(), math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64, math.MaxFloat64, math.Nextafter(1, 0), math.Nextafter(16, 17)} {
		f.Add("64G", x, uint64(80<<30))
	}
	f.Add("1", 16.0, uint64(1<<60))
	f.Add("1", 1.0000001, uint64(0))
	f.Fuzz(func(t *testing.T, maxMem string, scaling float64, memory uint64) {
		if !utf8.ValidString(maxMem) {
			return // TOML is UTF-8
		}
		quoted, err := json.Marshal(maxMem) // JSON's strings are TOML's, but for DEL
		if err != nil {
			t.Fatal(err)
		}
		number := strings.ToLower(strconv.FormatFloat(scaling, 'e', -1, 64))
		c, err := parse("version = 1\n[limits]\nmax_mem = " + strings.ReplaceAll(string(quoted), "\x7f", `\u007f`) + "\n[card.default]\nmem_scaling = " + number)
		want, good := wantMemory(maxMem)
		goodScaling := scaling >= 1 && scaling <= 16
		if (err == nil) != ((good || maxMem == "") && goodScaling) {
			t.Fatalf("max_mem %q, mem_scaling %s: %v", maxMem, number, err)
		}
		if err != nil {
			return
		}
		if got := c.RequestLimits().MaxMemory; got != want {
			t.Fatalf("max_mem %q is %+v, want %+v", maxMem, got, want)
		}
		// No card has 2^59 bytes; the product must not pass 64 bits.
		card := gpu.Card{Memory: gpu.Bytes(memory % (1 << 59))}.Scaled(c.Card("GPU-x").MemScaling)
		exact, _ := new(big.Float).Mul(big.NewFloat(scaling), new(big.Float).SetUint64(uint64(card.Physical))).Float64()
		if card.Memory < card.Physical || float64(card.Memory) > exact*(1+1e-15) {
			t.Fatalf("%d bytes scaled by %s are %d", card.Physical, number, card.Memory)
		}
		var sum gpu.Bytes
		for _, share := range []gpu.Share{33, 33, 34} {
			part := card.MemoryShare(share)
			physical := card.PhysicalPart(part)
			if physical > part {
				t.Fatalf("of %d bytes the card has %d", part, physical)
			}
			sum += physical
		}
		if sum > card.Physical {
			t.Fatalf("shares of 100 %% have %d bytes of a card of %d", sum, card.Physical)
		}
	})
}
