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
