// SPDX-License-Identifier: Apache-2.0

// Package c runs the tests of the C parts, so that one runner counts them all.
// Each part's makefile knows how to build and run its own.
package c

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestC(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range []struct{ name, part, target string }{
		{"SPANK plugin", "spank/plugin", "check"},
		{"preload library", "libvgpu", "check"},
		{"preload library under AddressSanitizer", "libvgpu", "check-asan"},
		{"preload library under UndefinedBehaviorSanitizer", "libvgpu", "check-ubsan"},
		{"preload library under ThreadSanitizer", "libvgpu", "check-tsan"},
		{"corpora of the fuzz targets under AddressSanitizer and UndefinedBehaviorSanitizer", "tests/fuzz", "check"},
	} {
		t.Run(check.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("make", "--no-print-directory", "-C", filepath.Join(root, check.part), check.target)
			// What the outer make was called with is not for this one.
			for _, kv := range os.Environ() {
				if !strings.HasPrefix(kv, "MAKE") && !strings.HasPrefix(kv, "MFLAGS=") {
					cmd.Env = append(cmd.Env, kv)
				}
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("make -C %s %s: %v\n%s", check.part, check.target, err, out)
			}
		})
	}
}
