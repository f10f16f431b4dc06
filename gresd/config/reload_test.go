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

// files writes a configuration of several files, by name, and returns the first.
func files(t *testing.T, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "vgpu.toml")
}

func TestLaterFilesCount(t *testing.T) {
	path := files(t, map[string]string{
		"vgpu.toml":             "version = 1\n[limits]\nmax_mem = \"50%\"\nmodes = [\"hard\"]\n[card.\"GPU-a\"]\ntype = \"big\"\n",
		"conf.d/20-site.toml":   "[limits]\nmax_mem = \"20%\"\n[card.default]\nmem_scaling = 2\n",
		"conf.d/10-rack.toml":   "[limits]\nmax_mem = \"30%\"\nmin_share_percent = 5\n",
		"conf.d/.hidden.toml":   "nonsense",
		"conf.d/30-old.toml.bk": "nonsense",
	})
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Path, want.Parts = path, []string{filepath.Join(filepath.Dir(path), "conf.d/10-rack.toml"), filepath.Join(filepath.Dir(path), "conf.d/20-site.toml")}
	want.Limits.MaxMem, want.Limits.Modes, want.Limits.MinSharePercent = "20%", []gpu.Mode{gpu.Hard}, 5
	// A card has what a later file says of all cards.
	want.Cards = map[string]Card{AllCards: {MemScaling: 2}, "GPU-a": {MemScaling: 2, Type: "big"}}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

func TestPartsWithoutAFirstFile(t *testing.T) {
	path := files(t, map[string]string{"conf.d/a.toml": "version = 1\n[log]\nlevel = \"warn\"\n"})
	if c, err := Load(path); err != nil || c.Path != "" || len(c.Parts) != 1 || c.Log.Level != "warn" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestMistakesAreNamedWithTheirFile(t *testing.T) {
	for name, c := range map[string]struct {
		first, a, b string
		want        []string
	}{
		"an unknown key":               {"version = 1\n", "\n[log]\nlevle = 1\n", "", []string{"conf.d/a.toml:3: log.levle: unknown key, did you mean log.level?"}},
		"a syntax error":               {"version = 1\n", "", "log == 1\n", []string{"conf.d/b.toml:1: "}},
		"a value of the last file":     {"version = 1\n[log]\nlevel = \"x\"\n", "[log]\nlevel = \"y\"\n", "", []string{`conf.d/a.toml:2: log.level: "y": want`}},
		"one in each":                  {"version = 1\n[log]\nlevle = 1\n", "", "[arbitr]\n", []string{"vgpu.toml:3: log.levle", "conf.d/b.toml:1: arbitr: "}},
		"a value where a table was":    {"version = 1\n[log]\nlevel = \"warn\"\n", "log = 3\n", "", []string{"conf.d/a.toml:1: log: want a table"}},
		"no version":                   {"[log]\n", "", "", []string{"vgpu.toml: version: want version = 1"}},
		"another version":              {"version = 1\n", "version = 2\n", "", []string{"conf.d/a.toml:1: version: 2: this gresd reads version = 1"}},
		"paths that hooks do not read": {"version = 1\n", "[paths]\nrun_dir = \"/run/x\"\n", "", []string{"conf.d/a.toml:1: paths: want it in ", "vgpu.toml: Slurm's hooks"}},
	} {
		path := files(t, map[string]string{"vgpu.toml": c.first, "conf.d/a.toml": c.a, "conf.d/b.toml": c.b})
		_, err := Load(path)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", name, err, want)
			}
		}
	}
}

func TestWhatAReloadChanges(t *testing.T) {
	old := Default()
	next := Default()
	next.Limits.MaxMem, next.Audit.Exceeded, next.Log.Level = "8G", AuditKill, "debug"
	next.Paths.StateDir, next.Placement.By, next.Metrics.Listen = "/srv/vgpu", PlacementGresd, "127.0.0.1:1"
	next.Slurm.Scontrol, next.Memory.DriverLimits, next.Debug.Pprof = "/x/scontrol", true, "/run/x.sock"
	next.Cards = map[string]Card{AllCards: {MemScaling: 1}, "GPU-a": {MemScaling: 2}}
	got, changed, restart, err := Reload(old, next)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Limits, want.Audit, want.Log, want.Cards = next.Limits, next.Audit, next.Log, next.Cards
	if !reflect.DeepEqual(got, want) {
		t.Errorf("in force is\n%+v, want\n%+v", got, want)
	}
	if w := []string{"limits.max_mem", "audit.exceeded", "log.level", "card.GPU-a"}; !slices.Equal(changed, w) {
		t.Errorf("changed: %v, want %v", changed, w)
	}
	if w := []string{
		"paths.state_dir", "placement.by", "metrics.listen", "slurm.scontrol", "memory.driver_limits", "debug.pprof",
	}; !slices.Equal(restart, w) {
		t.Errorf("wait for a restart: %v, want %v", restart, w)
	}
	if same, changed, restart, err := Reload(next, next); err != nil || len(changed)+len(restart) != 0 || !reflect.DeepEqual(same, next) {
		t.Errorf("nothing changed: %v, %v, %v", changed, restart, err)
	}
	// Back to what gresd was started with: nothing waits.
	if _, _, restart, _ := Reload(got, old); len(restart) != 0 {
		t.Errorf("after the way back %v wait", restart)
	}
}

// Each alone is right, and both together are not.
func TestReloadThatWouldContradictWhatNeedsARestart(t *testing.T) {
	old := Default()
	old.Paths.RunDir = "/run/" + strings.Repeat("x", 60) // too long for MPS
	next := Default()
	next.MPS.Engines = []gpu.Engine{gpu.MPS}
	got, _, _, err := Reload(old, next)
	if err == nil || !strings.Contains(err.Error(), "needs a restart") || !reflect.DeepEqual(got, old) {
		t.Errorf("%v, in force %+v", err, got)
	}
}
