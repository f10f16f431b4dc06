// SPDX-License-Identifier: Apache-2.0

// Package model checks the protocol of the shared files with SPIN: every order of steps, with a
// death at every step. The model lists its assumptions.
package model

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var (
	errorsFound = regexp.MustCompile(`errors: (\d+)`)
	states      = regexp.MustCompile(`(\d+) states, stored`)
	violated    = regexp.MustCompile(`pan:1: (.*) \(at depth`)
)

// check looks at every state of a model and returns what is wrong in one, "" for
// nothing. flags are for spin; what looks at states is told in gccFlags.
func check(t *testing.T, model string, flags []string, gccFlags ...string) string {
	t.Helper()
	path, err := filepath.Abs(model)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("spin", append(append([]string{}, flags...), "-a", path)...)
	// A process is killed in the middle of anything: no step may be left out.
	run("gcc", append([]string{"-O1", "-w", "-DSAFETY", "-DNOREDUCE", "-o", "pan", "pan.c"}, gccFlags...)...)
	began := time.Now()
	out := run("./pan", "-m100000", "-w22")
	found, n := errorsFound.FindStringSubmatch(out), states.FindStringSubmatch(out)
	if found == nil || n == nil || strings.Contains(out, "max search depth too small") || strings.Contains(out, "Search not completed") && found[1] == "0" {
		t.Fatalf("not all states were seen:\n%s", out)
	}
	t.Logf("%s states, %.1f s", n[1], time.Since(began).Seconds())
	if found[1] == "0" {
		return ""
	}
	what := violated.FindStringSubmatch(out)
	if what == nil {
		t.Fatalf("errors, of no kind:\n%s", out)
	}
	return what[1]
}

func TestMemoryProtocolHolds(t *testing.T) {
	configurations := map[string]string{
		"two processes and gresd":                "-DJOBS=2 -DGRESD",
		"three processes, one more than slots":   "-DJOBS=3",
		"nobody waits for somebody who has died": "-DJOBS=2 -DGRESD -DSTOPS",
	}
	var gcc []string
	if os.Getenv("VGPU_LONG") != "" {
		configurations["two processes, gresd, and second allocations"] = "-DJOBS=2 -DGRESD -DTRIES=2"
		configurations["three processes, gresd, and three allocations among them"] = "-DJOBS=3 -DGRESD -DTRIES=me-1"
		configurations["three processes, gresd, and second allocations"] = "-DJOBS=3 -DGRESD -DTRIES=2"
		// All states, each kept as numbers of its parts: a third of the memory.
		gcc = []string{"-DCOLLAPSE", "-DMEMLIM=4096"}
	}
	for name, flags := range configurations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if wrong := check(t, "memory.pml", strings.Fields(flags), gcc...); wrong != "" {
				t.Errorf("%s", wrong)
			}
		})
	}
}

// Each rule of the protocol is needed: without it the model finds what breaks.
func TestMemoryProtocolNeedsEachStep(t *testing.T) {
	const over, leak, lost = "held[1]", "mem[i]==0", "owner[i]==me"
	for flag, want := range map[string]string{
		"ANNOUNCE":  over, // looks, then announces
		"HIGH":      over, // the mark of slots in use is raised after the slot is used
		"GRACE":     over, // a slot of the dead stops to count at once
		"FREE":      over, // bytes are taken back before the driver has freed them
		"SWAP":      lost, // a slot is taken without a compare-and-swap
		"TAKE_BACK": "mem[mine]==held[me]",
		"RELEASE":   leak, // the owner goes before the bytes
		"OWNER":     leak, // who clears a slot does not become its owner
		"LOCK":      "invalid end state",
		"MARK":      over, // a note of a death does not say whose
	} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			flags, gcc := []string{"-DJOBS=2", "-DGRESD"}, []string(nil)
			switch flag {
			case "LOCK":
				flags = append(flags, "-DSTOPS")
			case "MARK":
				flags, gcc = []string{"-DJOBS=3", "-DGRESD", "-DTRIES=me-1"}, []string{"-DP_REVERSE"}
			}
			if got := check(t, "memory.pml", append(flags, "-DBREAK_"+flag), gcc...); !strings.Contains(got, want) {
				t.Errorf("found %q, want %q", got, want)
			}
		})
	}
}
