// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
)

// bench is one run of the benchmark.
type bench struct {
	options
	dir      string // private, readable by everybody
	uid, gid uint32
	env      []string       // of every tenant, and of gresd
	match    *regexp.Regexp // of names of cases
	inner    int            // rounds in a unit of work on this card
	sms      int            // its multiprocessors
	// idleMemory is what is in use on the card before anything runs, in MiB.
	idleMemory uint64
	solos      map[string]float64
	soloLates  map[string]float64 // lateness of the runs that gave solos
	known      known              // of company
	nextJob    uint32
	nodes      int       // gresds started so far
	deadline   time.Time // zero: none
	drifting   bool      // the last part of a run
	out        *os.File
	records    []report.Record

	dry     bool // only add up what everything takes
	planned time.Duration
}

func newBench(o options) (*bench, error) {
	b := &bench{options: o, solos: map[string]float64{}, soloLates: map[string]float64{}, known: newKnown(), nextJob: 1000}
	if b.build == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		b.build = filepath.Dir(filepath.Dir(self)) // build/tests/vgpu-bench
	}
	var err error
	if b.build, err = filepath.Abs(b.build); err != nil {
		return nil, err
	}
	if b.match, err = regexp.Compile(o.cases); err != nil {
		return nil, fmt.Errorf("--case: %w", err)
	}
	if b.scripts == "" {
		b.scripts = filepath.Join(b.build, "tests")
	}
	return b, nil
}

// program is the path of a program in the private folder.
func (b *bench) program(name string) string { return filepath.Join(b.dir, "bin", filepath.Base(name)) }

