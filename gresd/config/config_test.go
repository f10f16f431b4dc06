// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

func TestShippedFileIsTheDefault(t *testing.T) {
	const path = "../../etc/vgpu.toml"
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Path = path
	if !reflect.DeepEqual(got, want) {
		t.Errorf("etc/vgpu.toml is\n%+v\nDefault() is\n%+v", got, want)
	}
	var raw map[string]any
	meta, err := toml.DecodeFile(path, &raw)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, key := range meta.Keys() {
		shown[key.String()] = true
	}
	for _, key := range keys() {
		if !shown[key] {
			t.Errorf("etc/vgpu.toml does not show %s", key)
		}
	}
}

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestAbsentFileGivesTheDefaultsWithoutAPath(t *testing.T) {
	got, err := Load(filepath.Join(t.TempDir(), "vgpu.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Path != "" || !reflect.DeepEqual(got, Default()) {
		t.Errorf("got %+v", got)
	}
}

func TestUnreadableFileIsAnError(t *testing.T) {
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("a folder was read as a configuration")
	}
}

func load(t *testing.T, text string) (Config, string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vgpu.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	return c, path, err
}

func TestKeysThatAreLeftOutKeepTheirDefaults(t *testing.T) {
	got, path, err := load(t, "version = 1\n[limits]\nmax_mem = \"50%\"\nmodes = [\"soft\", \"hard\", \"off\"]\n[arbiter]\nslice_test = false\n")
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Path = path
	want.Limits.MaxMem = "50%"
	want.Limits.Modes = []gpu.Mode{gpu.Soft, gpu.Hard, gpu.Off}
	want.Arbiter.SliceTest = false
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	limits := request.Limits{
		MinShare: 1, MaxShare: 100, MaxMemory: request.Memory{Percent: 50},
		Modes: []gpu.Mode{gpu.Soft, gpu.Hard, gpu.Off}, MaxCores: 100, MaxCards: 16, Priorities: gpu.Priorities(), Policies: gpu.Policies(),
	}
	if l := got.RequestLimits(); !reflect.DeepEqual(l, limits) {
		t.Errorf("limits are %+v, want %+v", l, limits)
	}
	if d := got.RequestDefaults(); d != (request.Defaults{Mode: gpu.Hard, Priority: gpu.Normal, Policy: gpu.Binpack}) {
		t.Errorf("defaults are %+v", d)
	}
}

