// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/doctor"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
)

// probeLibrary is the command that the doctor runs as its child.
const probeLibrary = "probe-library"

func (s *settings) doctorCommand() *cobra.Command {
	var local, strict, quiet bool
	limit := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node from the driver to Slurm",
		Long: "Check this node from the driver to Slurm. Each line passes, warns or fails, and says what to do.\n\n" +
			"Exit status: 0 when nothing fails, 1 when something does (with --strict: or warns), 2 for a wrong\n" +
			"command line. It ends after --timeout, whatever hangs. Run it as root: users see less.",
		Example: "  vgpuctl doctor\n" +
			"  vgpuctl doctor --local --quiet --timeout 20s   # in a HealthCheckProgram",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < time.Second {
				return fmt.Errorf("--timeout: %s: want at least 1s", limit)
			}
			return s.doctor(cmd, doctor.Options{
				Config: s.config, Version: version, Local: local, Timeout: limit, Probe: probeWith,
			}, strict, quiet)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&local, "local", false, "ask nothing of slurmctld: for programs that run on every node")
	flags.BoolVar(&strict, "strict", false, "a warning is a failure")
	flags.BoolVar(&quiet, "quiet", false, "leave out what passes")
	flags.DurationVar(&limit, "timeout", limit, "`TIME` for all checks together")
	complete(cmd, "timeout", "10s", "20s", "30s", "1m")
	return cmd
}

func (s *settings) doctor(cmd *cobra.Command, o doctor.Options, strict, quiet bool) error {
	out := onScreen(cmd.OutOrStdout())
	p := s.paint(out)
	found := []doctor.Finding{}
	doctor.Run(cmd.Context(), o, func(f doctor.Finding) {
		if quiet && f.Status == doctor.Pass {
			return
		}
		f = told(f)
		found = append(found, f)
		if !s.json {
			writeFinding(out, p, f)
		}
	})
	worst := doctor.Worst(found)
	bad := worst == doctor.Fail || strict && worst == doctor.Warn
	if s.json {
		result := struct {
			OK       bool             `json:"ok"`
			Worst    doctor.Status    `json:"worst"`
			Findings []doctor.Finding `json:"findings"`
		}{!bad, worst, found}
		if err := s.print(out, result, nil); err != nil {
			return failure{err}
		}
	}
	if bad {
		return failure{errSilent}
	}
	return nil
}

// told is a finding fit for a terminal: it may hold words of the driver, of the loader
// and of Slurm's tools.
func told(f doctor.Finding) doctor.Finding {
	oneLine := func(text string) string {
		return strings.Map(visible, strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " "))
	}
	f.Message, f.Remedy = oneLine(f.Message), oneLine(f.Remedy)
	return f
}

func writeFinding(w io.Writer, p paint, f doctor.Finding) {
	word := p.code(map[doctor.Status]string{doctor.Pass: green, doctor.Warn: yellow, doctor.Fail: red, doctor.Skip: dim}[f.Status], string(f.Status))
	const text = 17 // the column where it begins
	fmt.Fprintln(w, fold(fmt.Sprintf("%s  %-9s  %s", word, f.Check, f.Message), columnsOf(w), text))
	if f.Remedy != "" {
		fmt.Fprintln(w, fold(strings.Repeat(" ", text)+p.code(dim, "do: "+f.Remedy), columnsOf(w), text+4))
	}
}

// probeWith tries the library in a child of its own: it may end the process that
// loads it. The child has a limit by its environment, or by the grant of the job
// that doctor runs in.
func probeWith(ctx context.Context, library, cuda string) (doctor.Probed, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", probeLibrary, "--cuda", cuda)
	cmd.Env = []string{"LD_PRELOAD=" + library, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT=%dM", int64(doctor.ProbeLimit)>>20)}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "SIMGPU_STATE"} {
		if v, set := os.LookupEnv(name); set {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	out, errs := process.Output{Most: mostSaid}, process.Output{Most: mostSaid}
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return doctor.Probed{}, errors.New("no answer in time")
	}
	return probedOf(out.String(), strings.TrimSpace(errs.String()), err)
}

// probedOf reads the child's answer; said and failed are what else is known of it.
func probedOf(out, said string, failed error) (got doctor.Probed, err error) {
	switch {
	case failed != nil:
		return got, fmt.Errorf("%w: %s", failed, said)
	case strings.Contains(said, "ld.so"): // "cannot be preloaded": the loader goes on without it
		return got, errors.New(said)
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		return doctor.Probed{}, fmt.Errorf("its answer: %w", err)
	}
	return got, nil
}

// mostSaid is room for what a child that is sane prints.
const mostSaid = 64 << 10

func probeLibraryCommand() *cobra.Command {
	var cuda string
	cmd := &cobra.Command{
		Use:    probeLibrary,
		Short:  "Print what a program is told of a card's memory",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			name, address, err := probe.TotalMemory(cuda)
			if err != nil {
				return failure{err}
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(doctor.Probed{ByName: name, ByAddress: address})
		},
	}
	cmd.Flags().StringVar(&cuda, "cuda", "libcuda.so.1", "`PATH` of libcuda.so.1")
	return cmd
}
