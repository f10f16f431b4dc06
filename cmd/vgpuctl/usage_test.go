// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// Users type vgpuctl where they log in, and there is no gresd.
func TestWithoutASocketTheNodeIsNamed(t *testing.T) {
	for _, c := range []struct {
		uid  int
		dir  string
		want string
	}{
		{1000, "/nonexistent", "vgpuctl jobs, top, ps and explain JOB ask the nodes of your jobs"},
		{1000, t.TempDir(), "systemctl status gresd"},
		{0, "/nonexistent", "systemctl status gresd"},
	} {
		if got := noSocket(c.uid, c.dir); !strings.Contains(got, c.want) {
			t.Errorf("user %d, %s: %s; want %s", c.uid, c.dir, got, c.want)
		}
	}
}

// A command line that is wrong is answered with what would be right.
func TestWrongCommandLineSaysWhatIsWanted(t *testing.T) {
	for line, want := range map[string]string{
		"":                      "vgpuctl: want a command, for example: vgpuctl status\n",
		"statsu":                "vgpuctl: \"statsu\": unknown command, did you mean status?\n",
		"frobnicate":            "vgpuctl: \"frobnicate\": unknown command, want one of bench, check-config, completion, cordon, doctor, explain, inspect, jobs, nodes, ps, report, set, status, top, topo, uncordon, web\n",
		"cordon":                "vgpuctl: cordon: no argument: want vgpuctl cordon CARD [REASON...]; see vgpuctl cordon --help\n",
		"uncordon 0 1":          "vgpuctl: uncordon: \"0 1\": want vgpuctl uncordon CARD; see vgpuctl uncordon --help\n",
		"set":                   "vgpuctl: set: no argument: want vgpuctl set JOB --cores N; see vgpuctl set --help\n",
		"set 4217":              "vgpuctl: set: required flag(s) \"cores\" not set: want vgpuctl set JOB --cores N; see vgpuctl set --help\n",
		"set 4217 --cores much": "vgpuctl: set: invalid argument \"much\" for \"--cores\" flag: strconv.ParseUint: parsing \"much\": invalid syntax: want vgpuctl set JOB --cores N; see vgpuctl set --help\n",
		"jobs mine":             "vgpuctl: jobs: \"mine\": want vgpuctl jobs; see vgpuctl jobs --help\n",
		"status --all":          "vgpuctl: status: unknown flag: --all: want vgpuctl status; see vgpuctl status --help\n",
		"--all":                 "vgpuctl: unknown flag: --all: see vgpuctl --help\n",
		"completion tcsh":       "vgpuctl: completion: \"tcsh\": want vgpuctl completion {bash | zsh | fish}; see vgpuctl completion --help\n",
		"inspect":               "vgpuctl: inspect: no argument: want vgpuctl inspect FILE; see vgpuctl inspect --help\n",
		"explain 4217 4218":     "vgpuctl: explain: \"4217 4218\": want vgpuctl explain {JOB | --gres=vgpu:N [--vgpu-OPTION=VALUE ...]}; see vgpuctl explain --help\n",
		"check-config one two":  "vgpuctl: check-config: \"one two\": want vgpuctl check-config [FILE]; see vgpuctl check-config --help\n",
	} {
		if out, errs, code := run(t, strings.Fields(line)...); code != 2 || errs != want || out != "" {
			t.Errorf("vgpuctl %s: exit %d, %q%s; want\n%s", line, code, out, errs, want)
		}
	}
	out, errs, code := run(t, "--config", "/nowhere/vgpu.toml", "inspect", "4217")
	if want := "vgpuctl: inspect: \"4217\": want a file; those of a job are /run/vgpu/jobs/4217/grant and cache beside it\n"; code != 1 || errs != want || out != "" {
		t.Errorf("exit %d, %q%s; want\n%s", code, out, errs, want)
	}
}
