// SPDX-License-Identifier: Apache-2.0

// Package cluster starts a whole Slurm with slurm-vgpu on this one machine:
// munged, slurmctld, slurmd, gresd and simulated or real cards, in private
// namespaces (see [Enter]) where every file is at its usual path. The
// end-to-end tests, the demo and the check on a real card all run on it.
package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Paths inside. [Enter] has put tmpfs over /run and a copy over /etc.
const (
	// Dir holds what an installation would have put under /usr.
	Dir = "/run/cluster"

	slurmConf = "/etc/slurm/slurm.conf"
	vgpuConf  = "/etc/vgpu/vgpu.toml"
	runDir    = "/run/vgpu"
	stateDir  = Dir + "/state/vgpu"

	// Metrics is the page of gresd's metrics; through [DialMetrics] it has all series.
	Metrics       = "http://127.0.0.1:9464/metrics"
	MetricsSocket = runDir + "/metrics.sock"
)

// DialMetrics connects to the socket of all metrics.
func DialMetrics(ctx context.Context, _, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", MetricsSocket)
}

// PluginEnv names a SPANK plugin to use instead of that of the build folder:
// one that was built for the Slurm of another release.
const PluginEnv = "VGPU_CLUSTER_PLUGIN"

// Card is one simulated card.
type Card struct {
	Name   string // product name, as NVML says it
	Memory string // a size of vgpu.toml, for example "80G"
	Type   string // in Slurm, where slurmctld chooses; "" for "sim"
	// Instances cut the card by MIG. With any, Slurm is told what "gresd gres-conf" prints.
	Instances []Instance
}

// Instance is one of MIG, such as "1g.10gb" of "10G".
type Instance struct{ Profile, Memory string }

// Options says what to start. The zero value is one node with four simulated
// cards of 80 GiB.
type Options struct {
	Build string // folder of built programs; "" for build/ of the checkout
	Logs  string // folder for logs, emptied first; "" for Dir/log
	Cards []Card // simulated cards; ignored with Real
	// Records is switch_records of the simulated cards: "" for yes, else how the driver
	// refuses them (tests/simgpu).
	Records string
	Real    bool   // use the NVIDIA cards of this machine
	Config  string // text of vgpu.toml after what the harness must set
	Slurm   string // more lines of slurm.conf
	GRES    string // more lines of gres.conf
	// Without are lines of the shipped slurm.conf to leave out, such as "Prolog=".
	Without []string

	Nodes  int    // nodes of this kind, 1 when 0; more than one only with simulated cards
	Plugin string // the SPANK plugin; "" for that of PluginEnv, else of the build folder

	GresdPlaces bool // [placement] mode = "gresd": gresd chooses the card, slurmctld counts
	Accounting  bool // slurmdbd and its database; limits are enforced
	Whole       int  // so many of the cards, the last ones, have no shards, and the type "whole"

	Files      map[string]string // more files of /etc/slurm
	NodeName   string            // of the first node, "" for that of the host
	Configless bool              // slurmd and the commands get slurm.conf from slurmctld

	NoPlugin bool // no SPANK plugin: options go through vgpu-srun, libvgpu through TaskProlog
}

// Cluster is a running Slurm with gresd. Its methods are for one goroutine,
// but for those that run client commands.
type Cluster struct {
	opts   Options
	build  string
	logs   string
	cards  int
	nodes  []*Node // after the first
	munged *Daemon

	accounts []*Daemon // slurmdbd and its database
	hosts    []*Daemon // namespaces of login hosts

	// These can be killed and started again.
	Gresd     *Daemon
	Slurmd    *Daemon
	Slurmctld *Daemon
}

// Up starts a cluster and waits until its node takes jobs. On an error nothing
// is left running, and the error ends with the last lines of the logs.
func Up(opts Options) (_ *Cluster, err error) {
	if !inside() {
		return nil, fmt.Errorf("vgpu: cluster: call Enter first")
	}
	c := &Cluster{opts: opts, build: opts.Build, logs: opts.Logs}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, c.Tail(15))
			_ = c.Close()
		}
	}()
	if c.build == "" {
		if c.build, err = buildFolder(); err != nil {
			return nil, err
		}
	}
	if c.logs == "" {
		c.logs = filepath.Join(Dir, "log")
	}
	if err := c.folders(); err != nil {
		return nil, err
	}
	if err := c.copyPrograms(); err != nil {
		return nil, err
	}
	gres, err := c.makeCards()
	if err != nil {
		return nil, err
	}
	if err := c.configure(gres); err != nil {
		return nil, err
	}
	return c, c.start()
}

