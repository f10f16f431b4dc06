// SPDX-License-Identifier: Apache-2.0

package status

// Correction is a thing that a reconciliation puts right. The words are labels
// of a metric.
type Correction string

// Corrections.
const (
	Released  Correction = "released"  // a grant whose job has ended
	Removed   Correction = "removed"   // a folder without a job
	Rebuilt   Correction = "rebuilt"   // a record, from the grant of a living job
	Remade    Correction = "remade"    // the files of a record
	Recovered Correction = "recovered" // a living job, after record and folder were lost
)

// Corrections returns every correction.
func Corrections() []Correction { return []Correction{Released, Removed, Rebuilt, Remade, Recovered} }
