// SPDX-License-Identifier: Apache-2.0

package srun

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// runWrapper runs vgpu-srun with a fake srun that only exists.
func runWrapper(t *testing.T, env map[string]string, args ...string) (argv []string, code int, stdout, stderr string) {
	t.Helper()
	fake := filepath.Join(t.TempDir(), "srun")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	w := Wrapper{
		Getenv: func(name string) string {
			if name == "VGPU_SRUN" {
				return fake
			}
			return env[name]
		},
		Stdout: &out,
		Stderr: &errs,
		Exec: func(path string, words []string) error {
			if path != fake || words[0] != fake {
				t.Errorf("ran %s as %s, want %s", path, words[0], fake)
			}
			argv = words[1:]
			return nil
		},
	}
	code = w.Run(args)
	return argv, code, out.String(), strings.ReplaceAll(errs.String(), fake, "srun")
}

func TestCommandForSrun(t *testing.T) {
	for name, c := range map[string]struct{ args, want []string }{
		"a share becomes shards": {
			[]string{"--gres=vgpu:30", "true"},
			[]string{"--gres=shard:30", "true"},
		},
		"a type stays": {
			[]string{"--gres=vgpu:h200:30", "true"},
			[]string{"--gres=shard:h200:30", "true"},
		},
		"other resources stay": {
			[]string{"--gres=fpga:1,vgpu:30,bandwidth:lustre:4G", "true"},
			[]string{"--gres=fpga:1,shard:30,bandwidth:lustre:4G", "true"},
		},
		"memory in percent raises the count": {
			[]string{"--vgpu-mem=50%", "--gres=vgpu:30", "true"},
			[]string{"--comment=vgpu(share=30,mem=50%)", "--gres=shard:50", "true"},
		},
		"cores raise the count": {
			[]string{"--vgpu-cores=60", "--gres=vgpu:30", "true"},
			[]string{"--comment=vgpu(share=30,cores=60)", "--gres=shard:60", "true"},
		},
		"memory in bytes is left to the server": {
			[]string{"--vgpu-mem=40G", "--gres=vgpu:30", "true"},
			[]string{"--comment=vgpu(mem=40G)", "--gres=shard:30", "true"},
		},
		"all options, in any order, and separate values": {
			[]string{"-n", "2", "--vgpu-mode", "soft:80", "--gres", "vgpu:30", "--vgpu-priority=high", "--vgpu-policy=spread", "true"},
			[]string{"--comment=vgpu(mode=soft:80,priority=high,policy=spread)", "-n", "2", "--gres=shard:30", "true"},
		},
		"whole cards become GPUs": {
			[]string{"--gres=vgpu:h200:200", "true"},
			[]string{"--comment=vgpu(share=200)", "--gres=gpu:h200:2", "true"},
		},
		"one whole card stays a share": {
			[]string{"--gres=vgpu:100", "true"},
			[]string{"--gres=shard:100", "true"},
		},
		"the user's comment stays in front": {
			[]string{"--comment", "night run", "--gres=vgpu:30", "--vgpu-mem=10%", "true"},
			[]string{"--comment=night run vgpu(mem=10%)", "--gres=shard:30", "true"},
		},
		"the last comment counts": {
			[]string{"--comment=a", "--comment=b", "--gres=vgpu:30", "true"},
			[]string{"--comment=b", "--gres=shard:30", "true"},
		},
		"the program's own arguments are not ours": {
			[]string{"--gres=vgpu:30", "-l", "prog", "--gres=vgpu:5", "--vgpu-mem=x", "--comment=c"},
			[]string{"--gres=shard:30", "-l", "prog", "--gres=vgpu:5", "--vgpu-mem=x", "--comment=c"},
		},
		"values of short options are not the program": {
			[]string{"-ln", "2", "-N1", "-p", "main", "-c", "4", "--gres=vgpu:30", "prog", "-n"},
			[]string{"-ln", "2", "-N1", "-p", "main", "-c", "4", "--gres=shard:30", "prog", "-n"},
		},
		"options go before a double dash": {
			[]string{"--gres=vgpu:30", "--vgpu-mem=10%", "--", "-prog"},
			[]string{"--comment=vgpu(mem=10%)", "--gres=shard:30", "--", "-prog"},
		},
		"shards with options": {
			[]string{"--gres=shard:20", "--vgpu-mem=50%", "true"},
			[]string{"--comment=vgpu(share=20,mem=50%)", "--gres=shard:50", "true"},
		},
		"whole GPUs with options": {
			[]string{"--gpus=2", "--vgpu-mem=10G", "true"},
			[]string{"--comment=vgpu(mem=10G)", "--gpus=2", "true"},
		},
		"whole GPUs by the short option": {
			[]string{"-lG", "2", "--vgpu-mem=10G", "true"},
			[]string{"--comment=vgpu(mem=10G)", "-lG", "2", "true"},
		},
		"a share for each task": {
			[]string{"-n2", "--tres-per-task=gres/vgpu:30", "--vgpu-mem=10G", "true"},
			[]string{"--comment=vgpu(mem=10G)", "-n2", "--tres-per-task=gres/vgpu:30", "true"},
		},
		"without a share nothing changes": {
			[]string{"--comment=vgpu(mem=1G)", "--gres=gpu:1", "-n2", "--pty", "bash", "-i"},
			[]string{"--comment=vgpu(mem=1G)", "--gres=gpu:1", "-n2", "--pty", "bash", "-i"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			argv, _, _, stderr := runWrapper(t, nil, c.args...)
			if !reflect.DeepEqual(argv, c.want) {
				t.Errorf("%q\ngot  %q\nwant %q\n%s", c.args, argv, c.want, stderr)
			}
		})
	}
}

