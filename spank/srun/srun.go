// SPDX-License-Identifier: Apache-2.0

// Package srun is the logic of vgpu-srun: srun with the --vgpu options, for
// sites without the SPANK plugin. It checks the options with gresd/request,
// asks slurmctld for what it counts, and sends the options in the job's comment. All
// else is srun's own.
package srun

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/spank/options"
)

var usage = `usage: vgpu-srun [--show] [--vgpu-OPTION=VALUE ...] [srun options] program [args]

Runs srun with a share of a GPU. --gres=vgpu[:TYPE]:N among srun's options is
the share: 1 to 100 hundredths of one card, or 100 for each whole card.

` + optionLines() + `  --show                     print the srun command and do not run it
  --help                     this text; srun's own is srun --help

$VGPU_SRUN is the srun that is run; default: the one in $PATH.
Example: vgpu-srun --gres=vgpu:30 --vgpu-mem=20G -n 1 python3 train.py
`

func optionLines() string {
	var b strings.Builder
	for _, o := range options.List {
		fmt.Fprintf(&b, "  %-26s %s\n", "--vgpu-"+o.Name+"="+o.Takes, o.Usage)
	}
	return b.String()
}

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
)

// Wrapper is one run of vgpu-srun.
type Wrapper struct {
	Getenv func(string) string
	Stdout io.Writer
	Stderr io.Writer
	// GresdPlaces says that slurmctld counts gres/vgpu, and not shards: the nodes have none.
	GresdPlaces bool
	// Exec replaces the process, as syscall.Exec does; it returns only an error.
	Exec func(path string, argv []string) error
}

// Run handles the arguments behind the program's name, and returns an exit code
// where srun was not run.
func (w Wrapper) Run(args []string) int {
	var words []string
	show := false
	for i, component := range components(w.withEnvironment(args)) {
		p, err := read(component)
		if p.help || len(args) == 0 {
			fmt.Fprint(w.Stdout, usage)
			return exitOK
		}
		if err != nil {
			return w.fail(err)
		}
		job := w.Getenv("SLURM_JOB_ID")
		if p.job != "" {
			job = p.job
		}
		p.gresdPlaces, p.gpus = w.GresdPlaces, p.gpus || w.environmentAsksForGPUs()
		rewritten, err := p.rewrite(job != "")
		if err != nil {
			return w.fail(err)
		}
		if job != "" && p.flag != "" {
			fmt.Fprintf(w.Stderr, "vgpu: %s: no effect: a step has the limits of its job %s; give it to sbatch or salloc\n", p.flag, job)
		}
		if i > 0 {
			words = append(words, ":")
		}
		words, show = append(words, rewritten...), show || p.show
	}
	path, err := w.find()
	if err != nil {
		return w.fail(err)
	}
	argv := append([]string{path}, words...)
	if show {
		fmt.Fprintln(w.Stdout, quoteAll(argv))
		return exitOK
	}
	return w.fail(fmt.Errorf("run %s: %w", path, w.Exec(path, argv)))
}

// withEnvironment puts the share of $SLURM_GRES in front of a job's options,
// where srun takes it from when there is no --gres.
func (w Wrapper) withEnvironment(args []string) []string {
	list := w.Getenv("SLURM_GRES")
	if w.Getenv("SLURM_JOB_ID") != "" || !strings.Contains(list, "vgpu") || len(args) == 0 {
		return args
	}
	given, _ := split(args)
	if slices.ContainsFunc(given, func(o option) bool { return o.name == "gres" }) {
		return args
	}
	return append([]string{"--gres=" + list}, args...)
}

// environmentAsksForGPUs says whether srun finds a request for cards in its variables.
func (w Wrapper) environmentAsksForGPUs() bool {
	for _, name := range []string{"SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK"} {
		if w.Getenv(name) != "" {
			return true
		}
	}
	return namesCards(w.Getenv("SLURM_GRES")) || namesCards(w.Getenv("SLURM_TRES_PER_TASK"))
}

func (w Wrapper) fail(err error) int {
	fmt.Fprintf(w.Stderr, "vgpu: %v\n", err)
	return exitError
}

// find returns srun's path. A site may install vgpu-srun under the name srun;
// then it must say where the real one is.
func (w Wrapper) find() (string, error) {
	name := w.Getenv("VGPU_SRUN")
	if name == "" {
		name = "srun"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find srun: %w", err)
	}
	self, err := os.Stat("/proc/self/exe")
	if err != nil || strings.Contains(name, "/") {
		return path, nil
	}
	if found, err := os.Stat(path); err == nil && os.SameFile(self, found) {
		return "", fmt.Errorf("%s is vgpu-srun itself: want the real srun in $VGPU_SRUN, for example /usr/bin/srun", path)
	}
	return path, nil
}