// buildFolder is build/ of the checkout.
func buildFolder() (string, error) {
	dir, err := checkoutFolder()
	if err != nil {
		return "", fmt.Errorf("%w: name the build folder", err)
	}
	return filepath.Join(dir, "build"), nil
}

func (c *Cluster) folders() error {
	for _, dir := range []string{Dir, runDir, "/etc/slurm", "/etc/vgpu", "/etc/munge", c.logs} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{Dir, 0o755},
		{Dir + "/bin", 0o755},
		{Dir + "/lib", 0o755},
		{Dir + "/mps", 0o755},
		{Dir + "/dev", 0o755},
		{Dir + "/home", 0o755},
		{Dir + "/state/slurmctld", 0o755},
		{Dir + "/state/" + c.nodeName(0), 0o755},
		{"/etc/slurm", 0o755},
		{"/etc/vgpu", 0o755},
		{"/etc/munge", 0o700},
		{"/run/munge", 0o755},
		{c.logs, 0o755},
	} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return err
		}
	}
	return nil
}

// copyPrograms copies what was built to a place that every user may read: a
// checkout often lies in a home that they may not.
func (c *Cluster) copyPrograms() error {
	for _, f := range []struct{ from, to string }{
		{"bin/gresd", "bin"},
		{"bin/vgpuctl", "bin"},
		{"bin/vgpu-prolog", "bin"},
		{"bin/vgpu-srun", "bin"},
		{"tests/vgpu-worker", "bin"},
		{"tests/nvidia-cuda-mps-control", "mps"},
		{"lib/libvgpu.so", "lib"},
	} {
		to := filepath.Join(Dir, f.to, filepath.Base(f.from))
		if err := copyFile(filepath.Join(c.build, f.from), to, 0o755); err != nil {
			return fmt.Errorf("%w (run make first)", err)
		}
	}
	plugin := c.opts.Plugin
	if plugin == "" {
		plugin = os.Getenv(PluginEnv)
	}
	if plugin == "" {
		plugin = filepath.Join(c.build, "spank/vgpu.so")
	}
	return copyFile(plugin, Dir+"/lib/vgpu.so", 0o755)
}

func copyFile(from, to string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, mode)
}

// Close stops every daemon and every process that is still there, and removes
// the cluster's files but the logs. Safe to call twice.
func (c *Cluster) Close() error {
	for _, d := range c.all() {
		d.Stop()
	}
	killStrays()
	if c.hasInstances() {
		_ = unix.Unmount(procDriver, unix.MNT_DETACH) // never mounted where Up failed
	}
	for _, dir := range []string{Dir, runDir} {
		if dir == Dir && strings.HasPrefix(c.logs, Dir) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// all lists the daemons, each before those that it needs.
func (c *Cluster) all() []*Daemon {
	all := slices.Clone(c.hosts)
	for _, n := range c.nodes {
		all = append(all, n.daemons()...)
	}
	for _, d := range slices.Concat([]*Daemon{c.Slurmd, c.Slurmctld}, c.accounts, []*Daemon{c.Gresd, c.munged}) {
		if d != nil {
			all = append(all, d)
		}
	}
	return all
}

// Tail returns the last n lines of each log.
func (c *Cluster) Tail(n int) string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(c.logs, "*.log"))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
		if len(lines) > n {
			lines = lines[len(lines)-n:]
		}
		fmt.Fprintf(&b, "--- %s\n%s\n", filepath.Base(f), strings.Join(lines, "\n"))
	}
	return b.String()
}

// Lines returns the last n lines of each log that match.
func (c *Cluster) Lines(match *regexp.Regexp, n int) string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(c.logs, "*.log"))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		lines := slices.DeleteFunc(strings.Split(string(data), "\n"), func(l string) bool { return !match.MatchString(l) })
		for _, line := range lines[max(0, len(lines)-n):] {
			fmt.Fprintf(&b, "%s: %s\n", filepath.Base(f), line)
		}
	}
	return b.String()
}

// until calls ok every step until it is true or the time is up.
func until(limit, step time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(step) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}
