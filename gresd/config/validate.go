// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// mostScaling keeps a slip of the finger from sharing out a card a thousand times.
const mostScaling = 16

// typeLetters are those of a type of card that gres.conf and --gres both take.
const typeLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

// checker collects what is wrong.
type checker struct {
	wrong []error
}

// fail notes a wrong value; want states the allowed values, with an example.
func (c *checker) fail(key string, given any, want string, args ...any) {
	c.wrong = append(c.wrong, &KeyError{Key: key, What: show(given) + ": " + fmt.Sprintf(want, args...)})
}

// tags checks the values of a table against the tags of its fields: of lists the words of a string
// or a list, range the smallest and the largest number.
func (c *checker) tags(table reflect.Value, prefix string) {
	for field, value := range table.Fields() {
		name := field.Tag.Get("toml")
		key, words := prefix+name, strings.Fields(field.Tag.Get("of"))
		var low, high uint64
		switch {
		case value.Kind() == reflect.Struct:
			c.tags(value, key+".")
		case value.Kind() == reflect.String && len(words) > 0 && !slices.Contains(words, value.String()):
			c.fail(key, value.Interface(), "want %s, for example %s = %q", alternatives(words), name, words[0])
		case value.Kind() == reflect.Slice && len(words) > 0:
			for i := range value.Len() {
				if !slices.Contains(words, value.Index(i).String()) {
					c.fail(key, value.Interface(), "want %s only, for example %s = [%q]", alternatives(words), name, words[0])
					break
				}
			}
		case field.Tag.Get("range") != "":
			fmt.Sscan(field.Tag.Get("range"), &low, &high)
			if n := value.Uint(); n < low || n > high {
				c.fail(key, n, "want %d to %d, for example %s = %d", low, high, name, low)
			}
		}
	}
}

// alternatives returns `"a", "b" or "c"`.
func alternatives(words []string) string {
	last := len(words) - 1
	return `"` + strings.Join(words[:last], `", "`) + `" or "` + words[last] + `"`
}

func (c *checker) absolute(key, path, example string) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		c.fail(key, path, "want an absolute path without . or .., for example %q", example)
	}
}

// Validate checks every value. The error joins a [*KeyError] for each wrong value.
func (c Config) Validate() error {
	var k checker
	if c.Version != 1 {
		k.fail("version", c.Version, "this gresd reads version = 1")
	}
	k.tags(reflect.ValueOf(c), "")
	c.Paths.check(&k, len(c.MPS.Engines) > 0)
	c.Limits.check(&k)
	c.Defaults.check(&k, c.Limits)
	// The page may name users and jobs, and has no lock.
	if m := c.Metrics.Listen; m != "" && !IsLoopback(m) {
		k.fail("metrics.listen", m, `want a loopback address and a port, for example listen = "127.0.0.1:9464"; "" is none`)
	}
	// Nothing that another host could reach: profiles show memory.
	if d := c.Debug.Pprof; d != "" && !IsLoopback(d) && (!filepath.IsAbs(d) || filepath.Clean(d) != d || len(d) > longestSocket) {
		k.fail("debug.pprof", d, `want a loopback address and a port, or the absolute path of a Unix socket, for example pprof = "/run/vgpu/pprof.sock"; "" is none`)
	}
	if l := c.NVML.Library; strings.Contains(l, "/") {
		k.absolute("nvml.library", l, "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
	}
	if s := c.Slurm.Scontrol; s == "" || strings.Contains(s, "/") {
		k.absolute("slurm.scontrol", s, "/usr/bin/scontrol")
	}
	if f := c.Slurm.Conf; f != "" {
		k.absolute("slurm.conf", f, "/etc/slurm/slurm.conf")
	}
	if slices.Contains(c.Health.IgnoreXIDs, 0) {
		k.fail("health.ignore_xids", c.Health.IgnoreXIDs, "want the numbers of XIDs, for example ignore_xids = [13, 31, 43]")
	}
	needs := map[gpu.Engine]gpu.Engine{gpu.MPS: gpu.MPS, gpu.Auto: gpu.Concurrent}[c.MPS.DefaultEngine]
	if needs != "" && !c.MPS.Offers(needs) {
		k.fail("mps.default_engine", c.MPS.DefaultEngine, "needs %q in engines, for example engines = [%q]", needs, needs)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Cards)) {
		c.Cards[name].check(&k, name)
	}
	return errors.Join(k.wrong...)
}

// longestSocket is the kernel's limit for the name of a Unix socket, without its closing 0.
const longestSocket = 108 - 1

// mpsSocket is the longest name of a socket below the folder of MPS.
const mpsSocket = "/GPU-00000000-0000-0000-0000-000000000000/4294967295/pipe/control_privileged"

func (p Paths) check(k *checker, mps bool) {
	d := Default().Paths
	k.absolute("paths.run_dir", p.RunDir, d.RunDir)
	k.absolute("paths.state_dir", p.StateDir, d.StateDir)
	k.absolute("paths.library", p.Library, d.Library)
	longest := p.Socket()
	if mps {
		longest = p.MPS() + mpsSocket
	}
	if n := len(longest); n > longestSocket {
		k.fail("paths.run_dir", p.RunDir, "its %s has %d bytes, want at most %d, for example %q", filepath.Base(longest), n, longestSocket, d.RunDir)
	}
}

func (l Limits) check(k *checker) {
	if len(l.Modes) == 0 {
		k.fail("limits.modes", l.Modes, `want at least one mode, for example modes = ["hard"]`)
	}
	if l.MinSharePercent > l.MaxSharePercent {
		k.fail("limits.min_share_percent", l.MinSharePercent,
			"want at most max_share_percent = %d, for example min_share_percent = 1", l.MaxSharePercent)
	}
	if _, err := parseMemory(l.MaxMem); err != nil {
		k.fail("limits.max_mem", l.MaxMem, "%v; \"\" is no limit", err)
	}
}

// check refuses a default that every job without an option would be refused for.
func (d Defaults) check(k *checker, limits Limits) {
	if _, err := parseMemory(d.Mem); err != nil {
		k.fail("defaults.mem", d.Mem, "%v; \"\" is as the share", err)
	}
	if !slices.Contains(limits.Modes, d.Mode) {
		k.fail("defaults.mode", d.Mode, "is not among limits.modes = %s", show(limits.Modes))
	}
	if !slices.Contains(limits.Priorities, d.Priority) {
		k.fail("defaults.priority", d.Priority, "is not among limits.priorities = %s", show(limits.Priorities))
	}
	if !slices.Contains(limits.Policies, d.Policy) {
		k.fail("defaults.policy", d.Policy, "is not among limits.policies = %s", show(limits.Policies))
	}
	if n := limits.MaxCards; d.Cards > n {
		k.fail("defaults.cards", d.Cards, "want at most limits.max_cards = %d, for example cards = %d", n, n)
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
