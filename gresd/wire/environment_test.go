// SPDX-License-Identifier: Apache-2.0

package wire

import "testing"

func TestTasksDivideWhatIsForAll(t *testing.T) {
	for _, c := range []struct {
		line  string
		tasks int
		want  string
	}{
		{"A=70", 4, "A=70"},
		{"A/tasks=70", 4, "A=17"},
		{"A/tasks=70", 1, "A=70"},
		{"A/tasks=70", 0, "A=70"},
		{"A/tasks=3", 4, "A=1"},
		{"A=b/tasks=3", 4, "A=b/tasks=3"},
		{"A/tasks=x", 2, "A=1"},
		{"", 2, ""},
	} {
		if got := ForTask(c.line, c.tasks); got != c.want {
			t.Errorf("%q for one of %d: %q, want %q", c.line, c.tasks, got, c.want)
		}
	}
}
