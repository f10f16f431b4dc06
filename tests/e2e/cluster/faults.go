// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os/exec"
	"strings"
)

// Sim runs a command of simgpu on the simulated cards, such as "xid --card 0
// --code 79 --lost 999".
func (c *Cluster) Sim(command string) error {
	args := append(strings.Fields(command), "--state", simState)
	if out, err := exec.Command(simTool, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("simgpu %s: %w: %s", command, err, out)
	}
	return nil
}

// Munged is the daemon that signs what Slurm's programs say to each other.
func (c *Cluster) Munged() *Daemon { return c.munged }

// State says how the process started last has ended, "" while it runs.
func (d *Daemon) State() string {
	if d.Alive() {
		return ""
	}
	return d.cmd.ProcessState.String()
}

// Paths that tests put faults into, and read as somebody who is not gresd would.
const (
	StateDir = stateDir
	RunDir   = runDir
	SimState = simState
)