// Each text follows "version = 1\n", so its first line is line 2.
func TestMistakesAreNamedWithTheirLine(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"a misspelt key":                 {"[arbiter]\nslice_tests = true", ":3: arbiter.slice_tests: unknown key, did you mean arbiter.slice_test?"},
		"a key in the wrong table":       {"[arbiter]\n\nmax_mem = \"8G\"", ":4: arbiter.max_mem: unknown key, did you mean limits.max_mem?"},
		"a misspelt table":               {"[arbitr]\nslice_test = true", ":2: arbitr: unknown key, did you mean arbiter?"},
		"a key unlike any":               {"[log]\nqqqqqqqqqq = 3", ":3: log.qqqqqqqqqq: unknown key, want one of level"},
		"a dotted key":                   {"log.levle = \"info\"", ":2: log.levle: unknown key, did you mean log.level?"},
		"a string for a number":          {"[placement]\npatience = \"3 times\"", `:3: placement.patience: "3 times": want a whole number from 0 to 4294967295, for example patience = 3`},
		"a decimal for a number":         {"[placement]\npatience = 1.5", ":3: placement.patience: 1.5: want a whole number"},
		"a number below zero":            {"[placement]\npatience = -5", ":3: placement.patience: -5: want a whole number"},
		"a number above 32 bits":         {"[placement]\npatience = 4294967296", ":3: placement.patience: 4294967296: want a whole number"},
		"a number for a string":          {"[limits]\nmax_mem = 8", `:3: limits.max_mem: 8: want a string, for example max_mem = ""`},
		"a string for true":              {"[arbiter]\nslice_test = \"yes\"", `:3: arbiter.slice_test: "yes": want true or false, for example slice_test = true`},
		"a string for a list":            {"[limits]\nmodes = \"hard\"", `:3: limits.modes: "hard": want a list of strings, for example modes = ["hard", "soft"]`},
		"a list of numbers":              {"[limits]\nmodes = [1]", `:3: limits.modes: [1]: want a list of strings`},
		"a value for a table":            {"limits = 3", ":2: limits: want a table, for example [limits]"},
		"a table for a value":            {"[log.level]\nx = 1", ":2: log.level: a table: want a string"},
		"a size with a decimal":          {"[limits]\nmax_mem = \"1.5g\"", `:3: limits.max_mem: "1.5g": want a whole number, then K, M, G or T (powers of 1024), for example 8G`},
		"a size of nothing":              {"[limits]\nmax_mem = \"0\"", `:3: limits.max_mem: "0": want more than 0`},
		"a percentage above the card":    {"[limits]\nmax_mem = \"150%\"", `:3: limits.max_mem: "150%": want 1% to 100% of a card, for example 25%`},
		"a port open to everyone":        {"[metrics]\nlisten = \"0.0.0.0:9464\"", `:3: metrics.listen: "0.0.0.0:9464": want a loopback address and a port, for example listen = "127.0.0.1:9464"`},
		"a port without an address":      {"[metrics]\nlisten = \":9464\"", ":3: metrics.listen: "},
		"an address without a port":      {"[metrics]\nlisten = \"127.0.0.1\"", ":3: metrics.listen: "},
		"a port that is none":            {"[metrics]\nlisten = \"127.0.0.1:99999\"", ":3: metrics.listen: "},
		"a name that may be any host":    {"[metrics]\nlisten = \"node7:9464\"", ":3: metrics.listen: "},
		"an unknown mode":                {"[defaults]\nmode = \"sotf\"", `:3: defaults.mode: "sotf": want "hard", "soft" or "off"`},
		"a default with a ceiling":       {"[defaults]\nmode = \"soft:80\"", `:3: defaults.mode: "soft:80": want`},
		"a default that is not allowed":  {"[defaults]\nmode = \"soft\"\n[limits]\nmodes = [\"hard\"]", `:3: defaults.mode: "soft": is not among limits.modes = ["hard"]`},
		"a default off that is not":      {"[defaults]\nmode = \"off\"", `:3: defaults.mode: "off": is not among limits.modes = ["hard", "soft"]`},
		"a mode that is none":            {"[limits]\nmodes = [\"hard\", \"x\"]", `:3: limits.modes: ["hard", "x"]: want "hard", "soft" or "off" only, for example modes = ["hard"]`},
		"no mode at all":                 {"[limits]\nmodes = []", ":3: limits.modes: []: want at least one mode"},
		"an unknown priority":            {"[defaults]\npriority = \"top\"", `:3: defaults.priority: "top": want "high", "normal" or "low"`},
		"MPS by default, not offered":    {"[mps]\ndefault_engine = \"mps\"\nengines = [\"concurrent\"]", `:3: mps.default_engine: "mps": needs "mps" in engines, for example engines = ["mps"]`},
		"auto, without concurrent":       {"[mps]\nengines = [\"mps\"]\ndefault_engine = \"auto\"", `:4: mps.default_engine: "auto": needs "concurrent" in engines`},
		"concurrent by default":          {"[mps]\nengines = [\"concurrent\"]\ndefault_engine = \"concurrent\"", `:4: mps.default_engine: "concurrent": want "time", "mps" or "auto"`},
		"an engine that has no server":   {"[mps]\nengines = [\"mps\", \"time\"]", `:3: mps.engines: ["mps", "time"]: want "mps" or "concurrent" only`},
		"trust of nobody":                {"[mps]\ntrust = \"group\"", `:3: mps.trust: "group": want `},
		"MPS below a long folder":        {"[paths]\nrun_dir = \"/run/" + strings.Repeat("x", 50) + "\"\n[mps]\nengines = [\"mps\"]", `:3: paths.run_dir: `},
		"a policy for single jobs only":  {"[defaults]\npolicy = \"exclusive\"", `:3: defaults.policy: "exclusive": want`},
		"an unknown policy":              {"[defaults]\npolicy = \"best\"", `:3: defaults.policy: "best": want`},
		"an unknown placement":           {"[placement]\nby = \"me\"", `:3: placement.by: "me": want "slurm" or "gresd"`},
		"an unknown level":               {"[log]\nlevel = \"loud\"", `:3: log.level: "loud": want "debug", "info", "warn" or "error"`},
		"a share above the card":         {"[limits]\nmax_share_percent = 101", ":3: limits.max_share_percent: 101: want 1 to 100"},
		"a type of two words":            {"[card.default]\ntype = \"h 200\"", `:3: card.default.type: "h 200": want a word`},
		"profiles for everyone":          {"[debug]\npprof = \"0.0.0.0:6060\"", `:3: debug.pprof: "0.0.0.0:6060": want a loopback address and a port, or`},
		"profiles at a relative path":    {"[debug]\npprof = \"pprof.sock\"", `:3: debug.pprof: "pprof.sock": want`},
		"a priority that is none":        {"[limits]\npriorities = [\"top\"]", `:3: limits.priorities: ["top"]: want "high", "normal" or "low" only`},
		"a default priority not allowed": {"[defaults]\npriority = \"high\"\n[limits]\npriorities = [\"low\"]", `:3: defaults.priority: "high": is not among limits.priorities = ["low"]`},
		"a policy that is none":          {"[limits]\npolicies = [\"best\"]", `:3: limits.policies: ["best"]: want`},
		"a default policy not allowed":   {"[defaults]\npolicy = \"spread\"\n[limits]\npolicies = [\"binpack\"]", `:3: defaults.policy: "spread": is not among limits.policies = ["binpack"]`},
		"too many cards":                 {"[limits]\nmax_cards = 17", `:3: limits.max_cards: 17: want 1 to 16`},
		"more cards than allowed":        {"[defaults]\ncards = 4\n[limits]\nmax_cards = 2", `:3: defaults.cards: 4: want at most limits.max_cards = 2`},
		"no compute at all":              {"[limits]\nmax_cores_percent = 0", `:3: limits.max_cores_percent: 0: want 1 to 100`},
		"default memory with a decimal":  {"[defaults]\nmem = \"1.5g\"", `:3: defaults.mem: "1.5g": want a whole number`},
		"default compute above a card":   {"[defaults]\ncores_percent = 101", `:3: defaults.cores_percent: 101: want 0 to 100`},
		"a share of nothing":             {"[limits]\nmin_share_percent = 0", ":3: limits.min_share_percent: 0: want 1 to 100"},
		"a smallest above the largest":   {"[limits]\nmin_share_percent = 50\nmax_share_percent = 20", ":3: limits.min_share_percent: 50: want at most max_share_percent = 20"},
		"a relative path":                {"[paths]\nrun_dir = \"run\"", `:3: paths.run_dir: "run": want an absolute path without . or .., for example "/run/vgpu"`},
		"a path with dots":               {"[paths]\nlibrary = \"/a/../b\"", `:3: paths.library: "/a/../b": want an absolute path`},
		"a run_dir too long for sockets": {"[paths]\nrun_dir = \"/" + strings.Repeat("x", 100) + "\"", "its gresd.sock has 112 bytes, want at most 107"},
		"a relative library":             {"[nvml]\nlibrary = \"lib/x.so\"", ":3: nvml.library: "},
		"no scontrol":                    {"[slurm]\nscontrol = \"\"", ":3: slurm.scontrol: "},
		"a relative scontrol":            {"[slurm]\nscontrol = \"bin/scontrol\"", ":3: slurm.scontrol: "},
		"a relative slurm.conf":          {"[slurm]\nconf = \"slurm.conf\"", ":3: slurm.conf: "},
		"a card scaled below itself":     {"[card.default]\nmem_scaling = 0.5", ":3: card.default.mem_scaling: 0.5: want 1 to 16, for example mem_scaling = 1.5"},
		"a card scaled by nothing":       {"[card.\"GPU-a\"]\nmem_scaling = 0", ":3: card.GPU-a.mem_scaling: 0: want 1 to 16"},
		"a card scaled without end":      {"[card.\"GPU-a\"]\nmem_scaling = inf", ":3: card.GPU-a.mem_scaling: +Inf: want 1 to 16"},
		"a card scaled by no number":     {"[card.\"GPU-a\"]\nmem_scaling = nan", ":3: card.GPU-a.mem_scaling: NaN: want 1 to 16"},
		"a scaling in quotes":            {"[card.default]\nmem_scaling = \"2\"", `:3: card.default.mem_scaling: "2": want a number, for example mem_scaling = 1`},
		"a card that is an index":        {"[card.0]\nmem_scaling = 2", `:2: card.0: "0": want "default" or the UUID of a card`},
		"a key of all cards misspelt":    {"[card.default]\nmem_scalin = 2", ":3: card.default.mem_scalin: unknown key, did you mean card.default.mem_scaling?"},
		"a key of one card misspelt":     {"[card.\"GPU-a\"]\nscaling = 2", ":3: card.GPU-a.scaling: unknown key, did you mean card.GPU-a.mem_scaling?"},
		"a card that is no table":        {"[card]\ndefault = 2", ":3: card.default: want a table, for example [card.default]"},
		"cards that are no table":        {"card = 2", ":2: card: want a table, for example [card]"},
		"text that is not TOML":          {"log = = 3", ":2: "},
		"a key twice":                    {"[log]\nlevel = \"info\"\nlevel = \"warn\"", ":4: "},
	} {
		t.Run(name, func(t *testing.T) {
			_, path, err := load(t, "version = 1\n"+test.text+"\n")
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is\n\t%v\nwant\n\t…%s", err, test.want)
			}
		})
	}
}

