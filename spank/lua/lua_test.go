// SPDX-License-Identifier: Apache-2.0

// Package lua runs the tests of the scripts in etc/slurm, so that one runner
// counts them all.
package lua

import (
	"os/exec"
	"testing"
)

func TestLua(t *testing.T) {
	if out, err := exec.Command("./check.sh").CombinedOutput(); err != nil {
		t.Errorf("check.sh: %v\n%s", err, out)
	}
}
