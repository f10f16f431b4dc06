// SPDX-License-Identifier: Apache-2.0

// nvidia-cuda-mps-control stands in for NVIDIA's program where there is no card.
package main

import (
	"os"

	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

func main() { os.Exit(fake.Main()) }
