// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
)

func program(t *testing.T, path, script string) string {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSlurmsCommandsAreFoundWhereTheyAre(t *testing.T) {
	opt := t.TempDir()
	slurmd := program(t, opt+"/sbin/slurmd", "")
	beside := program(t, opt+"/bin/scontrol", "")
	inPath := program(t, t.TempDir()+"/scontrol", "")
	other := program(t, t.TempDir()+"/wrapper", "")
	none := t.TempDir()

	strange := t.TempDir()
	strangeSlurmd := program(t, strange+"/sbin/slurmd", "")
	if err := os.Chmod(program(t, strange+"/bin/scontrol", ""), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, configured, path string
		slurmds                []string
		want                   string
	}{
		{"the administrator's", other, filepath.Dir(inPath), []string{slurmd}, other},
		{"in PATH", "", filepath.Dir(inPath), []string{slurmd}, inPath},
		{"a name in PATH", "wrapper", filepath.Dir(other), []string{slurmd}, other},
		{"beside slurmd", "scontrol", none, []string{"/nowhere/sbin/slurmd", slurmd}, beside},
		{"an empty PATH", "", "", []string{slurmd}, beside},
		{"nowhere", "", none, nil, ""},
		{"a path to nothing", opt + "/bin/scontrol2", filepath.Dir(inPath), []string{slurmd}, ""},
		{"a folder", opt, filepath.Dir(inPath), []string{slurmd}, ""},
		{"what anybody may write", "", none, []string{strangeSlurmd}, ""},
	} {
		t.Setenv("PATH", c.path)
		got, err := Find(c.configured, c.slurmds...)
		if got != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, ErrNoCommand) {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

// What is not there at the start is found as soon as it is there, and again elsewhere.
func TestSlurmsCommandsMayComeLateAndMove(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	first, second := t.TempDir(), t.TempDir()
	client := New(Options{Slurmds: func() []string { return []string{first + "/sbin/slurmd", second + "/sbin/slurmd"} }})
	again := func() { client.programs.looked = client.programs.looked.Add(-2 * lookAgain) }

	if client.Check(t.Context()) || !strings.Contains(client.Problem(), "scontrol is not in PATH") || client.Scontrol() != "" {
		t.Errorf("without commands: %q", client.Problem())
	}
	err := client.Requeue(context.Background(), 7)
	if !errors.Is(err, ErrNoCommand) || !errors.Is(err, ErrUnavailable) {
		t.Errorf("requeue without commands: %v", err)
	}
	for _, dir := range []string{first, second} {
		program(t, dir+"/sbin/slurmd", "")
		path := program(t, dir+"/bin/scontrol", `[ "$*" != ping ] || echo "Slurmctld(primary) at h is UP"`)
		again()
		if !client.Check(t.Context()) || client.Problem() != "" || client.Scontrol() != path {
			t.Errorf("%q, found %q, want %q", client.Problem(), client.Scontrol(), path)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A slurmctld that does not answer at the start is told until it has answered once.
func TestASilentSlurmctldIsAProblemUntilItAnswers(t *testing.T) {
	client, dir := commands(t, map[string]string{
		"scontrol": `[ "$*" != ping ] || { echo "Slurmctld(primary) at h is DOWN"; exit 1; }`,
	})
	if client.Check(t.Context()) || !strings.Contains(client.Problem(), "scontrol ping") {
		t.Errorf("no slurmctld: %q", client.Problem())
	}
	if _, err := client.Settings(t.Context()); err != nil || client.Problem() != "" {
		t.Errorf("it has answered: %v, %q", err, client.Problem())
	}
	if !client.Check(t.Context()) || client.Problem() != "" {
		t.Errorf("down again, which reconciliation tells: %q", client.Problem())
	}
	if client.Scontrol() != dir+"/scontrol" {
		t.Errorf("scontrol is %q", client.Scontrol())
	}
}

// Users can give their processes that name.
func TestOnlyRootsSlurmdCounts(t *testing.T) {
	for _, path := range Slurmds() {
		if filepath.Base(path) != "slurmd" {
			t.Errorf("%s is no slurmd", path)
		}
	}
	uid, ok := process.Dir("/proc/self").UID()
	if !ok || int(uid) != os.Getuid() {
		t.Errorf("own user: %d, %t", uid, ok)
	}
}
