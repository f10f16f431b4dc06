// SPDX-License-Identifier: Apache-2.0

// Package gpu holds the words that every part of gresd shares: cards, shares
// and sizes. It is pure: no file, no driver, no clock.
package gpu

import (
	"cmp"
	"fmt"
	"math/bits"
	"strings"
)

// UUID is the NVML UUID of a card, "GPU-" or, of a MIG instance, "MIG-", and 36
// characters. It is the only identity of a card; an index is for display and for talking to Slurm.
type UUID string

// IsInstance says whether it is a MIG instance's.
func (u UUID) IsInstance() bool { return strings.HasPrefix(string(u), "MIG-") }

// Share is a fraction of one card in hundredths, 1 to 100. A sum over several
// cards may be larger than 100.
type Share uint32

// FullCard is the share that is one whole card. slurmctld counts the same
// number of shards for each card.
const FullCard Share = 100

// Card is one physical GPU as the node sees it, or one MIG instance of it: what has
// memory and time of its own, and is what Slurm gives out.
type Card struct {
	UUID UUID `json:"gpu_uuid"`
	// Index is the position among the node's cards sorted by Minor and Instance. Slurm uses
	// the same number in SLURM_JOB_GPUS and IDX.
	Index int    `json:"index"`
	Minor int    `json:"minor"` // of /dev/nvidia<minor>
	Name  string `json:"name"`  // as NVML says it, "NVIDIA H200"
	Type  string `json:"type"`  // fit for Type= in gres.conf, "h200"
	// Memory is what shares are taken of, in bytes: the card's own, or more
	// where the site oversubscribes it ([Card.Scaled]).
	Memory Bytes `json:"memory_bytes"`
	// Physical is the card's own memory; 0 means that it is Memory.
	Physical Bytes  `json:"physical_bytes"`
	PCIBusID string `json:"pci_bus_id"` // as sysfs writes it, "0000:1b:00.0"
	NUMANode int    `json:"numa_node"`  // -1: not known
	// MIG says that it is in MIG mode and not to be shared by gresd: a GPU without instances, or
	// a compute instance that is not alone in its GPU instance, whose memory they all take.
	MIG bool `json:"mig"`
	// Instance is the zero value for a whole GPU.
	Instance Instance `json:"instance,omitzero"`
	// Healthy is false while the card must not be granted.
	Healthy bool `json:"healthy"`
}

// Instance is what makes a card a MIG instance. PCIBusID, Minor and NUMANode are then its GPU's.
type Instance struct {
	GPU     UUID `json:"gpu"` // that it is a part of
	ID      int  `json:"gpu_instance"`
	Compute int  `json:"compute_instance"`
	// Cap and ComputeCap are the device minors of the capabilities for these two: who can
	// open both files and the GPU's may use the instance.
	Cap        int `json:"cap"`
	ComputeCap int `json:"compute_cap"`
}

// CapPath and ComputeCapPath are the files in /proc by which the driver tells these two.
func (i Instance) CapPath(minor int) string {
	return fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d/access", minor, i.ID)
}

func (i Instance) ComputeCapPath(minor int) string {
	return fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d/ci%d/access", minor, i.ID, i.Compute)
}

// capFile is the device file of a capability.
const capFile = "/dev/nvidia-caps/nvidia-cap%d"

// IsInstance says whether the card is a MIG instance.
func (c Card) IsInstance() bool { return c.Instance != Instance{} }

// GPU is the UUID of the whole card.
func (c Card) GPU() UUID {
	return cmp.Or(c.Instance.GPU, c.UUID)
}

// File is the device file that this card alone needs, by which Slurm keeps others off it.
// For an instance it is that of its compute instance: all instances of a GPU need the GPU's.
func (c Card) File() string {
	if c.IsInstance() {
		return fmt.Sprintf(capFile, c.Instance.ComputeCap)
	}
	return fmt.Sprintf("/dev/nvidia%d", c.Minor)
}

// Files are all device files that the card needs beyond those of every card.
func (c Card) Files() []string {
	files := []string{fmt.Sprintf("/dev/nvidia%d", c.Minor)}
	if c.IsInstance() {
		files = append(files, fmt.Sprintf(capFile, c.Instance.Cap), c.File())
	}
	return files
}

