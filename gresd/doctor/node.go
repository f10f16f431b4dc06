// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// node is the facts of a node, by the check that reads them.
type node struct {
	Options
	cfg config.Config

	// nil: no driver
	cards interface {
		Cards() ([]gpu.Card, error)
		HasLimits() bool
	}
	version    driver.Versions
	versionErr error
	list       []gpu.Card
	listErr    error

	probed         Probed
	probeErr       error
	unknownSymbols []string // jobs
	preload        []string

	gresd  *wire.Status // nil: no answer
	socket unix.Stat_t

	run, state   unix.Statfs_t
	stateErr     error
	now          time.Time
	synchronized bool

	slurm     settings // of slurmctld; nil: not asked, or no answer
	name      string   // NodeName of this node
	record    slurm.NodeFacts
	recordErr error

	settings  settings // of slurmctld or slurm.conf
	plugstack string
	plugin    []string // the words of the line that loads the plugin
	gres      []string // the lines of gres.conf for this node
}

func lookConfig(_ context.Context, n *node) (err error) {
	if n.cfg, err = config.Load(n.Config); err != nil {
		n.cfg = config.Default()
	}
	return err
}

func (n *node) slurmPlaces() bool { return n.cfg.Placement.By != config.PlacementGresd }

func lookDriver(_ context.Context, n *node) error {
	cards, err := driver.Open(n.cfg.NVML.Library)
	if err != nil {
		return err
	}
	n.cards = cards
	n.version, n.versionErr = cards.Versions()
	return nil
}

// major is the first number of "580.95.05"; 0 when there is none.
func major(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, _ := strconv.ParseUint(first, 10, 16)
	return int(n)
}

func needsDriver(_ context.Context, n *node) error {
	if n.cards == nil {
		return skip("no driver")
	}
	return nil
}

func lookCards(ctx context.Context, n *node) error {
	if err := needsDriver(ctx, n); err != nil {
		return err
	}
	n.list, n.listErr = n.cards.Cards()
	return nil
}

func isDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeDevice != 0
}

func lookLibrary(ctx context.Context, n *node) error {
	if err := trusted(n.cfg.Paths.Library); err != nil {
		return err
	}
	if n.cards == nil || n.Probe == nil {
		return skip("no driver to try it with")
	}
	n.probed, n.probeErr = n.Probe(ctx, n.cfg.Paths.Library, probe.Library(n.cfg.NVML.Library))
	n.unknownSymbols = unknownSymbols(n.cfg.Paths.RunDir)
	return nil
}

// trusted returns an error if a user can write a file that every process of a job loads.
func trusted(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%s: not a file", path)
	case st.Uid != 0:
		return fmt.Errorf("%s: owned by user %d, want root", path, st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s: mode %04o: others than root may write it, want 0755", path, st.Mode&0o7777)
	case st.Mode&0o004 == 0:
		return fmt.Errorf("%s: mode %04o: users may not read it, want 0755", path, st.Mode&0o7777)
	case st.Size == 0:
		return errors.New(path + ": empty")
	}
	return nil
}

// unknownSymbols returns the jobs with a process that asked for a function that has a newer version
// in the driver than its library knows. The user of a job can forge this.
func unknownSymbols(runDir string) (jobs []string) {
	caches, _ := filepath.Glob(filepath.Join(runDir, "jobs/*/cache"))
	for _, path := range caches {
		view, err := libvgpu.ReadCache(path)
		if err != nil {
			continue // the job has ended, or has overwritten the file
		}
		if slices.ContainsFunc(view.Slots, func(s libvgpu.SlotView) bool { return s.UnknownSymbols > 0 }) {
			jobs = append(jobs, filepath.Base(filepath.Dir(path)))
		}
	}
	return jobs
}

func lookPreload(_ context.Context, n *node) error {
	text, err := os.ReadFile(n.cfg.Paths.Preload())
	n.preload = strings.Fields(string(text))
	return err
}

func lookGresd(ctx context.Context, n *node) error {
	client := wire.Client{Socket: n.cfg.Paths.Socket(), Timeout: 5 * time.Second}
	rep, err := client.Do(ctx, wire.Request{Op: wire.OpStatus})
	if err != nil || rep.Status == nil {
		return fmt.Errorf("no answer: %w", err)
	}
	n.gresd = rep.Status
	return nil
}

