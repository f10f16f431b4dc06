// SPDX-License-Identifier: Apache-2.0

package topology

import "fmt"

// Level is the way between two different cards over PCIe, named after their
// closest common ancestor, in NVML's own numbers: smaller is nearer.
type Level int

// Levels. nvidia-smi has the same names, but for INT, which it calls PIX.
const (
	Unknown Level = -1 // the driver does not say
	INT     Level = 0  // one board
	PIX     Level = 10 // at most one PCIe switch
	PXB     Level = 20 // several PCIe switches, no host bridge
	PHB     Level = 30 // one host bridge
	NODE    Level = 40 // several host bridges of one NUMA node
	SYS     Level = 50 // the link between NUMA nodes
)

// levels are all known ones, the nearest first.
var levels = []Level{INT, PIX, PXB, PHB, NODE, SYS}

var levelNames = map[Level]string{
	Unknown: "?", INT: "INT", PIX: "PIX", PXB: "PXB", PHB: "PHB", NODE: "NODE", SYS: "SYS",
}

func (l Level) String() string {
	if name, ok := levelNames[l]; ok {
		return name
	}
	return fmt.Sprintf("Level(%d)", int(l))
}

// LevelOf takes NVML's number; one that no level has is Unknown.
func LevelOf(nvml int) Level {
	if _, ok := levelNames[Level(nvml)]; ok {
		return Level(nvml)
	}
	return Unknown
}

// Costs of a pair without NVLink. A way that is not known must not win against
// one that is.
const (
	costINT     = 900
	costPCIe    = 100 // for each unit of Level: PIX 1000 to SYS 5000
	costUnknown = 6000
	costNVLink  = 1000 // of a way that is one link wide, if there were one as slow as PIX
)

// costOf is how far apart two cards are: below 1000 for NVLink, the less the
// more links there are, as the time for a byte is; then by level.
func costOf(nvlinks int, level Level) int {
	switch {
	case nvlinks > 0:
		return min(costINT-1, costNVLink/(nvlinks+1))
	case level == INT:
		return costINT
	case level == Unknown:
		return costUnknown
	}
	return costPCIe * int(level)
}