func TestCardsHaveTablesOfTheirOwn(t *testing.T) {
	got, _, err := load(t, "version = 1\n[card.\"GPU-b\"]\n[card.\"GPU-a\"]\nmem_scaling = 3\n[card.default]\nmem_scaling = 1.5\n")
	if err != nil {
		t.Fatal(err)
	}
	for uuid, want := range map[gpu.UUID]float64{"GPU-a": 3, "GPU-b": 1.5, "GPU-c": 1.5} {
		if card := got.Card(uuid); card.MemScaling != want {
			t.Errorf("%s: scaled by %v, want %v", uuid, card.MemScaling, want)
		}
	}
	if s := Default().Card("GPU-a").MemScaling; s != 1 || len(Default().Cards) != 1 {
		t.Errorf("defaults %+v changed with the file", Default().Cards)
	}
	one, _, err := load(t, "version = 1\n[card.\"GPU-a\"]\nmem_scaling = 2.5\n")
	if err != nil || one.Card("GPU-a").MemScaling != 2.5 || one.Card("GPU-b").MemScaling != 1 {
		t.Errorf("cards %+v, %v", one.Cards, err)
	}
}

func TestVersionIsNeeded(t *testing.T) {
	if _, _, err := load(t, "[log]\nlevel = \"info\"\n"); err == nil || !strings.Contains(err.Error(), "version: want version = 1") {
		t.Errorf("without version: %v", err)
	}
	if _, _, err := load(t, "version = 2\n"); err == nil || !strings.Contains(err.Error(), ":1: version: 2: this gresd reads version = 1") {
		t.Errorf("version 2: %v", err)
	}
}

func TestAllMistakesAreNamedAtOnce(t *testing.T) {
	_, _, err := load(t, "version = 1\n[log]\nlevel = \"loud\"\n[health]\naction = \"reset\"\n")
	var first *KeyError
	if !errors.As(err, &first) {
		t.Fatalf("error is %v", err)
	}
	for _, want := range []string{":3: log.level", ":5: health.action"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %s:\n%v", want, err)
		}
	}
}

func TestLoopbackAddressesAreAccepted(t *testing.T) {
	for _, listen := range []string{"", "127.0.0.1:9464", "127.9.9.9:1", "[::1]:9464", "localhost:9464", "127.0.0.1:0"} {
		c := Default()
		c.Metrics.Listen = listen
		if err := c.Validate(); err != nil {
			t.Errorf("%q: %v", listen, err)
		}
	}
}

func TestPathsAreBelowTheirFolders(t *testing.T) {
	p := Default().Paths
	for got, want := range map[string]string{
		p.Socket():  "/run/vgpu/gresd.sock",
		p.Preload(): "/run/vgpu/preload",
		p.Jobs():    "/run/vgpu/jobs",
		p.Job(4217): "/run/vgpu/jobs/4217",
		p.Ledger():  "/var/lib/vgpu/ledger.json",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
