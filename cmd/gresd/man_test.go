// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/man"
)

func TestManPage(t *testing.T) { man.Check(t, "gresd.8", man.Cobra(command())) }
