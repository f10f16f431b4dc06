// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

const (
	benchFolder = "/usr/lib/vgpu/bench" // from make install
	benchEnv    = "VGPU_BENCH_FOLDER"   // another folder, such as build/ of a checkout
)

// benchMain runs the main cases in at most 5 minutes.
var benchMain = []string{
	"--scenario", "contended,latency,alone,cost", "--python", "", "--budget", "5m",
	"--case", `^(30/70, 1 ms|10/30/60|4 x 25|(high )?burst|(25|50), 1ms|launch, (100 %|50 % hard)|gresd, 8 busy)`,
}

func (s *settings) benchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "bench [FLAG...]",
		Short: "Measure how well shares are kept on card 0 of this node (root; drained, gresd stopped)",
		Long: "Measure how well shares are kept on card 0 of this node, with and without slurm-vgpu in one run.\n\n" +
			"Without flags it runs the main cases in at most 5 minutes. With flags it runs vgpu-bench with these\n" +
			"flags: --budget 20m runs every scenario, --scenario company compares programs next to busy jobs with\n" +
			"the same programs alone, --sim uses a simulated card, and -help shows all flags.\n\n" +
			"It prints tables, and writes results.jsonl, results.md and plots of the shares over time (SVG) to\n" +
			"--out (default vgpu-bench-DATE-TIME).",
		Example: "  scontrol update node=$(hostname -s) state=drain reason=bench\n" +
			"  systemctl stop gresd && vgpuctl bench; systemctl start gresd",
		DisableFlagParsing: true,
		ValidArgsFunction:  cobra.NoFileCompletions,
		RunE: s.run(func(cmd *cobra.Command, args []string) error {
			if slices.Contains(args, "--help") {
				return cmd.Help()
			}
			return s.bench(args)
		}),
	}
}

// bench replaces this process by vgpu-bench.
func (s *settings) bench(args []string) error {
	folder := cmp.Or(os.Getenv(benchEnv), benchFolder)
	program := filepath.Join(folder, "tests/vgpu-bench")
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("bench: %w: the benchmark is not installed: reinstall slurm-vgpu-node (or make install), or set %s=build/ of a checkout after make", err, benchEnv)
	}
	onlyPrints := slices.ContainsFunc(args, func(arg string) bool {
		return slices.Contains([]string{"help", "h", "list", "version"}, strings.TrimLeft(arg, "-"))
	})
	socket, _ := s.socketPath()
	if conn, err := net.DialTimeout("unix", socket, time.Second); err == nil && !onlyPrints {
		_ = conn.Close()
		return errors.New("bench: gresd is running here, and its jobs would disturb the measurement: drain the node, wait for its jobs to end, systemctl stop gresd")
	}
	if len(args) == 0 {
		args = benchMain
	}
	out := "vgpu-bench-" + time.Now().Format("20060102-150405")
	err := syscall.Exec(program, append([]string{program, "--build", folder, "--plots", "--out", out}, args...), os.Environ())
	return fmt.Errorf("bench: %s: %w", program, err)
}
