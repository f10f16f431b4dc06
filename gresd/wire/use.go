// SPDX-License-Identifier: Apache-2.0

package wire

import "time"

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
