// SPDX-License-Identifier: Apache-2.0

package srun

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/spank/options"
)

// The installed srun must have no option that is taken for one of another kind.
func TestOptionsAreThoseOfTheInstalledSrun(t *testing.T) {
	libraries, _ := filepath.Glob("/usr/lib*/*/slurm*/libslurmfull.so")
	if len(libraries) == 0 {
		t.Skip("Slurm is not installed")
	}
	program := filepath.Join(t.TempDir(), "srun_options")
	if out, err := exec.Command("gcc", "-rdynamic", "-o", program, "testdata/srun_options.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(program, libraries[0]).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	checkOptions(t, string(out))
}

// Nor that of another release: what testdata/srun_options.c printed there.
func TestOptionsAreThoseOfOtherReleases(t *testing.T) {
	for _, release := range []string{"24.11", "26.05"} {
		t.Run(release, func(t *testing.T) {
			text, err := os.ReadFile("testdata/options-" + release + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			checkOptions(t, string(text))
		})
	}
}

func checkOptions(t *testing.T, text string) {
	count := 0
	for line := range strings.Lines(text) {
		name, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case name == "letters":
			checkLetters(t, kind)
		case kind == "1" && !optionsWithValue[name]:
			t.Errorf("--%s takes a value: want it in optionsWithValue", name)
		case kind != "1" && !flagsWithoutValue[name]:
			t.Errorf("--%s has no value in the next word: want it in flagsWithoutValue", name)
		}
		count++
	}
	if count < 100 {
		t.Errorf("only %d options", count)
	}
	for name := range optionsWithValue {
		if flagsWithoutValue[name] {
			t.Errorf("--%s is in both lists", name)
		}
	}
}

func checkLetters(t *testing.T, letters string) {
	for i, letter := range letters {
		rest := letters[i+1:]
		takes := strings.HasPrefix(rest, ":") && !strings.HasPrefix(rest, "::")
		if letter != ':' && letter != '+' && takes != strings.ContainsRune(lettersWithValue, letter) {
			t.Errorf("-%c: value in the next word: %t, want the same in lettersWithValue", letter, takes)
		}
	}
}

func TestHelpHasEveryOption(t *testing.T) {
	_, _, stdout, _ := runWrapper(t, nil, "--help")
	for _, o := range options.List {
		if !strings.Contains(stdout, "--vgpu-"+o.Name+"="+o.Takes) || !strings.Contains(stdout, o.Usage) {
			t.Errorf("--help lacks --vgpu-%s", o.Name)
		}
	}
}

// vgpu-srun says the same as job_submit.lua, which says the same as the plugin.
func TestMistakesAreNamedAsByTheServer(t *testing.T) {
	lua := ""
	for _, name := range []string{"lua5.3", "lua", "lua5.4", "lua5.1"} {
		if path, err := exec.LookPath(name); err == nil {
			lua = path
			break
		}
	}
	if lua == "" {
		t.Fatal("no lua: apt-get install lua5.3")
	}
	cases := [][]string{
		{"vgpu:0"},
		{"vgpu:101"},
		{"vgpu:-5"},
		{"vgpu"},
		{"vgpu:h200:150"},
		{"vgpu:h200"},
		{"vgpu:30", "cores=60", "mode=soft:40"},
		{"vgpu:30", "mode=soft:20"},
		{"vgpu:200", "cards=3"},
		{"vgpu:200", "cards=1"},
	}
	for _, o := range options.List {
		cases = append(cases, []string{"vgpu:30", o.Name + "=wrong"}, []string{"vgpu:30", o.Name + "="})
	}
	for _, c := range cases {
		want, err := exec.Command(lua, append([]string{"testdata/refuse.lua", "../../etc/slurm/job_submit.lua"}, c...)...).CombinedOutput()
		if err != nil || len(want) == 0 {
			t.Fatalf("%v: job_submit.lua says nothing: %v %s", c, err, want)
		}
		args := []string{"--gres=" + c[0]}
		for _, option := range c[1:] {
			args = append(args, "--vgpu-"+option)
		}
		argv, _, _, got := runWrapper(t, nil, append(args, "true")...)
		if argv != nil || got != string(want) {
			t.Errorf("%v\ngot  %swant %s", c, got, want)
		}
	}
}

func TestSrunsWaysToWriteOptions(t *testing.T) {
	share := map[string]string{"SLURM_GRES": "vgpu:30"}
	for name, c := range map[string]struct {
		env  map[string]string
		args string
		want []string // separated by spaces but for the comment
	}{
		"the value of -F is not the program":   {nil, "-F nodes.txt --gres=vgpu:30 prog", strings.Fields("-F nodes.txt --gres=shard:30 prog")},
		"--test-only has no value":             {nil, "--test-only prog --gres=vgpu:30", strings.Fields("--test-only prog --gres=vgpu:30")},
		"the beginning of an option":           {nil, "--vgpu-me=10% --gres=vgpu:30 --comm=x prog", []string{"--comment=x vgpu(mem=10%)", "--gres=shard:30", "prog"}},
		"the beginning of a flag has no value": {nil, "--exclus prog --gres=vgpu:30", strings.Fields("--exclus prog --gres=vgpu:30")},
		"a beginning of several is srun's":     {nil, "--gre=vgpu:30 prog", strings.Fields("--gre=vgpu:30 prog")},
		"an option that is taken back": {
			nil, "--vgpu-mem=10% --vgpu-cores=5 --vgpu-mem=none --gres=vgpu:30 prog",
			[]string{"--comment=vgpu(cores=5)", "--gres=shard:30", "prog"},
		},
		"components of a het job": {
			nil, "--gres=vgpu:10 --vgpu-mem=10% a -x : -n 2 --gres=vgpu:20 b : c",
			strings.Fields("--comment=vgpu(mem=10%) --gres=shard:10 a -x : -n 2 --gres=shard:20 b : c"),
		},
		"a colon of an option is no component":    {nil, "--job-name : --gres=vgpu:10 a", strings.Fields("--job-name : --gres=shard:10 a")},
		"$SLURM_GRES":                             {share, "--vgpu-mem=10% prog", strings.Fields("--comment=vgpu(mem=10%) --gres=shard:30 prog")},
		"--gres counts more than $SLURM_GRES":     {share, "--gres=vgpu:20 prog", strings.Fields("--gres=shard:20 prog")},
		"$SLURM_GRES is no matter of a step":      {map[string]string{"SLURM_GRES": "vgpu:30", "SLURM_JOB_ID": "5"}, "prog", strings.Fields("prog")},
		"$SLURM_GRES without a share is not ours": {map[string]string{"SLURM_GRES": "gpu:1"}, "prog", strings.Fields("prog")},
		"--jobid is a step":                       {nil, "--jobid=5 --vgpu-mem=50% --gres=vgpu:10 prog", strings.Fields("--jobid=5 --gres=shard:10 prog")},
	} {
		t.Run(name, func(t *testing.T) {
			argv, _, _, stderr := runWrapper(t, c.env, strings.Fields(c.args)...)
			if !reflect.DeepEqual(argv, c.want) {
				t.Errorf("%s\ngot  %q\nwant %q\n%s", c.args, argv, c.want, stderr)
			}
		})
	}
}