// Scaled returns the card with as many times its own memory, in whole MiB.
func (c Card) Scaled(scaling float64) Card {
	c.Physical = cmp.Or(c.Physical, c.Memory)
	c.Memory = c.Physical
	if scaling > 1 {
		scaled := Bytes(float64(c.Physical) * scaling)
		c.Memory = max(c.Physical, scaled-scaled%MiB)
	}
	return c
}

// PhysicalPart returns what the card has of its own for a part of Memory.
func (c Card) PhysicalPart(part Bytes) Bytes {
	if c.Physical == 0 || c.Physical >= c.Memory {
		return part
	}
	high, low := bits.Mul64(uint64(min(part, c.Memory)), uint64(c.Physical))
	quotient, _ := bits.Div64(high, low, uint64(c.Memory)) // part <= Memory: it fits
	return Bytes(quotient)
}

// MemoryShare returns the memory that a share of a card of that size covers,
// in bytes, rounded down. Shares above FullCard count as FullCard.
func (c Card) MemoryShare(s Share) Bytes {
	if s >= FullCard {
		return c.Memory
	}
	// Divide first: the product of a huge size and 99 could overflow.
	whole, rest := c.Memory/100, c.Memory%100
	return whole*Bytes(s) + rest*Bytes(s)/100
}

// Mode is the kind of limit on a job's compute.
type Mode string

// Modes. Memory is always hard.
const (
	Hard Mode = "hard" // never more than the share
	Soft Mode = "soft" // at least the share, and the idle time of others
	Off  Mode = "off"  // counted, never held back; only where the site allows it
)

// Priority orders jobs that compete for one card.
type Priority string

// Priorities.
const (
	High   Priority = "high"
	Normal Priority = "normal"
	Low    Priority = "low"
)

// Priorities returns every priority.
func Priorities() []Priority { return []Priority{High, Normal, Low} }

// Policy is the preference for cards when gresd chooses them.
type Policy string

// Policies.
const (
	Binpack  Policy = "binpack"  // fill cards that are in use
	Spread   Policy = "spread"   // prefer the emptiest card
	Topology Policy = "topology" // prefer cards that are near each other
	// Exclusive: cards without other jobs, as long as the job runs. Each takes a whole card of
	// slurmctld's count, with any share.
	Exclusive Policy = "exclusive"
)

// Policies returns every policy.
func Policies() []Policy { return []Policy{Binpack, Spread, Topology, Exclusive} }

// Engine is the method that divides the compute of a card between jobs.
type Engine string

// Engines. All jobs of a card have the same one. The multiprocessors that a job
// may use with MPS are fixed when a program starts.
const (
	Time Engine = "time" // the card's time, by the arbiter
	MPS  Engine = "mps"  // the card's multiprocessors, by NVIDIA's Multi-Process Service
	// Concurrent: one server of that service runs the work of all jobs side by side, and
	// the arbiter keeps their shares of the work.
	Concurrent Engine = "concurrent"
	// Auto, of a request, leaves it to gresd: Concurrent with jobs of trusted users, else Time.
	Auto Engine = "auto"
)

// Engines returns every engine that a job may request.
func Engines() []Engine { return []Engine{Time, MPS, Concurrent, Auto} }

// ParseMode reads "hard", "soft", "soft:CEILING" or "off". The ceiling is 0
// where there is none; "soft:100" has none.
func ParseMode(s string) (m Mode, ceiling Share, ok bool) {
	name, percent, found := strings.Cut(s, ":")
	switch m := Mode(name); {
	case m == Soft && found:
		n, ok := ParseCount(percent, uint32(FullCard))
		return m, Share(n) % FullCard, ok
	case (m == Hard || m == Soft || m == Off) && !found:
		return m, 0, true
	}
	return "", 0, false
}

// FormatMode is the inverse of [ParseMode].
func FormatMode(m Mode, ceiling Share) string {
	if m == Soft && ceiling != 0 {
		return fmt.Sprintf("%s:%d", m, ceiling)
	}
	return string(m)
}
