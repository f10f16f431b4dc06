// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func record(values ...string) string { return strings.Join(values, columns) + "\n" }

func TestParseAccount(t *testing.T) {
	array := record("8", "8", "Unknown", "") + record("7", "7_2", "2026-11-22T01:00:00", "a\n9 | b\n") +
		record("9", "5+1", "None", "x")
	for _, c := range []struct {
		id   uint32
		want Account
	}{
		{7, Account{true, "a\n9 | b\n", "7_2"}},
		{8, Account{false, "", "8"}},
		{9, Account{false, "x", "9"}},
	} {
		if got, err := parseAccount(array, c.id); err != nil || got != c.want {
			t.Errorf("job %d: %+v, %v; want %+v", c.id, got, err, c.want)
		}
	}
	for text, want := range map[string]error{
		"":                        ErrNoJob,
		array:                     ErrNoJob, // no record of job 5
		"5" + columns + "RUNNING": ErrUnavailable,
	} {
		if got, err := parseAccount(text, 5); !errors.Is(err, want) {
			t.Errorf("%q: %+v, %v; want %v", text, got, err, want)
		}
	}
}

// Until the task's own name is there, the number of an array is no name: it would be that of all tasks.
func TestAccountOfATaskWhoseNameIsNotKnownYet(t *testing.T) {
	const over = "2026-11-22T01:00:00"
	other := record("8", "7_1", over, "")
	for _, c := range []struct {
		name string
		want Account
	}{
		{"7", Account{false, "", "7"}},
		{"7_2", Account{true, "", "7_2"}},
	} {
		if got, err := parseAccount(other+record("7", c.name, over, ""), 7); err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

func TestAccountCommands(t *testing.T) {
	var timed []string
	client, dir := commands(t, map[string]string{
		"sacct":    `case "$*" in *"-j 7 -o JobIDRaw,JobID,End,AdminComment") printf '7\0017\0012026-11-22T01:00:00\001old\n';; *) exit 1;; esac`,
		"sacctmgr": `printf '%s|' "$@" > "$(dirname "$0")/seen"`,
	})
	if got, err := client.Account(context.Background(), 7, AdminComment); err != nil || got != (Account{true, "old", "7"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	client.took = func(command string, _ time.Duration) { timed = append(timed, command) }
	// The last task of an array that starts has the array's number; slurmdbd may hear so last.
	client.names.byJob = map[nameKey]string{{client.conf, 7}: "7_2"}
	if got, err := client.Account(context.Background(), 7, AdminComment); err != nil || got.Name != "7_2" {
		t.Errorf("got %+v, %v; want the name that slurmctld has told", got, err)
	}
	if err := client.SetAccount(context.Background(), "7_2", AdminComment, "a, b=c"); err != nil {
		t.Fatal(err)
	}
	const want = "-i|modify|job|where|jobid=7_2|set|AdminComment=a, b=c|"
	if seen, err := os.ReadFile(filepath.Join(dir, "seen")); err != nil || string(seen) != want {
		t.Errorf("sacctmgr was given %q, %v; want %q", seen, err, want)
	}
	for _, command := range timed {
		if !slices.Contains(Commands(), command) {
			t.Errorf("%s is timed, and not in the list of commands", command)
		}
	}
	if !slices.Equal(timed, []string{"sacct", "sacctmgr"}) {
		t.Errorf("timed %q, want sacct and sacctmgr", timed)
	}
}
