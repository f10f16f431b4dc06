// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CardUse is what a card does, by all its processes. Ratios are 0 to 1; nil is
// what the driver does not tell, or did not tell in time.
type CardUse struct {
	MIG         bool     `json:"mig,omitempty"`
	UsedBytes   *uint64  `json:"memory_used_bytes,omitempty"`
	Utilization *float64 `json:"utilization,omitempty"` // time in which a kernel ran
	// MemoryUtilization is the time in which memory was read or written.
	MemoryUtilization *float64 `json:"memory_utilization,omitempty"`
}

// JobUse is more of what a job asked for and does on one card. Shares and cores
// are hundredths of the card, ratios 0 to 1; nil is not known.
type JobUse struct {
	AskedShare uint32  `json:"asked_share,omitempty"`
	AskedCores uint32  `json:"asked_cores,omitempty"`
	AskedBytes *uint64 `json:"asked_memory_bytes,omitempty"` // nil: left open
	// Of the used memory, as announced.
	ContextBytes *uint64 `json:"memory_context_bytes,omitempty"`
	ModuleBytes  *uint64 `json:"memory_module_bytes,omitempty"`
	// Launches that waited for the job's share, and allocations refused at its limit.
	LaunchesThrottled *uint64  `json:"launches_throttled,omitempty"`
	ThrottledSeconds  *float64 `json:"throttled_seconds,omitempty"`
	Refused           *uint64  `json:"allocations_refused,omitempty"`
	// Utilization is the part of the card's time that its processes had lately, by
	// the driver's account.
	Utilization *float64 `json:"utilization,omitempty"`
	// Since this gresd was started: turns given, and time for which the job held
	// its share without work on the card. Busy: it has work there now.
	Turns       *uint64    `json:"turns,omitempty"`
	IdleSeconds *float64   `json:"idle_seconds,omitempty"`
	Busy        *bool      `json:"busy,omitempty"`
	LastWork    *time.Time `json:"last_work,omitempty"`
	// LimitedBy is the reason why a job with work does not get more of the card: "program",
	// "neighbors", "limit" or "card". Next to other jobs with work, Had is the part of the card's
	// time that the job had in the last seconds, by the card's records. DeprivedSeconds is how long
	// its neighbors have taken much of the time that the job is entitled to.
	LimitedBy       string   `json:"limited_by,omitempty"`
	Had             *float64 `json:"had,omitempty"`
	DeprivedSeconds *float64 `json:"deprived_seconds,omitempty"`
	// ByProcess is filled in where it was asked for.
	ByProcess []Process `json:"by_process,omitempty"`
}

// Process is one process of a job with a context on the card.
type Process struct {
	PID         uint32   `json:"pid,omitempty"` // as the host knows it; 0: not known
	JobPID      uint32   `json:"job_pid"`       // as the job knows it
	UsedBytes   uint64   `json:"memory_used_bytes"`
	GPUSeconds  float64  `json:"gpu_seconds"`
	Utilization *float64 `json:"utilization,omitempty"`
	// Unwatched: no thread of libvgpu runs in it. It is held at its share at all times.
	Unwatched bool `json:"unwatched,omitempty"`
}

// Report is what a job asked for, got and did on this node, up to now or to its end.
type Report struct {
	Node  string     `json:"node"`
	Job   Job        `json:"job"`
	Until time.Time  `json:"until"`           // of the numbers
	Ended *time.Time `json:"ended,omitempty"` // nil: it runs
	// Cards are those of Job, in the same order.
	Cards []ReportCard `json:"cards"`
}

// ReportCard is more of what a job did on one card.
type ReportCard struct {
	PeakBytes uint64 `json:"memory_peak_bytes"` // 0: not known
	// LimitedBySeconds is the time with work for each word of JobUse.LimitedBy, since gresd started.
	LimitedBySeconds map[string]float64 `json:"limited_by_seconds,omitempty"`
}

// PerTask ends a name in a job's file of variables: NAME/tasks=N is a whole number that all
// tasks of a step on the node have together. The SPANK plugin (jobenv.c) knows it, too.
const PerTask = "/tasks"

// ForTask returns what one of so many tasks gets of a line of that file, as NAME=VALUE: of
// what is for all an equal part, at least 1.
func ForTask(line string, tasks int) string {
	name, value, _ := strings.Cut(line, "=")
	name, shared := strings.CutSuffix(name, PerTask)
	if !shared {
		return line
	}
	n, _ := strconv.Atoi(value) // gresd writes a number
	return fmt.Sprintf("%s=%d", name, max(1, n/max(1, tasks)))
}

// IsRoot also trusts gresd's own user, who could change its files anyway.
func IsRoot(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// UserError is a reply about what was asked.
func UserError(format string, args ...any) Reply {
	return Reply{Kind: KindUser, Message: fmt.Sprintf(format, args...)}
}

// BusyError is a reply about what may be known later.
func BusyError(format string, args ...any) Reply {
	return Reply{Kind: KindBusy, Message: fmt.Sprintf(format, args...)}
}

// NodeError is a reply about what is wrong with the node.
func NodeError(format string, args ...any) Reply {
	return Reply{Kind: KindNode, Message: fmt.Sprintf(format, args...)}
}

// Explanation is the answer to explain: why each card was or was not taken.
type Explanation struct {
	JobID uint32 `json:"job_id,omitempty"` // 0: no job, a request was asked about
	// Request is what was asked, in the words of the options.
	Request   string `json:"request"`
	Placement string `json:"placement"` // who chooses cards: "slurm" or "gresd"
	// Decided is when; nil for what would be decided now.
	Decided *time.Time `json:"decided,omitempty"`
	// Lost says that gresd was started anew since the job was placed: its own
	// cards are told, and of the others only what they have room for now.
	Lost bool `json:"lost,omitempty"`
	// Engine is what gresd took for a job that leaves it to gresd, and EngineWhy why; "" for others.
	Engine    string `json:"engine,omitempty"`
	EngineWhy string `json:"engine_why,omitempty"`
	// Message is why nothing was taken; "" where something was or could be.
	Message string        `json:"message,omitempty"`
	Cards   []CardVerdict `json:"cards"`
}

// CardVerdict is what was decided about one card. Shares are hundredths of it.
type CardVerdict struct {
	UUID  string `json:"gpu_uuid"`
	Index int    `json:"index"`
	Type  string `json:"type,omitempty"` // "" for a card that is gone
	// Reason is a word of a fixed list, Why the same for people.
	Reason    string `json:"reason"`
	Why       string `json:"why"`
	FreeShare uint32 `json:"free_share"`
	FreeBytes uint64 `json:"free_bytes"`
	// What the request takes of the card; 0 where that cannot be known.
	WantShare uint32 `json:"want_share,omitempty"`
	WantBytes uint64 `json:"want_bytes,omitempty"`
	Jobs      int    `json:"jobs"` // on the card
	// JobIDs are those of them that the asker may see, now.
	JobIDs []uint32 `json:"job_ids,omitempty"`
}

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
