// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// PerTask ends a name in a job's file of variables: NAME/tasks=N is a whole number that all
// tasks of a step on the node have together. The SPANK plugin (jobenv.c) knows it, too.
const PerTask = "/tasks"

// ForTask returns what one of so many tasks gets of a line of that file, as NAME=VALUE: of
// what is for all an equal part, at least 1.
func ForTask(line string, tasks int) string {
	name, value, _ := strings.Cut(line, "=")
	name, shared := strings.CutSuffix(name, PerTask)
	if !shared {
		return line
	}
	n, _ := strconv.Atoi(value) // gresd writes a number
	return fmt.Sprintf("%s=%d", name, max(1, n/max(1, tasks)))
}
