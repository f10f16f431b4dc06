// SPDX-License-Identifier: Apache-2.0

// Package known marks the test cases of faults that are known and not fixed yet.
package known

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Runs returns true if the environment variable VGPU_KNOWN lists the fault.
func Runs(id string) bool {
	run := os.Getenv("VGPU_KNOWN")
	return run == "all" || slices.Contains(strings.Split(run, ","), id)
}

// Fault skips the test case of a fault that is not fixed yet. The environment variable VGPU_KNOWN
// lists the faults to run, such as "F10,F23", or "all". The change that fixes a fault removes its
// call of Fault.
func Fault(t testing.TB, id string) {
	t.Helper()
	if Runs(id) {
		return
	}
	t.Skipf("known fault %s: run its case with VGPU_KNOWN=%s", id, id)
}