// srun has cards from its variables, too.
func TestCardsOfTheEnvironment(t *testing.T) {
	for _, env := range []map[string]string{
		{"SLURM_GPUS": "1"}, {"SLURM_GPUS_PER_NODE": "1"}, {"SLURM_GRES": "gpu:1"}, {"SLURM_TRES_PER_TASK": "gres/gpu:1"},
	} {
		argv, _, _, stderr := runWrapper(t, env, "--vgpu-mem=10G", "true")
		if want := []string{"--comment=vgpu(mem=10G)", "true"}; !reflect.DeepEqual(argv, want) {
			t.Errorf("%v: got %q, want %q: %s", env, argv, want, stderr)
		}
	}
	if argv, code, _, _ := runWrapper(t, map[string]string{"SLURM_GRES": "fpga:1"}, "-JG1", "--vgpu-mem=10G", "true"); code != exitError {
		t.Errorf("without a card: ran %q", argv)
	}
}

// Where gresd places, slurmctld counts what the user asks for: nodes have no shards.
func TestCommandWhereGresdPlaces(t *testing.T) {
	for _, c := range []struct{ args, want []string }{
		{[]string{"--gres=vgpu:h200:30", "--vgpu-mem=50%", "true"}, []string{"--comment=vgpu(mem=50%)", "--gres=vgpu:h200:30", "true"}},
		{[]string{"--gres=fpga:1,vgpu:200", "true"}, []string{"--gres=fpga:1,vgpu:200", "true"}},
		{[]string{"--gres=vgpu:120", "--vgpu-cards=2", "true"}, []string{"--comment=vgpu(cards=2)", "--gres=vgpu:120", "true"}},
	} {
		argv := []string(nil)
		w := Wrapper{
			Getenv: func(name string) string { return map[string]string{"VGPU_SRUN": "/bin/true"}[name] }, Stdout: io.Discard, Stderr: io.Discard,
			Exec: func(_ string, words []string) error { argv = words[1:]; return nil }, GresdPlaces: true,
		}
		if w.Run(c.args); !reflect.DeepEqual(argv, c.want) {
			t.Errorf("%q\ngot  %q\nwant %q", c.args, argv, c.want)
		}
	}
}

