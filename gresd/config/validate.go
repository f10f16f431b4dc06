// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// mostScaling keeps a slip of the finger from sharing out a card a thousand times.
const mostScaling = 16

// typeLetters are those of a type of card that gres.conf and --gres both take.
const typeLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

// checker gathers what is wrong.
type checker struct {
	wrong []error
}

// fail notes a wrong value; want says what is possible, with an example.
func (c *checker) fail(key string, given any, want string, args ...any) {
	c.wrong = append(c.wrong, &KeyError{Key: key, What: show(given) + ": " + fmt.Sprintf(want, args...)})
}

func (c *checker) between(key string, n, low, high uint32) {
	if n < low || n > high {
		_, name := split(key)
		c.fail(key, n, "want %d to %d, for example %s = %d", low, high, name, low)
	}
}

// oneOf also says which words there are.
func (c *checker) oneOf(key, given, example string, words ...string) {
	if slices.Contains(words, given) {
		return
	}
	_, name := split(key)
	last := len(words) - 1
	c.fail(key, given, `want "%s" or "%s", for example %s = %q`, strings.Join(words[:last], `", "`), words[last], name, example)
}

// command is a name, or a path.
func (c *checker) command(key, given, example string) {
	_, name := split(key)
	switch {
	case given == "":
		c.fail(key, given, "want a name or an absolute path, for example %s = %q", name, example)
	case strings.Contains(given, "/"):
		c.absolute(key, given, example)
	}
}

func (c *checker) absolute(key, path, example string) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		c.fail(key, path, "want an absolute path without . or .., for example %q", example)
	}
}

