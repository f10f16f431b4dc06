// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/man"
)

func TestManPage(t *testing.T) {
	t.Setenv("VGPU_CONFIG", "")
	set := flag.NewFlagSet("vgpu-prolog", flag.ContinueOnError)
	flags(set)
	man.Check(t, "vgpu-prolog.8", man.Flags(set))
}
