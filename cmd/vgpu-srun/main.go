// SPDX-License-Identifier: Apache-2.0

// Command vgpu-srun runs srun with a share of a GPU, where Slurm has no SPANK
// plugin for the --vgpu options. See docs/man/vgpu-srun.1.
package main

import (
	"os"
	"syscall"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/spank/srun"
)

func main() {
	cfg, err := config.Load(config.DefaultPath)
	os.Exit(srun.Wrapper{
		GresdPlaces: err == nil && cfg.Placement.By == config.PlacementGresd,

		Getenv: os.Getenv,
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		Exec:   func(path string, argv []string) error { return syscall.Exec(path, argv, os.Environ()) },
	}.Run(os.Args[1:]))
}
