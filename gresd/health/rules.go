// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
)

// Kind is what is wrong with a card.
type Kind string

// The kinds. Operator is the wish of an administrator: only one takes it back.
const (
	Operator Kind = "operator"
	XID      Kind = "xid"
	ECC      Kind = "ecc"
	Lost     Kind = "lost"
	Silent   Kind = "silent" // the driver gives no answer about the card, or an error
)

// Cause is one reason not to use a card.
type Cause struct {
	Kind  Kind      `json:"kind"`
	Text  string    `json:"text"`
	Since time.Time `json:"since"`
}

// Record is what is known of one card; the zero value is a card that is well.
type Record struct {
	Causes []Cause `json:"causes,omitempty"`
	// Uncorrected is the count of memory errors at the last look, once Counted.
	Uncorrected uint64 `json:"uncorrected,omitempty"`
	Counted     bool   `json:"counted,omitempty"`

	clean  int // probes without a fault, one after the other
	silent int // probes without an answer, one after the other
}

// silences are as many probes without an answer as make a card sick: one alone
// may be a driver that is busy.
const silences = 2

// rules say what makes a card sick and what makes it well.
type rules struct {
	ignore      []uint64 // XIDs that a program causes and that leave the card well
	cleanProbes int      // 0: a card does not become well by itself
}

// event is the record after an XID.
func (r rules) event(rec Record, xid uint64, now time.Time) Record {
	if slices.Contains(r.ignore, xid) {
		return rec
	}
	rec.clean = 0
	return rec.with(XID, fmt.Sprintf("XID %d", xid), now)
}

// probe is the record after a look at the card.
func (r rules) probe(rec Record, p driver.Probe, err error, now time.Time) Record {
	switch {
	case errors.Is(err, driver.ErrLost):
		rec.clean, rec.silent = 0, 0
		return rec.with(Lost, "the card is lost: it needs a reset, or the node a restart", now)
	case err != nil:
		rec.clean = 0
		if rec.silent++; rec.silent < silences {
			return rec
		}
		if errors.Is(err, driver.ErrNoAnswer) {
			return rec.with(Silent, "the driver does not answer", now)
		}
		return rec.with(Silent, "the driver answers with an error: "+err.Error(), now)
	}
	rec.silent = 0
	before, counted := rec.Uncorrected, rec.Counted
	rec.Uncorrected, rec.Counted = p.Uncorrected, p.ECC
	switch {
	case p.ECC && counted && p.Uncorrected > before:
		rec.clean = 0
		return rec.with(ECC, fmt.Sprintf("%d uncorrected memory errors, %d before", p.Uncorrected, before), now)
	case p.WaitsForReset && (rec.has(ECC) || rec.has(XID)):
		rec.clean = 0
		return rec
	}
	rec.clean++
	if r.cleanProbes > 0 && rec.clean >= r.cleanProbes {
		rec.Causes = slices.DeleteFunc(slices.Clone(rec.Causes), func(c Cause) bool { return c.Kind != Operator })
	}
	return rec
}

func (rec Record) has(kind Kind) bool {
	return slices.ContainsFunc(rec.Causes, func(c Cause) bool { return c.Kind == kind })
}

// faulty says whether something is wrong that no administrator has decided.
func (rec Record) faulty() bool {
	return slices.ContainsFunc(rec.Causes, func(c Cause) bool { return c.Kind != Operator })
}

// with has the cause once, in its newest words and with its first time.
func (rec Record) with(kind Kind, text string, now time.Time) Record {
	rec.Causes = slices.Clone(rec.Causes)
	for i := range rec.Causes {
		if rec.Causes[i].Kind == kind {
			rec.Causes[i].Text = text
			return rec
		}
	}
	rec.Causes = append(rec.Causes, Cause{Kind: kind, Text: text, Since: now.UTC().Truncate(time.Second)})
	return rec
}

// without is the record of a card that an administrator calls well.
func (rec Record) without() Record {
	return Record{Uncorrected: rec.Uncorrected, Counted: rec.Counted}
}

// same says whether two records are the same for a file.
func (rec Record) same(other Record) bool {
	return slices.Equal(rec.Causes, other.Causes) && rec.Uncorrected == other.Uncorrected && rec.Counted == other.Counted
}
