// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"crypto/sha1"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// A Config describes a simulated machine. Either Count cards like Model, or
// one entry of Card for each; an entry overrides what Model says.
type Config struct {
	Version  int        `toml:"version"`
	Count    int        `toml:"count"`
	Model    CardConfig `toml:"model"`
	Card     []CardConfig
	NVSwitch bool       `toml:"nvswitch"`
	Topology [][]string `toml:"topology"`
}

// CardConfig holds what one card is and how fast it is. Zero values and nil
// pointers mean: as the model, or as the default.
type CardConfig struct {
	Name            string   `toml:"name"`
	Type            string   `toml:"type"`
	UUID            string   `toml:"uuid"`
	PCI             string   `toml:"pci"`
	Minor           *uint32  `toml:"minor"`
	NUMA            *int32   `toml:"numa"`
	CPUs            string   `toml:"cpus"`
	MIG             bool     `toml:"mig"`            // for NVML; without instances, the card works as without
	SwitchRecords   string   `toml:"switch_records"` // "yes", "v1" without version 2, or why the driver refuses them
	SMs             uint32   `toml:"sms"`
	Capability      string   `toml:"capability"`
	Memory          string   `toml:"memory"`
	Reserved        string   `toml:"reserved"`
	ContextCost     string   `toml:"context_cost"`
	DefaultSliceUS  uint32   `toml:"default_slice_us"`
	IgnoresSlices   bool     `toml:"ignores_slices"` // all get the default, while what was set is read back
	SwitchUS        *float64 `toml:"switch_us"`
	SwitchAwayUS    *float64 `toml:"switch_away_us"` // parts of it, at most all
	SwitchSliceUS   *float64 `toml:"switch_slice_us"`
	SliceChangeUS   *float64 `toml:"slice_change_us"`
	KernelLatencyUS *float64 `toml:"kernel_latency_us"`
	KernelGapUS     *float64 `toml:"kernel_gap_us"`
	KernelUS        *float64 `toml:"kernel_us"`
	CopyGBPerS      float64  `toml:"copy_gb_per_s"`
	// Instance are its MIG instances; with any, it is in MIG mode.
	Instance []InstanceConfig
}

// InstanceConfig is one MIG instance. It works as its card does, with memory and a
// scheduler of its own.
type InstanceConfig struct {
	Profile string  `toml:"profile"` // 1g.10gb
	Memory  string  `toml:"memory"`
	SMs     uint32  `toml:"sms"`
	GPU     *uint32 `toml:"gpu_instance"` // its id; else 1 and up
	Compute uint32  `toml:"compute_instance"`
}

// ReadConfig reads a machine's description; unknown keys are errors.
func ReadConfig(path string) (Config, error) {
	var c Config
	meta, err := toml.DecodeFile(path, &c)
	if err != nil {
		return c, fmt.Errorf("read %s: %w", path, err)
	}
	if extra := meta.Undecoded(); len(extra) > 0 {
		return c, fmt.Errorf("read %s: unknown key %q", path, extra[0])
	}
	if c.Version != 1 {
		return c, fmt.Errorf("read %s: version %d: want version = 1", path, c.Version)
	}
	return c, nil
}

// cards resolves the description into one full entry for each card.
func (c Config) cards() ([]CardConfig, error) {
	list := c.Card
	if len(list) == 0 {
		if c.Count < 1 {
			return nil, fmt.Errorf("no cards: set count = 1, or write [[card]] entries")
		}
		list = make([]CardConfig, c.Count)
	}
	if len(list) > MaxCards {
		return nil, fmt.Errorf("%d cards: at most %d", len(list), MaxCards)
	}
	out := make([]CardConfig, len(list))
	for i, own := range list {
		out[i] = own.over(c.Model).over(defaultCard(i))
	}
	return out, nil
}

