// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"os/exec"
)

// simulatedMemory is what is in use on each simulated card.
func (c *Cluster) simulatedMemory() (map[int]uint64, error) {
	out, err := exec.Command(simTool, "status", "--json", "--state", simState).Output()
	if err != nil {
		return nil, fmt.Errorf("simgpu status: %w", err)
	}
	var cards []struct {
		Index int
		Used  uint64
	}
	if err := json.Unmarshal(out, &cards); err != nil {
		return nil, fmt.Errorf("simgpu status: %w", err)
	}
	used := map[int]uint64{}
	for _, card := range cards {
		used[card.Index] = card.Used
	}
	return used, nil
}
