// SPDX-License-Identifier: Apache-2.0

package wire

import "time"

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
