// SPDX-License-Identifier: Apache-2.0

package wire

// Topology is how the cards of the node are joined, and what is granted of them.
// Rows and columns of its matrices are in the order of Cards; the diagonal is "X".
type Topology struct {
	Cards []TopologyCard `json:"cards"`
	// Matrix has the cells of nvidia-smi topo -m: "NV18" for NVLinks, else the
	// level over PCIe, which Levels has for every pair: "INT" (one board), "PIX",
	// "PXB", "PHB", "NODE", "SYS", or "?" for not known.
	Matrix [][]string `json:"matrix"`
	Levels [][]string `json:"levels"`
	// P2P has a matrix each for "read", "write", "nvlink" and "atomics", from the
	// card of the row to that of the column: "OK", or why not, in the letters of
	// nvidia-smi topo -p2p; "U" is not known.
	P2P  map[string][][]string `json:"p2p"`
	Tree TopologyNode          `json:"tree"`
	// TreeText is the tree in one line: "ROOT:7 -> PHB:7 -> {PIX:3, PIX:4}".
	TreeText string           `json:"tree_text"`
	Islands  []TopologyIsland `json:"nvlink_islands"`
	Warnings []string         `json:"warnings"`
}

// TopologyCard is a card and what is near it.
type TopologyCard struct {
	Card
	PCIBusID string `json:"pci_bus_id"`
	// MIG: Slurm shares the card, gresd does not.
	MIG      bool   `json:"mig"`
	NUMANode *int   `json:"numa_node"` // null: not known
	CPUs     string `json:"cpus"`      // "0-47,96-143"; "": not known
	NVLinks  int    `json:"nvlinks"`   // that are up, whatever is at the other end
}

// TopologyNode is a part of the tree: cards within Level of each other. A single
// card has no level.
type TopologyNode struct {
	Level    string         `json:"level,omitempty"` // "ROOT" for all cards
	Cards    []int          `json:"cards"`           // indexes, neighbours beside each other
	Children []TopologyNode `json:"children,omitempty"`
}

// TopologyIsland is a set of cards that NVLink joins.
type TopologyIsland struct {
	Cards    []int `json:"cards"`    // indexes
	NVSwitch bool  `json:"nvswitch"` // all of its links go through switches
	AllToAll bool  `json:"all_to_all"`
	MinLinks int   `json:"min_links"` // of the pairs that have links
	MaxLinks int   `json:"max_links"`
}
