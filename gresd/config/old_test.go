// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// A complete file of version 0.10 loads, with one warning for each old key.
func TestAFileOfVersion010Loads(t *testing.T) {
	const path = "testdata/vgpu-0.10.toml"
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	warnings := got.Warnings
	want := Default()
	want.Path, got.Warnings = path, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the file of version 0.10 is\n%+v\nDefault() is\n%+v", got, want)
	}
	if len(warnings) != len(oldKeys) {
		t.Errorf("%d warnings for %d keys", len(warnings), len(oldKeys))
	}
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range oldKeys {
		if !strings.Contains(string(page), "`"+o.key+"`") {
			t.Errorf("docs/troubleshooting.md lacks %s", o.key)
		}
		named := func(w string) bool {
			return strings.HasPrefix(w, path+":") && strings.Contains(w, ": "+o.key+": ") && !strings.Contains(w, path+": ")
		}
		if n := len(slices.DeleteFunc(slices.Clone(warnings), func(w string) bool { return !named(w) })); n != 1 {
			t.Errorf("%d warnings name %s and its line: %q", n, o.key, warnings)
		}
	}
}

func TestOldKeysWork(t *testing.T) {
	off := []gpu.Mode{gpu.Hard, gpu.Soft, gpu.Off}
	for name, c := range map[string]struct {
		first, part string
		want        func(*Config)
		warnings    []string
	}{
		"a renamed key": {
			"[placement]\nmode = \"gresd\"\n", "", func(c *Config) { c.Placement.By = PlacementGresd },
			[]string{`vgpu.toml:3: placement.mode: old key: want by = "gresd"`},
		},
		"a key without a replacement": {
			"[arbiter]\nperiod_us = 10000\n", "", func(*Config) {},
			[]string{"vgpu.toml:3: arbiter.period_us: version 1 has no such key: delete it; the period is 20 ms"},
		},
		"a table without a key":       {"[cuda]\n", "", func(*Config) {}, nil},
		"a table without another key": {"[cuda]\nlibrary = \"/x\"\n", "", func(*Config) {}, []string{"vgpu.toml:3: cuda.library: version 1 has no such key"}},
		"mode off, with the default":  {"[limits]\nallow_off = true\n", "", func(c *Config) { c.Limits.Modes = off }, []string{`vgpu.toml:3: limits.allow_off: old key: want modes = ["hard", "soft", "off"]`}},
		"mode off, beside a list": {
			"[limits]\nmodes = [\"hard\"]\n", "[limits]\nallow_off = true\n", func(c *Config) { c.Limits.Modes = []gpu.Mode{gpu.Hard, gpu.Off} },
			[]string{`conf.d/a.toml:2: limits.allow_off: old key: want modes = ["hard", "off"]`},
		},
		"the engines": {
			"[mps]\nenabled = true\nconcurrent = true\nauto = true\n", "",
			func(c *Config) { c.MPS.Engines, c.MPS.DefaultEngine = []gpu.Engine{gpu.MPS, gpu.Concurrent}, gpu.Auto },
			[]string{
				`vgpu.toml:3: mps.enabled: old key: want engines = ["mps", "concurrent"]`, `vgpu.toml:4: mps.concurrent: old key: want engines = ["mps", "concurrent"]`,
				`vgpu.toml:5: mps.auto: old key: want default_engine = "auto"`,
			},
		},
		"an old part over a new file": {
			"[mps]\nengines = []\ndefault_engine = \"time\"\n", "[mps]\nenabled = true\ndefault = true\n",
			func(c *Config) { c.MPS.Engines, c.MPS.DefaultEngine = []gpu.Engine{gpu.MPS}, gpu.MPS },
			[]string{`conf.d/a.toml:2: mps.enabled: old key: want engines = ["mps"]`, `conf.d/a.toml:3: mps.default: old key: want default_engine = "mps"`},
		},
		"an old part that takes away": {
			"[mps]\nengines = [\"mps\", \"concurrent\"]\ndefault_engine = \"mps\"\n", "[mps]\nenabled = false\ndefault = false\n",
			func(c *Config) { c.MPS.Engines = []gpu.Engine{gpu.Concurrent} },
			[]string{`want engines = ["concurrent"]`, `want default_engine = "time"`},
		},
		"a new key beside an old one": {
			"[mps]\nengines = [\"concurrent\"]\nenabled = true\n", "", func(c *Config) { c.MPS.Engines = []gpu.Engine{gpu.Concurrent} },
			[]string{`vgpu.toml:4: mps.enabled: old key: want engines = ["concurrent"]`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := files(t, map[string]string{"vgpu.toml": "version = 1\n" + c.first, "conf.d/a.toml": c.part})
			got, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			want := Default()
			want.Path, want.Parts, want.Warnings = path, []string{filepath.Join(filepath.Dir(path), "conf.d/a.toml")}, got.Warnings
			c.want(&want)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if len(got.Warnings) != len(c.warnings) {
				t.Fatalf("warnings %q, want %q", got.Warnings, c.warnings)
			}
			for i, w := range c.warnings {
				if !strings.Contains(got.Warnings[i], w) {
					t.Errorf("warning %q, want %q", got.Warnings[i], w)
				}
			}
		})
	}
}

func TestMistakesInOldKeysAreNamedWithTheirLine(t *testing.T) {
	for text, want := range map[string]string{
		"[placement]\nmode = \"me\"":        `:3: placement.by: "me": want "slurm" or "gresd"`,
		"[placement]\nmode = 3":             `:3: placement.by: 3: want a string`,
		"[limits]\nallow_off = \"yes\"":     `:3: limits.allow_off: "yes": want true or false`,
		"[mps]\nengines = 3\n[cuda]\nx = 1": `:3: mps.engines: 3: want a list of strings`,
		"[cuda]\nx = 1":                     `:2: cuda: unknown key`,
		"[mps]\nauto = true":                `:3: mps.default_engine: "auto": needs "concurrent" in engines`,
	} {
		if _, path, err := load(t, "version = 1\n"+text+"\n"); err == nil || !strings.Contains(err.Error(), path+want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