// setUp makes the folder, the card if it is a simulated one, and learns how
// fast the card is.
func (b *bench) setUp(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("not root: gresd makes files that users cannot change; run it as root, e.g. sudo vgpu-bench")
	}
	who, err := user.Lookup(b.user)
	if err != nil {
		return fmt.Errorf("--user: %w", err)
	}
	uid, err1 := strconv.ParseUint(who.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(who.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("--user %s: %w", b.user, err)
	}
	b.uid, b.gid = uint32(uid), uint32(gid)
	if b.budget > 0 {
		b.deadline = time.Now().Add(b.budget)
	}
	if err := b.makeFolder(); err != nil {
		return err
	}
	if err := b.findDriver(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(b.options.out, 0o755); err != nil {
		return err
	}
	b.out, err = os.OpenFile(filepath.Join(b.options.out, "results.jsonl"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err := b.calibrate(ctx); err != nil {
		return err
	}
	if b.idleMemory, err = b.memoryUsed(ctx); err != nil {
		return err
	}
	b.add(report.Record{Scenario: report.About, Case: b.about(ctx), System: "native"})
	return nil
}

// about names the machine and the program.
func (b *bench) about(ctx context.Context) string {
	card := "simulated card"
	if !b.sim {
		out, err := exec.CommandContext(ctx, "nvidia-smi", fmt.Sprintf("--id=%d", b.gpu), "--query-gpu=name,driver_version", "--format=csv,noheader").Output()
		if err == nil {
			card = "driver of " + strings.TrimSpace(string(out))
		}
	}
	return fmt.Sprintf("%s, %s, vgpu-bench %s", time.Now().UTC().Format(time.RFC3339), card, version)
}

// makeFolder copies what was built to a place that every user may read.
func (b *bench) makeFolder() (err error) {
	// Short: below it are the sockets of MPS, whose names may have 107 bytes.
	if b.dir, err = os.MkdirTemp("", "vb"); err != nil {
		return err
	}
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(b.dir, "bin"), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"bin/gresd", "lib/libvgpu.so", "tests/vgpu-load"} {
		if err := copyFile(filepath.Join(b.build, name), b.program(name)); err != nil {
			return fmt.Errorf("%w (run make first, or name the folder with --build)", err)
		}
	}
	if b.python == "" {
		return nil
	}
	for _, name := range []string{"torch_load.py", "array_load.py"} {
		if err := copyFile(filepath.Join(b.scripts, name), b.program(name)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// findDriver sets where tenants and gresd find the driver's libraries.
func (b *bench) findDriver(ctx context.Context) error {
	folders := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	// Where containers get the driver from their host.
	if host := "/usr/local/nvidia/lib64"; exists(filepath.Join(host, "libcuda.so.1")) {
		folders = append(folders, host)
	}
	if b.sim {
		folders = []string{filepath.Join(b.build, "simgpu/lib")}
		state, conf := filepath.Join(b.dir, "card"), filepath.Join(b.dir, "card.toml")
		if err := os.WriteFile(conf, fmt.Appendf(nil, "version = 1\ncount = %d\n[model]\nmemory = \"80G\"\n", b.gpu+1), 0o644); err != nil {
			return err
		}
		out, err := exec.CommandContext(ctx, filepath.Join(b.build, "simgpu/bin/simgpu"), "init", "--config", conf, "--state", state).CombinedOutput()
		if err != nil {
			return fmt.Errorf("simgpu init: %w: %s", err, out)
		}
		// The checkout may lie in a home that other users may not read.
		copies := filepath.Join(b.dir, "simgpu")
		if err := os.Mkdir(copies, 0o755); err != nil {
			return err
		}
		for _, lib := range []string{"libcuda.so.1", "libnvidia-ml.so.1", "libsimrm.so"} {
			if err := copyFile(filepath.Join(folders[0], lib), filepath.Join(copies, lib)); err != nil {
				return err
			}
		}
		folders = []string{copies}
		b.env = append(b.env, "SIMGPU_STATE="+state)
	}
	b.env = append(b.env, "PATH="+os.Getenv("PATH"), "HOME="+b.dir, "LC_ALL=C",
		"CUDA_DEVICE_ORDER=PCI_BUS_ID", fmt.Sprintf("CUDA_VISIBLE_DEVICES=%d", b.gpu))
	if len(folders) > 0 {
		b.env = append(b.env, "LD_LIBRARY_PATH="+strings.Join(folders, ":"))
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// simRounds is the number of rounds in a unit of 20 us on the simulated card. A measurement on a busy
// machine gives less.
const simRounds = 1000

// calibrate learns how many rounds of the kernel are one unit of work.
func (b *bench) calibrate(ctx context.Context) error {
	var got struct{ Inner, SMs int }
	p, err := b.start(ctx, "calibrate", nil, b.program("vgpu-load"), "--calibrate")
	if err != nil {
		return err
	}
	if err := p.result(30*time.Second, &got); err != nil {
		return fmt.Errorf("calibrate: %w", err)
	}
	if b.sim {
		got.Inner = simRounds
	}
	b.inner, b.sms = got.Inner, got.SMs
	fmt.Printf("vgpu-bench %s: %d multiprocessors, %d rounds in a unit of 20 us\n", version, got.SMs, got.Inner)
	return nil
}

func (b *bench) close() error {
	var errs []error
	if b.out != nil {
		errs = append(errs, b.out.Close())
	}
	if b.dir != "" {
		errs = append(errs, os.RemoveAll(b.dir))
	}
	return errors.Join(errs...)
}

// add keeps a record, and writes it at once.
func (b *bench) add(r report.Record) {
	b.records = append(b.records, r)
	if err := r.Write(b.out); err != nil {
		fmt.Fprintln(os.Stderr, "vgpu-bench: results:", err)
	}
	fmt.Printf("%-9s %-28s %-8s %s\n", r.Scenario, r.Case, r.System, brief(r))
}

func brief(r report.Record) string {
	switch {
	case r.Error != "":
		return "ERROR: " + r.Error
	case r.Skipped:
		return cmp.Or(strings.Join(r.Notes, "; "), "no time left")
	case r.Scenario == report.About:
		return ""
	case len(r.Tenants) == 0:
		return fmt.Sprint(r.Numbers)
	}
	var parts []string
	if r.Tenants[0].Kept != nil {
		for _, t := range r.Tenants {
			parts = append(parts, t.Kept.String())
		}
		return strings.Join(parts, " / ")
	}
	for _, t := range r.Tenants {
		parts = append(parts, fmt.Sprintf("%.1f", t.OfSolo))
	}
	text := fmt.Sprintf("%s of solo, sum %.1f", strings.Join(parts, " / "), r.Sum())
	if r.Judged {
		text += fmt.Sprintf(", error %.1f", r.ShareError())
	}
	return text
}

// scenario runs one scenario under one system.
func (b *bench) scenario(ctx context.Context, s scenario, sys system) error {
	if !b.deadline.IsZero() && time.Now().Add(b.reserve()).After(b.deadline) {
		b.add(report.Record{Scenario: s.name, Case: "all", System: sys.name, Skipped: true})
		return nil
	}
	session, err := sys.open(ctx, b)
	if err != nil {
		b.add(report.Record{Scenario: s.name, Case: "all", System: sys.name, Error: err.Error()})
		return ctx.Err()
	}
	s.run(ctx, b, sys, session)
	if err := session.close(); err != nil {
		b.add(report.Record{Scenario: s.name, Case: "end", System: sys.name, Error: err.Error()})
	}
	return ctx.Err()
}

// do runs one case if there is time for it. An error of a case is its result.
func (b *bench) do(ctx context.Context, scenario, name string, sys system, takes time.Duration, f func() (report.Record, error)) {
	if !b.drifting && !b.match.MatchString(name) {
		return
	}
	if b.dry {
		b.planned += takes
		return
	}
	if ctx.Err() != nil {
		return
	}
	r := report.Record{Skipped: true}
	if !b.drifting {
		takes += b.reserve()
	}
	if b.deadline.IsZero() || time.Now().Add(takes).Before(b.deadline) {
		var err error
		if r, err = f(); err != nil {
			if ctx.Err() != nil {
				return
			}
			r.Error = err.Error()
		}
	}
	r.Scenario, r.Case, r.System = scenario, name, sys.name
	b.add(r)
}

// monotonic is the clock of all tenants, in nanoseconds.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // every Linux has it
	}
	return now.Nano()
}
