// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CardUse is the use of a card by all its processes. Ratios are 0 to 1. A field is nil if the
// driver does not report it, or not in time.
type CardUse struct {
	MIG         bool     `json:"mig,omitempty"`
	UsedBytes   *uint64  `json:"memory_used_bytes,omitempty"`
	Utilization *float64 `json:"utilization,omitempty"` // part of the time with a kernel
	// MemoryUtilization is the part of the time with reads or writes of memory.
	MemoryUtilization *float64 `json:"memory_utilization,omitempty"`
}

// JobUse has more figures of a job on one card: its request and its use. Shares and cores are
// hundredths of the card, ratios 0 to 1; nil is not known.
type JobUse struct {
	AskedShare uint32  `json:"asked_share,omitempty"`
	AskedCores uint32  `json:"asked_cores,omitempty"`
	AskedBytes *uint64 `json:"asked_memory_bytes,omitempty"` // nil: left open
	// These bytes are included in the used memory. The job charges them itself.
	ContextBytes *uint64 `json:"memory_context_bytes,omitempty"`
	ModuleBytes  *uint64 `json:"memory_module_bytes,omitempty"`
	// Launches that waited for the job's share, and allocations refused at its limit.
	LaunchesThrottled *uint64  `json:"launches_throttled,omitempty"`
	ThrottledSeconds  *float64 `json:"throttled_seconds,omitempty"`
	Refused           *uint64  `json:"allocations_refused,omitempty"`
	// Utilization is the part of the card's time that its processes had lately, by
	// the driver's account.
	Utilization *float64 `json:"utilization,omitempty"`
	// Turns and IdleSeconds count from the start of gresd: the turns, and the time when the job had
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
	// ByProcess is filled in on request.
	ByProcess []Process `json:"by_process,omitempty"`
}

// Process is one process of a job with a context on the card.
type Process struct {
	PID         uint32   `json:"pid,omitempty"` // as the host knows it; 0: not known
	JobPID      uint32   `json:"job_pid"`       // as the job knows it
	UsedBytes   uint64   `json:"memory_used_bytes"`
	GPUSeconds  float64  `json:"gpu_seconds"`
	Utilization *float64 `json:"utilization,omitempty"`
	// Unwatched: no thread of libvgpu runs in it. Its share always limits it.
	Unwatched bool `json:"unwatched,omitempty"`
}

// Report has the request, the limits and the use of a job on this node, up to now or to its end.
type Report struct {
	Node  string     `json:"node"`
	Job   Job        `json:"job"`
	Until time.Time  `json:"until"`           // of the numbers
	Ended *time.Time `json:"ended,omitempty"` // nil: it runs
	// Cards has an entry for each card of Job, in the same order.
	Cards []ReportCard `json:"cards"`
}

// ReportCard has more figures of a job on one card.
type ReportCard struct {
	PeakBytes uint64 `json:"memory_peak_bytes"` // 0: not known
	// LimitedBySeconds is the time with work for each word of JobUse.LimitedBy, since gresd started.
	LimitedBySeconds map[string]float64 `json:"limited_by_seconds,omitempty"`
}

// PerTask ends a name in a job's file of variables: NAME/tasks=N is a whole number that all
// tasks of a step on the node have together. The SPANK plugin (jobenv.c) knows it, too.
const PerTask = "/tasks"

// ForTask returns a line of that file for one of so many tasks, as NAME=VALUE. A value for all
// tasks is divided by their number; each task gets at least 1.
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

// UserError is a reply about a fault in the request.
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
	JobID uint32 `json:"job_id,omitempty"` // 0: a request without a job
	// Request is the request as options.
	Request   string `json:"request"`
	Placement string `json:"placement"` // chooser of the cards: "slurm" or "gresd"
	// Decided is the time of the decision; nil for a decision about the present.
	Decided *time.Time `json:"decided,omitempty"`
	// Lost: gresd restarted after it placed the job. The job's own cards are then known. For the
	// other cards, only the present room is known.
	Lost bool `json:"lost,omitempty"`
	// Engine and EngineWhy are gresd's choice and its reason, if the job leaves the engine to gresd.
	Engine    string `json:"engine,omitempty"`
	EngineWhy string `json:"engine_why,omitempty"`
	// Message is why nothing was taken; "" where something was or could be.
	Message string        `json:"message,omitempty"`
	Cards   []CardVerdict `json:"cards"`
}

// CardVerdict is the decision about one card. Shares are hundredths of it.
type CardVerdict struct {
	UUID  string `json:"gpu_uuid"`
	Index int    `json:"index"`
	Type  string `json:"type,omitempty"` // "" for a card that is gone
	// Reason is a word of a fixed list, Why the same for people.
	Reason    string `json:"reason"`
	Why       string `json:"why"`
	FreeShare uint32 `json:"free_share"`
	FreeBytes uint64 `json:"free_bytes"`
	// The request needs this much of the card; 0 is not known.
	WantShare uint32 `json:"want_share,omitempty"`
	WantBytes uint64 `json:"want_bytes,omitempty"`
	Jobs      int    `json:"jobs"` // on the card
	// JobIDs are the jobs on the card now that the caller may see.
	JobIDs []uint32 `json:"job_ids,omitempty"`
}

// Topology describes the connections of the node's cards, and the grants on them. Rows and columns
// of its matrices are in the order of Cards; the diagonal is "X".
type Topology struct {
	Cards []TopologyCard `json:"cards"`
	// Matrix has the cells of nvidia-smi topo -m: "NV18" for NVLinks, else the level over PCIe.
	// Levels has that level for every pair: "INT" (one board), "PIX", "PXB", "PHB", "NODE", "SYS",
	// or "?" for not known.
	Matrix [][]string `json:"matrix"`
	Levels [][]string `json:"levels"`
	// P2P has a matrix for each of "read", "write", "nvlink" and "atomics". A cell is for access
	// from the row's card to the column's card: "OK", or the reason against it, in the letters of
	// nvidia-smi topo -p2p. "U" is not known.
	P2P  map[string][][]string `json:"p2p"`
	Tree TopologyNode          `json:"tree"`
	// TreeText is the tree in one line: "ROOT:7 -> PHB:7 -> {PIX:3, PIX:4}".
	TreeText string           `json:"tree_text"`
	Islands  []TopologyIsland `json:"nvlink_islands"`
	Warnings []string         `json:"warnings"`
}

// TopologyCard is a card with its NUMA node, processors and links.
type TopologyCard struct {
	Card
	PCIBusID string `json:"pci_bus_id"`
	// MIG: Slurm shares the card, gresd does not.
	MIG      bool   `json:"mig"`
	NUMANode *int   `json:"numa_node"` // null: not known
	CPUs     string `json:"cpus"`      // "0-47,96-143"; "": not known
	NVLinks  int    `json:"nvlinks"`   // number of links that are up, to any device
}

// TopologyNode is a part of the tree: cards within Level of each other. A single
// card has no level.
type TopologyNode struct {
	Level    string         `json:"level,omitempty"` // "ROOT" for all cards
	Cards    []int          `json:"cards"`           // indexes, neighbors next to each other
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
