// SPDX-License-Identifier: Apache-2.0

package prolog

import "testing"

func TestTasksOfThisNode(t *testing.T) {
	for _, c := range []struct {
		list, node string
		want       int
	}{
		{"4", "0", 4},
		{"2(x3),4", "2", 2},
		{"2(x3),4", "3", 4},
		{"2(x3),4", "4", 1},
		{"", "0", 1},
		{"4", "", 1},
		{"x", "0", 1},
		{"4(x", "0", 4},
		{"4", "-1", 4},
	} {
		h := &Hook{Getenv: func(name string) string {
			return map[string]string{"SLURM_STEP_TASKS_PER_NODE": c.list, "SLURM_NODEID": c.node}[name]
		}}
		if got := h.tasks(); got != c.want {
			t.Errorf("%q on node %q: %d tasks, want %d", c.list, c.node, got, c.want)
		}
	}
}