func TestMistakesAreOneLineAndRunNothing(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		say  []string // parts of the line
	}{
		"share 0":                            {[]string{"--gres=vgpu:0", "true"}, []string{`--gres=vgpu: "0"`, "1 to 100", "30"}},
		"share 101":                          {[]string{"--gres=vgpu:101", "true"}, []string{`"101"`, "1 to 100"}},
		"negative share":                     {[]string{"--gres=vgpu:-5", "true"}, []string{`"-5"`, "1 to 100"}},
		"no share":                           {[]string{"--gres=vgpu", "true"}, []string{"--gres=vgpu", "1 to 100"}},
		"a type without a share":             {[]string{"--gres=vgpu:h200", "true"}, []string{`"h200"`, "1 to 100"}},
		"a fraction of memory":               {[]string{"--gres=vgpu:5", "--vgpu-mem=1.5g", "true"}, []string{`--vgpu-mem: "1.5g"`, "8G"}},
		"cores 0":                            {[]string{"--gres=vgpu:5", "--vgpu-cores=0", "true"}, []string{`--vgpu-cores: "0"`, "1 to 100"}},
		"an unknown mode":                    {[]string{"--gres=vgpu:5", "--vgpu-mode=fast", "true"}, []string{`--vgpu-mode: "fast"`, "hard, soft"}},
		"options without share":              {[]string{"--vgpu-mem=8G", "true"}, []string{`--vgpu-mem: "8G"`, "--gres=vgpu:30"}},
		"an unknown option":                  {[]string{"--vgpu-memory=8G", "--gres=vgpu:5", "true"}, []string{"--vgpu-memory", "unknown"}},
		"share as an option":                 {[]string{"--vgpu-share=8", "--gres=vgpu:5", "true"}, []string{"--vgpu-share", "unknown"}},
		"an option at the end":               {[]string{"--gres=vgpu:5", "--vgpu-mem"}, []string{"--vgpu-mem", "want a value"}},
		"--gres behind an unclear word":      {[]string{"--container-image", "a", "--gres=vgpu:5", "true"}, []string{`--container-image: "a"`, "--container-image=VALUE", "--"}},
		"--comment behind an unclear word":   {[]string{"--gres=vgpu:5", "--vgpu-mem=1G", "--container-image", "a", "--comm=x", "true"}, []string{`"a"`}},
		"--vgpu-mem behind an unclear word":  {[]string{"--gres=vgpu:5", "--container-image", "a", "-n2", "--vgpu-mem=1G", "true"}, []string{`"a"`}},
		"whole cards behind an unclear word": {[]string{"--vgpu-mem=1G", "--container-image", "a", "-G1", "true"}, []string{`"a"`}},
		"a token and options":                {[]string{"--gres=vgpu:5", "--vgpu-mem=1G", "--comment=vgpu(mem=2G)", "true"}, []string{"--comment", "either"}},
	} {
		t.Run(name, func(t *testing.T) {
			argv, code, stdout, stderr := runWrapper(t, nil, c.args...)
			if argv != nil || code != exitError || stdout != "" {
				t.Errorf("ran %q, code %d, stdout %q; want nothing, 1", argv, code, stdout)
			}
			if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "vgpu: ") {
				t.Errorf("stderr %q, want one line of vgpu", stderr)
			}
			for _, part := range c.say {
				if !strings.Contains(stderr, part) {
					t.Errorf("stderr %q, want %q in it", stderr, part)
				}
			}
		})
	}
}

func TestAStepKeepsItsJobsLimits(t *testing.T) {
	argv, _, _, stderr := runWrapper(t, map[string]string{"SLURM_JOB_ID": "5"}, "--gres=vgpu:20", "--vgpu-mem=50%", "true")
	if want := []string{"--gres=shard:20", "true"}; !reflect.DeepEqual(argv, want) {
		t.Errorf("got %q, want %q", argv, want)
	}
	if !strings.Contains(stderr, "limits of its job 5") {
		t.Errorf("stderr %q, want a warning", stderr)
	}
	argv, _, _, _ = runWrapper(t, map[string]string{"SLURM_JOB_ID": "5"}, "--vgpu-mem=50%", "true")
	if want := []string{"true"}; !reflect.DeepEqual(argv, want) {
		t.Errorf("without a share: got %q, want %q", argv, want)
	}
}

func TestShowPrintsAShellLine(t *testing.T) {
	argv, code, stdout, stderr := runWrapper(t, nil, "--show", "--gres=vgpu:30", "--vgpu-mem=10%", "--comment=it's", "sh", "-c", "echo $X")
	if argv != nil || code != exitOK || stderr != "" {
		t.Errorf("ran %q, code %d, stderr %q", argv, code, stderr)
	}
	_, line, _ := strings.Cut(stdout, " ")
	out, err := exec.Command("sh", "-c", `printf '%s\n' `+line).Output()
	if err != nil {
		t.Fatal(err)
	}
	want := "--comment=it's vgpu(mem=10%)\n--gres=shard:30\nsh\n-c\necho $X\n"
	if string(out) != want {
		t.Errorf("a shell reads %q, want %q", out, want)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"-h"}, {"--vgpu-mem=8G", "--help"}} {
		if argv, code, stdout, _ := runWrapper(t, nil, args...); argv != nil || code != exitOK || stdout != usage {
			t.Errorf("%q: ran %q, code %d", args, argv, code)
		}
	}
	// The program's own --help is not ours.
	if argv, _, _, _ := runWrapper(t, nil, "prog", "--help"); len(argv) != 2 {
		t.Errorf("prog --help became %q", argv)
	}
}

func TestWithoutSrun(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	w := Wrapper{Getenv: func(string) string { return "" }, Stderr: &bytes.Buffer{}}
	if path, err := w.find(); err == nil {
		t.Errorf("found %s in an empty path", path)
	}
}