// sameCards reports whether gresd and the driver know the same cards.
func (n *node) sameCards() bool {
	return len(n.list) == len(n.gresd.Cards) && !slices.ContainsFunc(n.list, func(c gpu.Card) bool {
		return !slices.ContainsFunc(n.gresd.Cards, func(known wire.Card) bool { return known.UUID == string(c.UUID) })
	})
}

func lookSlices(_ context.Context, n *node) error {
	if n.gresd == nil {
		return skip("no answer of gresd")
	}
	return nil
}

func lookSocket(_ context.Context, n *node) error {
	path := n.cfg.Paths.Socket()
	if err := unix.Lstat(path, &n.socket); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func lookSpace(_ context.Context, n *node) error {
	if err := unix.Statfs(n.cfg.Paths.RunDir, &n.run); err != nil {
		return fmt.Errorf("%s: %w", n.cfg.Paths.RunDir, err)
	}
	if err := unix.Statfs(n.cfg.Paths.StateDir, &n.state); err != nil {
		n.stateErr = fmt.Errorf("%s: %w", n.cfg.Paths.StateDir, err) // users may not read it
	}
	return nil
}

func free(st unix.Statfs_t) gpu.Bytes {
	bytes := gpu.Bytes(st.Bavail * uint64(st.Bsize))
	if bytes > gpu.GiB {
		return bytes / gpu.GiB * gpu.GiB
	}
	return bytes / gpu.MiB * gpu.MiB
}

func inMemory(st unix.Statfs_t) bool {
	return st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
}

func lookClock(_ context.Context, n *node) error {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return skip(err.Error())
	}
	n.now, n.synchronized = time.Now(), state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
	return nil
}

func lookSlurm(ctx context.Context, n *node) (err error) {
	if n.slurm, err = n.client().Config(ctx); err != nil {
		return err
	}
	n.name = n.slurmName(ctx)
	n.record, n.recordErr = n.client().Node(ctx, n.name)
	return nil
}

// client runs gresd's scontrol, because gresd's PATH is not that of the administrator who runs the
// doctor. A path in the configuration may be newer than gresd.
func (n *node) client() *slurm.Client {
	scontrol := n.cfg.Slurm.Scontrol
	if n.gresd != nil && n.gresd.Scontrol != "" && !strings.Contains(scontrol, "/") {
		scontrol = n.gresd.Scontrol
	}
	return slurm.New(slurm.Options{Scontrol: scontrol, Conf: n.cfg.Slurm.Conf})
}

// slurmName returns what Slurm calls this node.
func (n *node) slurmName(ctx context.Context) string {
	if name := os.Getenv("SLURMD_NODENAME"); name != "" {
		return name
	}
	if n.gresd != nil && n.gresd.Node != "" {
		name, _, _ := strings.Cut(n.gresd.Node, ",")
		return name
	}
	host, short := hostNames()
	if n.Local {
		return short
	}
	// Before the first job, only slurmctld knows the name if it is not the host's.
	name, _ := n.client().NodeOn(ctx, host, short)
	return cmp.Or(name, short)
}

// hostNames returns the name of this host, and the same without a domain.
func hostNames() (host, short string) {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	short, _, _ = strings.Cut(host, ".")
	return host, short
}

// release is "24.11" of "24.11.5".
func (n *node) release() string {
	parts := strings.SplitN(n.slurm.get("SLURM_VERSION"), ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

func (n *node) gresConf() gresConf {
	return gresConf{cards: withConfig(n.list, n.cfg), mode: n.cfg.Placement.By}
}

// sameGres compares counts by name, because the site chooses the types. If slurmctld places, it
// ignores a count of gres/vgpu, which can exist for statistics.
func sameGres(want, has string) bool {
	wants, there := slurm.CountGRES(want), slurm.CountGRES(has)
	if wants["vgpu"] == 0 {
		delete(there, "vgpu")
	}
	return maps.Equal(wants, there)
}

// settings are settings of Slurm, by name in lower case.
type settings map[string]string
