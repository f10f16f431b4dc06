// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"os"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
	"github.com/slurm-vgpu/slurm-vgpu/tests/storm"
)

func TestMain(m *testing.M) {
	storm.Become()
	processor.Prefer()
	if err := cluster.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// long asks for the whole matrix and the soak: VGPU_LONG=1.
var long = os.Getenv("VGPU_LONG") != ""