func defaultCard(i int) CardConfig {
	sum := sha1.Sum([]byte(fmt.Sprintf("simulated card %d", i)))
	minor, numa := uint32(i), int32(0)
	ptr := func(v float64) *float64 { return &v }
	return CardConfig{
		Name: "NVIDIA H100 80GB HBM3", Type: "h100",
		UUID:  fmt.Sprintf("GPU-%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]),
		PCI:   fmt.Sprintf("00000000:%02X:00.0", 0x10+i*0x10),
		Minor: &minor, NUMA: &numa, CPUs: "0-1", SwitchRecords: "yes", SMs: 132, Capability: "9.0",
		Memory: "80G", Reserved: "0", ContextCost: "500M", DefaultSliceUS: 2090,
		SwitchUS: ptr(220), SwitchAwayUS: ptr(80), SwitchSliceUS: ptr(40), SliceChangeUS: ptr(400),
		KernelLatencyUS: ptr(4), KernelGapUS: ptr(1), KernelUS: ptr(10), CopyGBPerS: 50,
	}
}

func pick[T comparable](a, b T) T {
	var zero T
	if a != zero {
		return a
	}
	return b
}

// over returns c with what it leaves out taken from base.
func (c CardConfig) over(base CardConfig) CardConfig {
	instances := c.Instance
	if instances == nil {
		instances = base.Instance
	}
	return CardConfig{
		Name: pick(c.Name, base.Name), Type: pick(c.Type, base.Type), UUID: pick(c.UUID, base.UUID),
		PCI: pick(c.PCI, base.PCI), Minor: pick(c.Minor, base.Minor), NUMA: pick(c.NUMA, base.NUMA),
		CPUs: pick(c.CPUs, base.CPUs), MIG: pick(c.MIG, base.MIG), SwitchRecords: pick(c.SwitchRecords, base.SwitchRecords), SMs: pick(c.SMs, base.SMs), Capability: pick(c.Capability, base.Capability),
		Memory: pick(c.Memory, base.Memory), Reserved: pick(c.Reserved, base.Reserved),
		ContextCost:    pick(c.ContextCost, base.ContextCost),
		DefaultSliceUS: pick(c.DefaultSliceUS, base.DefaultSliceUS), IgnoresSlices: pick(c.IgnoresSlices, base.IgnoresSlices),
		SwitchUS: pick(c.SwitchUS, base.SwitchUS), SwitchAwayUS: pick(c.SwitchAwayUS, base.SwitchAwayUS),
		SwitchSliceUS: pick(c.SwitchSliceUS, base.SwitchSliceUS), SliceChangeUS: pick(c.SliceChangeUS, base.SliceChangeUS),
		KernelLatencyUS: pick(c.KernelLatencyUS, base.KernelLatencyUS),
		KernelGapUS:     pick(c.KernelGapUS, base.KernelGapUS), KernelUS: pick(c.KernelUS, base.KernelUS),
		CopyGBPerS: pick(c.CopyGBPerS, base.CopyGBPerS), Instance: instances,
	}
}

// ParseSize reads a size such as 512, 500M or 80G (powers of 1024).
func ParseSize(s string) (uint64, error) {
	digits := strings.TrimRight(s, "KMGT")
	shift := map[string]uint{"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
	by, ok := shift[strings.TrimPrefix(s, digits)]
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || !ok || n > math.MaxUint64>>by {
		return 0, fmt.Errorf("size %q: want a whole number and K, M, G or T, e.g. 80G", s)
	}
	return n << by, nil
}

// A link between two cards, as the model writes it: PCI level, NVLinks above.
func parseLink(s string) (uint32, error) {
	levels := map[string]uint32{"SYS": 0, "NODE": 1, "PHB": 2, "PXB": 3, "PIX": 4, "INT": 5}
	nv, pci, both := strings.Cut(s, "/")
	if level, ok := levels[s]; ok {
		return level, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(nv, "NV"), 10, 8)
	if !strings.HasPrefix(nv, "NV") || err != nil || n == 0 {
		return 0, fmt.Errorf("topology %q: want INT, PIX, PXB, PHB, NODE, SYS, NV4 or NV4/PHB", s)
	}
	level := levels["SYS"]
	if both {
		var ok bool
		if level, ok = levels[pci]; !ok {
			return 0, fmt.Errorf("topology %q: want e.g. NV4/PHB", s)
		}
	}
	return level | uint32(n)<<8, nil
}

// links returns the matrix of links. Without a topology, cards of one NUMA
// node are NODE apart and others SYS.
func (c Config) links(cards []CardConfig) ([][]uint32, error) {
	out := make([][]uint32, len(cards))
	if len(c.Topology) != 0 && len(c.Topology) != len(cards) {
		return nil, fmt.Errorf("topology: %d rows for %d cards", len(c.Topology), len(cards))
	}
	for i := range cards {
		out[i] = make([]uint32, len(cards))
		for j := range cards {
			if i == j {
				continue
			}
			name := "SYS"
			if *cards[i].NUMA == *cards[j].NUMA {
				name = "NODE"
			}
			if len(c.Topology) != 0 {
				if len(c.Topology[i]) != len(cards) {
					return nil, fmt.Errorf("topology: row %d has %d entries for %d cards", i, len(c.Topology[i]), len(cards))
				}
				name = c.Topology[i][j]
			}
			link, err := parseLink(name)
			if err != nil {
				return nil, err
			}
			out[i][j] = link
		}
	}
	for i := range out {
		for j := range out {
			if out[i][j] != out[j][i] {
				return nil, fmt.Errorf("topology: cards %d and %d differ in the two directions", i, j)
			}
		}
	}
	return out, nil
}
