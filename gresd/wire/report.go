// SPDX-License-Identifier: Apache-2.0

package wire

import "time"

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
