// SPDX-License-Identifier: Apache-2.0

// vgpu-storm measures gresd under load: many clients that ask for grants and
// release them, on simulated cards that are full of jobs. See docs/reliability.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/storm"
)

// settle is longer than gresd looks at jobs that do nothing.
const settle = 8 * time.Second

func main() {
	build := flag.String("build", "build", "folder of built programs")
	disk := flag.String("disk", "/var/tmp", "folder on a disk, for the ledger; the first runs have it on a tmpfs")
	cards := flag.Int("cards", 16, "simulated cards")
	live := flag.Int("live", 1600, "jobs that live, each with a hundredth of a card; as many end before the clients come as these need room")
	clients := flag.Int("clients", 50, "clients that ask at the same time")
	rate := flag.Float64("rate", 1000, "grants and releases a second, together; 0: as many as are answered")
	seconds := flag.Int("seconds", 10, "length of a run")
	runs := flag.Int("runs", 3, "runs on each file system")
	idle := flag.Int("idle", 10, "seconds for which the use of an idle gresd is measured, with the ledger on a tmpfs")
	nice := flag.Int("nice", 0, "priority, of gresd too: -20 where others use the machine")
	pin := flag.Bool("pin", false, "gresd and what it starts on one processor, the clients on the others")
	profile := flag.String("profile", "", "file for a profile of gresd's use of processors in the first run")
	flag.Parse()
	if err := cluster.Enter(); err != nil {
		fatal(err)
	}
	opts := options{nice: *nice, profile: *profile}
	if *pin && runtime.NumCPU() > 1 {
		opts.gresd = []int{0}
		for cpu := 1; cpu < runtime.NumCPU(); cpu++ {
			opts.clients = append(opts.clients, cpu)
		}
	}
	if err := errors.Join(storm.Favour(os.Getpid(), *nice), storm.Pin(os.Getpid(), opts.clients)); err != nil {
		fatal(fmt.Errorf("set priority: %w", err))
	}
	load := storm.Load{Clients: *clients, Live: *live, Rate: *rate, For: time.Duration(*seconds) * time.Second}
	path, err := filepath.Abs(*build)
	if err != nil {
		fatal(err)
	}
	fmt.Fprintf(os.Stdout, "%d cards, %d jobs live, %d clients, rate %.0f/s (0: no limit), %d processors, machine load %s\n",
		*cards, *live, *clients, *rate, runtime.NumCPU(), machineLoad())
	quiet := time.Duration(*idle) * time.Second
	for _, where := range []string{"/run", *disk} {
		if err := measure(path, where, *cards, load, *runs, quiet, opts); err != nil {
			fatal(err)
		}
		quiet = 0 // an idle gresd does not write
	}
}

type options struct {
	nice           int
	gresd, clients []int // processors; nil: all
	profile        string
}

func fatal(err error) {
	fmt.Fprintf(os.Stderr, "vgpu-storm: %v\n", err)
	os.Exit(1)
}

// measure runs on one file system, /run being a tmpfs.
func measure(build, where string, cards int, load storm.Load, runs int, idle time.Duration, opts options) error {
	dir, err := os.MkdirTemp("/run", "storm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	state, err := os.MkdirTemp(where, "storm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	name := "disk"
	if where == "/run" {
		name = "tmpfs"
	}
	more := "[log]\nlevel = \"warn\"\n"
	if opts.profile != "" {
		more += fmt.Sprintf("[debug]\npprof = %q\n", pprofAt)
	}
	n, err := storm.New(build, dir, filepath.Join(state, "vgpu"), cards, more)
	if err != nil {
		return err
	}
	n.Favour, n.CPUs = opts.nice, opts.gresd
	if err := n.Start(); err != nil {
		return err
	}
	defer n.Stop()
	var empty, full float64
	if idle > 0 {
		if empty, err = n.IdleCPU(idle); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := n.Fill(load.Live); err != nil {
		return err
	}
	filled := time.Since(start)
	time.Sleep(settle)
	if idle > 0 {
		if full, err = n.IdleCPU(idle); err != nil {
			return err
		}
	}
	rss, err := n.RSS()
	if err != nil {
		return err
	}
	if idle > 0 {
		fmt.Fprintf(os.Stdout, "%s: idle %.2f %% of a core without jobs, %.2f %% with %d\n", name, 100*empty, 100*full, load.Live)
	}
	fmt.Fprintf(os.Stdout, "%s: RSS %.1f MiB with %d jobs; one after the other %.0f grants/s\n",
		name, mib(rss), load.Live, float64(load.Live)/filled.Seconds())
	if err := n.Empty(load.Beside(cards), load.Live); err != nil {
		return err
	}
	for run := range runs {
		if opts.profile != "" && run == 0 && name == "tmpfs" {
			go func() {
				if err := profile(opts.profile, load.For); err != nil {
					fmt.Fprintf(os.Stderr, "vgpu-storm: profile: %v\n", err)
				}
			}()
		}
		f, err := load.Run(n)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "%s run %d: %.0f/s; grant p50 %s p99 %s max %s; release p50 %s p99 %s max %s; "+
			"cores: gresd %.2f, scontrol %.2f; RSS %.1f MiB; load %s\n",
			name, run+1, f.Rate(), ms(f.Grant.P50), ms(f.Grant.P99), ms(f.Grant.Max),
			ms(f.Release.P50), ms(f.Release.P99), ms(f.Release.Max), f.GresdCPU, f.ChildrenCPU, mib(f.RSS), machineLoad())
	}
	return nil
}

const pprofAt = "127.0.0.1:9494"

// profile writes what gresd uses its processors for during a run.
func profile(path string, during time.Duration) error {
	rep, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", pprofAt, max(1, int(during.Seconds())-1)))
	if err != nil {
		return err
	}
	defer rep.Body.Close()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, rep.Body)
	return errors.Join(err, f.Close())
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }

// machineLoad is the load of the last minute: what else this machine does.
func machineLoad() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	var one string
	_, _ = fmt.Sscan(string(text), &one)
	return one
}
