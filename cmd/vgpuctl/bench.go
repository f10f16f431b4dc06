// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
)

// benchFolder is where make install puts the benchmark; benchEnv names another
// folder, such as build/ of a checkout.
const (
	benchFolder = "/usr/lib/vgpu/bench"
	benchEnv    = "VGPU_BENCH_FOLDER"
)

// benchFiles are what the benchmark is made of.
var benchFiles = []string{"tests/vgpu-bench", "tests/vgpu-load", "bin/gresd", "lib/libvgpu.so"}

// benchFlags are the command line of vgpuctl bench.
type benchFlags struct {
	full, sim bool
	scenarios string
	out       string
	budget    time.Duration
	peers     []string
}

func (s *settings) benchCommand() *cobra.Command {
	var b benchFlags
	cmd := &cobra.Command{
		Use:   "bench [-- FLAG...]",
		Short: "Measure how well shares are kept on card 0 of this node (root; drained, gresd stopped)",
		Long: "Measure how well shares are kept on card 0 of this node: share asked and got beside busy tenants,\n" +
			"in windows, the latency of requests, what a launch costs; natively and with slurm-vgpu, in one run.\n\n" +
			"--scenario company asks instead whether programs do beside others what they do alone under the same\n" +
			"limit; the exit status is 1 when one keeps too little of that.\n\n" +
			"Prints tables, and writes results.jsonl, results.md and plots of the shares over time (SVG) to --out.\n" +
			"With --json stdout has the results alone. What follows -- goes to vgpu-bench, see vgpuctl bench -- --help.",
		Example: "  scontrol update node=$(hostname -s) state=drain reason=bench\n" +
			"  systemctl stop gresd && vgpuctl bench; systemctl start gresd",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at > 0 || at < 0 && len(args) > 0 {
				return fmt.Errorf("%q: want flags of vgpu-bench behind --, for example: vgpuctl bench -- --case '^30/70'", args[0])
			}
			return failed(s.bench(cmd, b, args))
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&b.full, "full", false, "every scenario, about 20 minutes; without it the main ones, at most 5")
	flags.BoolVar(&b.sim, "sim", false, "on a simulated card: tries the benchmark, says nothing of a real one")
	flags.StringVar(&b.scenarios, "scenario", "", "every case of these `NAMES`, separated by commas; vgpuctl bench -- --list tells them and how long they take")
	flags.StringVar(&b.out, "out", "", "`FOLDER` for results and plots (default vgpu-bench-DATE-TIME)")
	flags.DurationVar(&b.budget, "budget", 0, "leave out what would take longer than this `TIME` in all")
	flags.StringArrayVar(&b.peers, "peer", nil, "`NAME=LIBRARY` that is preloaded instead, to compare with; may come again")
	cmd.MarkFlagsMutuallyExclusive("full", "scenario")
	complete(cmd, "scenario", "company", "contended", "soft", "latency", "alone", "cost", "torch", "unlimited")
	complete(cmd, "budget", "2m", "4m", "10m", "20m")
	return cmd
}

func (s *settings) bench(cmd *cobra.Command, b benchFlags, more []string) error {
	if b.out == "" {
		b.out = "vgpu-bench-" + time.Now().Format("20060102-150405")
	}
	folder := cmp.Or(os.Getenv(benchEnv), benchFolder)
	if err := s.benchReady(folder, b, more); err != nil {
		return err
	}
	run := exec.CommandContext(cmd.Context(), filepath.Join(folder, "tests/vgpu-bench"), append(b.args(folder), more...)...)
	run.Cancel = func() error { return run.Process.Signal(syscall.SIGTERM) } // it ends its tenants
	run.WaitDelay = 30 * time.Second
	run.Stdin, run.Stderr = cmd.InOrStdin(), cmd.ErrOrStderr()
	run.Stdout = cmd.OutOrStdout()
	if s.json {
		run.Stdout = cmd.ErrOrStderr() // how it goes on
	}
	began := time.Now()
	bad := run.Run()
	if bad != nil {
		bad = fmt.Errorf("vgpu-bench: %w", bad)
	}
	results := filepath.Join(b.out, "results.jsonl")
	if !s.json || onlyTells(more) || bad != nil && !writtenSince(results, began) {
		return bad
	}
	records, err := readRecords(results)
	if err != nil {
		return errors.Join(bad, err)
	}
	return errors.Join(bad, s.print(cmd.OutOrStdout(), records, nil))
}

// writtenSince tells results of this run, which may be bad ones, from those of another.
func writtenSince(path string, t time.Time) bool {
	info, err := os.Stat(path)
	return err == nil && !info.ModTime().Before(t)
}

func (b benchFlags) args(folder string) []string {
	args := []string{"--build", folder, "--out", b.out, "--plots"}
	switch {
	case b.scenarios != "":
		args = append(args, "--scenario", b.scenarios)
	case b.full && b.budget == 0:
		args = append(args, "--budget", "20m")
	case !b.full:
		args = append(
			args, "--scenario", "contended,latency,alone,cost", "--python", "",
			"--case", `^(30/70, 1 ms|10/30/60|4 x 25|(high )?burst|(25|50), 1ms|launch, (100 %|50 % hard)|gresd, 8 busy)`, "--budget", cmp.Or(b.budget, 5*time.Minute).String(),
		)
	}
	if (b.full || b.scenarios != "") && b.budget != 0 {
		args = append(args, "--budget", b.budget.String())
	}
	if b.sim {
		args = append(args, "--sim", "--python", "")
	}
	for _, p := range b.peers {
		args = append(args, "--peer", p)
	}
	return args
}

// onlyTells says whether nothing is measured.
func onlyTells(more []string) bool {
	for _, arg := range more {
		switch strings.TrimLeft(arg, "-") {
		case "help", "h", "list", "version":
			return true
		}
	}
	return false
}

// benchReady says what is missing before anything is started.
func (s *settings) benchReady(folder string, b benchFlags, more []string) error {
	for _, name := range benchFiles {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			return fmt.Errorf("bench: %w: the benchmark is not installed: reinstall slurm-vgpu-node (or make install), or $%s=build/ of a checkout after make", err, benchEnv)
		}
	}
	if onlyTells(more) {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("bench: not root: it starts a gresd of its own, and tenants as another user; run it as root")
	}
	cfg, err := config.Load(s.config)
	if err != nil {
		return err
	}
	socket, err := s.socketPath()
	if err != nil {
		return err
	}
	if conn, err := net.DialTimeout("unix", socket, time.Second); err == nil {
		_ = conn.Close() // only whether somebody listens
		return errors.New("bench: gresd is running here, and its jobs would disturb the measurement: drain the node, wait for its jobs to end, systemctl stop gresd")
	}
	if b.sim {
		return nil
	}
	cards, err := driver.Open(cfg.NVML.Library)
	if err != nil {
		return fmt.Errorf("bench: no card to measure: %w; vgpuctl doctor says more; --sim tries the benchmark on a simulated card", err)
	}
	defer cards.Close()
	if list, err := cards.Cards(); len(list) == 0 {
		return fmt.Errorf("bench: no card to measure (%w); vgpuctl doctor says more; --sim tries the benchmark on a simulated card", errors.Join(errors.New("the driver knows none"), err))
	}
	return nil
}

// readRecords are the lines of results.jsonl as they are.
func readRecords(path string) ([]json.RawMessage, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records := []json.RawMessage{}
	for lines := json.NewDecoder(f); lines.More(); {
		var record json.RawMessage
		if err := lines.Decode(&record); err != nil {
			return nil, err
		}
		records = append(records, record)
	}
	return records, nil
}
