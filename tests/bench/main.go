// SPDX-License-Identifier: Apache-2.0

// Command vgpu-bench measures how well compute shares of one card are kept, by
// this library, without any, and by others; see README.md beside it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
)

// version is set by the linker.
var version = "dev"

// options are the command line.
type options struct {
	build, out, scripts string
	sim                 bool
	gpu                 uint
	user, python        string
	scenarios, systems  words
	cases               string
	ours, peers         pairs
	peerEnv             string
	mps, mpsFree        bool
	budget, churn       time.Duration
	churnJobs           int // churn goes on until so many jobs have started and one of them is to be killed
	warm, seconds       time.Duration
	seed                uint64
	list, plots         bool
}

// words is a list in one flag: a,b.
type words []string

func (w *words) String() string { return strings.Join(*w, ",") }

func (w *words) Set(s string) error {
	*w = strings.Split(s, ",")
	return nil
}

// pairs are the values NAME=VALUE of a flag that may come again.
type pairs [][2]string

func (p *pairs) String() string { return "" }

func (p *pairs) Set(s string) error {
	name, value, ok := strings.Cut(s, "=")
	if !ok || name == "" {
		return fmt.Errorf("%q: want NAME=VALUE", s)
	}
	*p = append(*p, [2]string{name, value})
	return nil
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "compare" {
		if err := compare(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "vgpu-bench compare:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flags := flag.NewFlagSet("vgpu-bench", flag.ExitOnError)
	flags.StringVar(&o.build, "build", "", "`FOLDER` of built programs; without it, that of this program")
	flags.StringVar(&o.out, "out", ".", "`FOLDER` for results.jsonl and results.md")
	flags.BoolVar(&o.sim, "sim", false, "on a simulated card")
	flags.UintVar(&o.gpu, "gpu", 0, "the card, as nvidia-smi numbers it; the others are left alone")
	flags.StringVar(&o.user, "user", "nobody", "`USER` that tenants run as")
	flags.StringVar(&o.python, "python", "python3", "a Python that has PyTorch; \"\": none")
	flags.Var(&o.scenarios, "scenario", "`NAMES`, separated by commas, in this order; see -list")
	flags.StringVar(&o.cases, "case", "", "only cases whose names match this regular `EXPRESSION`, such as ^30/70")
	flags.Var(&o.systems, "system", "only systems of these `NAMES`: native, ours, mps, or one given")
	flags.Var(&o.ours, "ours", "`NAME=TOML` with keys for vgpu.toml, separated by semicolons, such as spread='defaults.policy = \"spread\"'; may come again")
	flags.Var(&o.peers, "peer", "`NAME=LIBRARY` to preload instead; may come again")
	flags.StringVar(&o.peerEnv, "peer-env", "CUDA_DEVICE_SM_LIMIT=%d", "its variables, separated by spaces: %d is the share, %s a folder of the tenant's own")
	flags.BoolVar(&o.mps, "mps", false, "also NVIDIA MPS, with the share as thread percentage")
	flags.BoolVar(&o.mpsFree, "mps-free", false, "also NVIDIA MPS without percentages")
	flags.DurationVar(&o.budget, "budget", 0, "leave out what would take longer than this in all; 0: no limit")
	flags.DurationVar(&o.warm, "warm", time.Second, "time before each measurement")
	flags.DurationVar(&o.seconds, "seconds", 4*time.Second, "length of each measurement")
	flags.DurationVar(&o.churn, "churn", 10*time.Minute, "length of the scenario churn")
	flags.Uint64Var(&o.seed, "seed", 1, "of the random choices of churn")
	flags.BoolVar(&o.plots, "plots", false, "also draw the shares over time: a file .svg for each case, in --out")
	flags.BoolVar(&o.list, "list", false, "list scenarios and what they take, and do nothing")
	showVersion := flags.Bool("version", false, "print the version")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: vgpu-bench [FLAGS]\n       vgpu-bench compare A B   two files results.jsonl, or their folders")
		flags.PrintDefaults()
	}
	_ = flags.Parse(os.Args[1:]) // ExitOnError: it does not return an error
	if *showVersion {
		fmt.Println("vgpu-bench", version)
		return
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "vgpu-bench: %q: want flags only, see --help\n", flags.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "vgpu-bench:", err)
		os.Exit(1)
	}
}

// run does everything; what was measured is kept when it fails.
func run(ctx context.Context, o options) (err error) {
	chosen, err := pick(o.scenarios)
	if err != nil {
		return err
	}
	systems, err := systemsOf(o)
	if err != nil {
		return err
	}
	b, err := newBench(o)
	if err != nil {
		return err
	}
	if o.list {
		return list(b, chosen, systems)
	}
	if err := b.setUp(ctx); err != nil {
		return errors.Join(err, b.close())
	}
	defer func() {
		err = errors.Join(err, b.close(), finish(o.out, b.records))
		if o.plots {
			paths, plotErr := report.Plots(o.out, b.records)
			fmt.Printf("results.jsonl, results.md and %d plots are in %s\n", len(paths), o.out)
			err = errors.Join(err, plotErr)
		}
	}()
	for _, s := range chosen {
		for _, system := range systems {
			if s.only != nil && !s.only(system) {
				continue
			}
			if err := b.scenario(ctx, s, system); err != nil {
				return err
			}
		}
	}
	b.drift(ctx)
	return errors.Join(ctx.Err(), report.Verdict(b.records))
}

// compare prints how the figures of two runs differ. It fails where one of the second is
// worse than its row allows.
func compare(args []string) error {
	if len(args) != 2 {
		return errors.New("want two files results.jsonl, or their folders: A B")
	}
	var runs [2][]report.Record
	for i, path := range args {
		list, err := report.Load(path)
		if err != nil {
			return err
		}
		runs[i] = list
	}
	changes, missing := report.Compare(runs[0], runs[1])
	return report.Changes(os.Stdout, changes, missing)
}

// finish prints what was measured and writes it as Markdown.
func finish(out string, records []report.Record) error {
	f, err := os.OpenFile(filepath.Join(out, "results.md"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(report.Table(os.Stdout, records), report.Markdown(f, records))
}

func list(b *bench, chosen []scenario, systems []system) error {
	b.dry = true
	for _, s := range chosen {
		fmt.Printf("%-10s %s\n", s.name, s.about)
		for _, system := range systems {
			if s.only != nil && !s.only(system) {
				continue
			}
			before := b.planned
			s.run(context.Background(), b, system, nil)
			fmt.Printf("%-10s   %s: about %s\n", "", system.name, (b.planned - before).Round(time.Second))
		}
	}
	fmt.Printf("in all about %s\n", b.planned.Round(time.Second))
	return nil
}
