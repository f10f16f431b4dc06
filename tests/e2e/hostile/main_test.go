// SPDX-License-Identifier: Apache-2.0

// Package hostile attacks a running slurm-vgpu as a user of the node would that
// wants what is not theirs: files, processes and shares of others, gresd's time
// and memory, or more of the card. Every attack is a row of a table in
// docs/security.md with the level that stops it, or with the word that nothing does.
package hostile

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
)

var update = flag.Bool("update", false, "write the table of docs/security.md")

// TestMain is also the attacker: the test program is copied to where users may run
// it, and does what it is told there as that user (see agents).
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == agentName {
		agent(os.Args[1:])
		return
	}
	processor.Prefer()
	if err := cluster.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Attacks that wait for Slurm do so together, on two processors as well.
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Users that every Debian has: alice attacks with a job of hers, bob is attacked,
// carol attacks without a job.
const (
	alice = "www-data"
	bob   = "games"
	carol = "nobody"
)

const (
	gib    = 1 << 30
	runDir = "/run/vgpu"
	socket = runDir + "/gresd.sock"
	state  = cluster.Dir + "/state/vgpu"
)

// isLong says that tests may take their time: VGPU_LONG=1.
func isLong() bool { return os.Getenv("VGPU_LONG") != "" }
