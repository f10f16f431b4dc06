// SPDX-License-Identifier: Apache-2.0

package topology

import "github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"

// Facts are what the driver and the kernel say of the cards of a node. A row is
// a place in Cards.
type Facts struct {
	Cards []Card
	// Levels[i][j] is what was said of the way from the i-th to the j-th card.
	Levels [][]Level
	// P2P[i][j] is what the i-th card may do with the memory of the j-th.
	P2P [][]P2P
	// Unread are the questions that were not answered, in words for people.
	// What a card or a driver does not have is not among them.
	Unread []string
}

// Card is one card and what is next to it.
type Card struct {
	Index    int // gpu.Card.Index: may have holes, and is not the row
	UUID     gpu.UUID
	PCIBusID string // as sysfs writes it, "0000:1b:00.0"
	NUMANode int    // NoNUMANode: not known
	CPUs     Set    // near the card; nil: not known
	// MIG says that it is in MIG mode, and gresd does not share it; Instance, that it is a
	// MIG instance, at the place of its GPU.
	MIG, Instance bool

	Links []Link // NVLinks that are up
}

// Remote is what an NVLink leads to.
type Remote int

// Ends of an NVLink. RemoteOther is also an end that the driver does not name.
const (
	RemoteOther Remote = iota
	RemoteCard
	RemoteSwitch
)

// Link is one NVLink of a card.
type Link struct {
	Remote   Remote
	PCIBusID string // of the card at the other end; "": not known, or no card
}

// Status is an answer about peer access, in the words of nvidia-smi topo -p2p.
type Status string

// Statuses.
const (
	StatusUnknown      Status = ""    // written as "U"
	StatusOK           Status = "OK"  // it works
	StatusNoChipset    Status = "CNS" // the chipset does not do it
	StatusNoCard       Status = "GNS" // the card does not do it
	StatusNoWay        Status = "TNS" // not on the way between these two
	StatusDisabled     Status = "DR"  // switched off for the driver
	StatusNotSupported Status = "NS"
)

func (s Status) String() string {
	if s == StatusUnknown {
		return "U"
	}
	return string(s)
}

// P2P is what one card may do with another card's memory. The zero value is
// not known.
type P2P struct {
	Read, Write, NVLink, Atomics Status
}