// Validate checks every value. The error joins a [*KeyError] for all that is
// wrong.
func (c Config) Validate() error {
	var k checker
	if c.Version != 1 {
		k.fail("version", c.Version, "this gresd reads version = 1")
	}
	c.Paths.check(&k)
	c.Defaults.check(&k)
	c.Limits.check(&k)
	c.checkDefaultAllowed(&k)
	k.oneOf("placement.mode", c.Placement.Mode, PlacementSlurm, PlacementSlurm, PlacementGresd)
	k.between("placement.wait_s", c.Placement.WaitS, 0, 120)
	k.between("placement.patience", c.Placement.Patience, 0, 1000)
	c.Arbiter.check(&k)
	c.Metrics.check(&k)
	c.Debug.check(&k)
	if l := c.NVML.Library; strings.Contains(l, "/") {
		k.absolute("nvml.library", l, "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
	}
	if l := c.CUDA.Library; strings.Contains(l, "/") {
		k.absolute("cuda.library", l, "/usr/lib/x86_64-linux-gnu/libcuda.so.1")
	}
	c.Slurm.check(&k)
	k.between("memory.context_mib", c.Memory.ContextMiB, 0, 65536)
	k.between("memory.uncounted_mib", c.Memory.UncountedMiB, 0, c.Memory.ContextMiB)
	c.MPS.check(&k, c.Paths)
	c.Health.check(&k)
	c.Audit.check(&k)
	k.oneOf("accounting.usage", c.Accounting.Usage, UsageSystem, UsageNone, UsageSystem, UsageAdmin, UsageComment)
	for _, name := range slices.Sorted(maps.Keys(c.Cards)) {
		c.Cards[name].check(&k, name)
	}
	k.oneOf("log.level", c.Log.Level, "info", "debug", "info", "warn", "error")
	return errors.Join(k.wrong...)
}

func (p Paths) check(k *checker) {
	d := Default().Paths
	k.absolute("paths.run_dir", p.RunDir, d.RunDir)
	k.absolute("paths.state_dir", p.StateDir, d.StateDir)
	k.absolute("paths.library", p.Library, d.Library)
	// The kernel's limit for the name of a Unix socket, with its closing 0.
	const longest = 108 - 1
	if n := len(p.Socket()); n > longest {
		k.fail("paths.run_dir", p.RunDir, "its gresd.sock has %d bytes, want at most %d, for example %q", n, longest, d.RunDir)
	}
}

func (d Defaults) check(k *checker) {
	k.oneOf("defaults.mode", string(d.Mode), "hard", "hard", "soft", "off")
	k.oneOf("defaults.priority", string(d.Priority), "normal", "high", "normal", "low")
	// Exclusive takes whole cards: slurmctld must know it from the job itself.
	k.oneOf("defaults.policy", string(d.Policy), "binpack", "binpack", "spread", "topology")
	if _, err := parseMemory(d.Mem); err != nil {
		k.fail("defaults.mem", d.Mem, "%v; \"\" is as the share", err)
	}
	k.between("defaults.cores_percent", uint32(d.CoresPercent), 0, 100)
	k.between("defaults.cards", d.Cards, 0, request.MaxCards)
}

func (l Limits) check(k *checker) {
	for _, m := range l.Modes {
		switch m {
		case gpu.Hard, gpu.Soft:
		case gpu.Off:
			k.fail("limits.modes", l.Modes, `"off" has its own key: allow_off = true`)
		default:
			k.fail("limits.modes", l.Modes, `want "hard" and "soft" only, for example modes = ["hard", "soft"]`)
		}
	}
	if len(l.Modes) == 0 && !l.AllowOff {
		k.fail("limits.modes", l.Modes, `want at least one mode, for example modes = ["hard"]`)
	}
	k.between("limits.min_share_percent", uint32(l.MinSharePercent), 1, 100)
	k.between("limits.max_share_percent", uint32(l.MaxSharePercent), 1, 100)
	if l.MinSharePercent > l.MaxSharePercent {
		k.fail("limits.min_share_percent", l.MinSharePercent,
			"want at most max_share_percent = %d, for example min_share_percent = 1", l.MaxSharePercent)
	}
	if _, err := parseMemory(l.MaxMem); err != nil {
		k.fail("limits.max_mem", l.MaxMem, "%v; \"\" is no limit", err)
	}
	k.between("limits.max_cores_percent", uint32(l.MaxCoresPercent), 1, 100)
	k.between("limits.max_cards", l.MaxCards, 1, request.MaxCards)
	for _, p := range l.Priorities {
		if !slices.Contains(gpu.Priorities(), p) {
			k.fail("limits.priorities", l.Priorities, `want "high", "normal" and "low" only, for example priorities = ["normal", "low"]`)
		}
	}
	for _, p := range l.Policies {
		if !slices.Contains(gpu.Policies(), p) {
			k.fail("limits.policies", l.Policies, `want "binpack", "spread", "topology" and "exclusive" only, for example policies = ["binpack", "spread"]`)
		}
	}
}

// checkDefaultAllowed refuses a default that every job without an option would
// be refused for.
func (c Config) checkDefaultAllowed(k *checker) {
	switch m := c.Defaults.Mode; {
	case m == gpu.Off && !c.Limits.AllowOff:
		k.fail("defaults.mode", string(m), "is not allowed by limits.allow_off = false")
	case (m == gpu.Hard || m == gpu.Soft) && !slices.Contains(c.Limits.Modes, m):
		k.fail("defaults.mode", string(m), "is not among limits.modes = %s", show(c.Limits.Modes))
	}
	if p := c.Defaults.Priority; !slices.Contains(c.Limits.Priorities, p) {
		k.fail("defaults.priority", string(p), "is not among limits.priorities = %s", show(c.Limits.Priorities))
	}
	if p := c.Defaults.Policy; !slices.Contains(c.Limits.Policies, p) {
		k.fail("defaults.policy", string(p), "is not among limits.policies = %s", show(c.Limits.Policies))
	}
	if n := c.Defaults.Cards; n > c.Limits.MaxCards {
		k.fail("defaults.cards", n, "want at most limits.max_cards = %d, for example cards = %d", c.Limits.MaxCards, c.Limits.MaxCards)
	}
}

func (a Arbiter) check(k *checker) {
	k.oneOf("arbiter.engine", a.Engine, EngineAuto, EngineAuto, EngineSlices, EngineTurns)
	k.between("arbiter.max_period_us", a.MaxPeriodUS, 1000, 1000000)
	k.between("arbiter.period_us", a.PeriodUS, 1000, max(a.MaxPeriodUS, 1000))
	k.between("arbiter.min_slice_us", a.MinSliceUS, 100, max(a.PeriodUS, 100))
	k.between("arbiter.tick_ms", a.TickMS, 1, 1000)
}

// check allows loopback only: the page may name users and jobs, and has no lock.
func (m Metrics) check(k *checker) {
	if m.Listen != "" && !IsLoopback(m.Listen) {
		k.fail("metrics.listen", m.Listen, `want a loopback address and a port, for example listen = "127.0.0.1:9464"; "" is none`)
	}
}

// check allows nothing that another host could reach: profiles show memory.
func (d Debug) check(k *checker) {
	const want = `want a loopback address and a port, or the absolute path of a Unix socket, ` +
		`for example pprof = "/run/vgpu/pprof.sock"; "" is none`
	const longest = 108 - 1
	isPath := filepath.IsAbs(d.Pprof) && filepath.Clean(d.Pprof) == d.Pprof && len(d.Pprof) <= longest
	if d.Pprof != "" && !isPath && !IsLoopback(d.Pprof) {
		k.fail("debug.pprof", d.Pprof, want)
	}
}

// IsLoopback says whether an address with a port can be reached from this host alone.
func IsLoopback(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func (c Card) check(k *checker, name string) {
	if name != AllCards && (!strings.HasPrefix(name, "GPU-") && !gpu.UUID(name).IsInstance() || len(name) > 47) {
		k.fail("card."+name, name, `want "default" or the UUID of a card as nvidia-smi -L prints it, for example [card."GPU-5f3c1d2e-…"]`)
	}
	// Written so that "not a number" is refused too.
	if !(c.MemScaling >= 1 && c.MemScaling <= mostScaling) {
		k.fail("card."+name+".mem_scaling", c.MemScaling, "want 1 to %d, for example mem_scaling = 1.5", mostScaling)
	}
	if strings.ContainsFunc(c.Type, func(r rune) bool { return !strings.ContainsRune(typeLetters, r) }) {
		k.fail("card."+name+".type", c.Type, `want a word as in Type= of gres.conf, for example type = "h200"; "" is made of the card's name`)
	}
}

func (m MPS) check(k *checker, paths Paths) {
	k.command("mps.control", m.Control, "/usr/bin/nvidia-cuda-mps-control")
	if m.Default && !m.Enabled {
		k.fail("mps.default", m.Default, "is of no use with enabled = false; want enabled = true as well")
	}
	k.oneOf("mps.trust", m.Trust, TrustAccount, TrustAccount, TrustUser, TrustAll)
	switch {
	case m.Auto && !m.Concurrent:
		k.fail("mps.auto", m.Auto, "is of no use with concurrent = false; want concurrent = true as well")
	case m.Auto && m.Default:
		k.fail("mps.auto", m.Auto, "want one default: default = true gives such jobs MPS; want default = false, or auto = false")
	}
	if err := checkSockets(paths.MPS()); (m.Enabled || m.Concurrent) && err != nil {
		k.fail("paths.run_dir", paths.RunDir, "%v, for example %q", err, Default().Paths.RunDir)
	}
}

// checkSockets returns an error if dir is too long for the sockets of MPS below it.
func checkSockets(dir string) error {
	const longest = 108 - 1 // the kernel's limit for the name of a Unix socket, without its closing 0
	n := len(dir) + len("/GPU-00000000-0000-0000-0000-000000000000/4294967295/pipe/control_privileged")
	if n > longest {
		return fmt.Errorf("the sockets of MPS below it would have names of %d bytes, want at most %d: want a path shorter by %d", n, longest, n-longest)
	}
	return nil
}

func (h Health) check(k *checker) {
	k.oneOf("health.action", h.Action, HealthCordon, HealthCordon, HealthDrain, HealthNone)
	if slices.Contains(h.IgnoreXIDs, 0) {
		k.fail("health.ignore_xids", h.IgnoreXIDs, "want the numbers of XIDs, for example ignore_xids = [13, 31, 43]")
	}
	k.between("health.probe_s", h.ProbeS, 1, 3600)
	k.between("health.clean_probes", h.CleanProbes, 0, 1000000)
}

func (a Audit) check(k *checker) {
	k.oneOf("audit.unregistered", a.Unregistered, AuditReport, AuditReport, AuditKill, AuditIgnore)
	k.oneOf("audit.escaped", a.Escaped, AuditReport, AuditReport, AuditKill, AuditIgnore)
	k.oneOf("audit.exceeded", a.Exceeded, AuditReport, AuditReport, AuditKill, AuditIgnore)
	if !slices.Contains([]string{AuditReport, AuditIgnore}, a.Strangers) {
		k.fail("audit.strangers", a.Strangers, `want "report" or "ignore", for example strangers = "report"; gresd kills processes of jobs only`)
	}
	k.between("audit.grace_s", a.GraceS, 1, 3600)
	k.between("audit.tolerance_mib", a.ToleranceMiB, 0, 1048576)
}

func (s Slurm) check(k *checker) {
	k.command("slurm.scontrol", s.Scontrol, "/usr/bin/scontrol")
	if s.Conf != "" {
		k.absolute("slurm.conf", s.Conf, "/etc/slurm/slurm.conf")
	}
	k.between("slurm.timeout_s", s.TimeoutS, 1, 300)
}
