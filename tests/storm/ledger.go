// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"encoding/json"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/records"
)

// Entry is what a ledger says that a job holds.
type Entry struct {
	Granted bool
	UID     uint32
	Cards   []EntryCard
}

// EntryCard is what a job holds of one card. Shares are hundredths of it.
type EntryCard struct {
	UUID         string
	Index        int
	Share, Cores int
	Memory       uint64 // bytes
}

// ReadLedger reads what each job holds, with nothing of gresd's own code. A file that
// is not there is an empty ledger.
func ReadLedger(path string) (map[uint32]Entry, error) {
	all, err := records.Read(path)
	if err != nil {
		return nil, err
	}
	jobs := map[uint32]Entry{}
	for id, record := range all {
		var r struct {
			UID       uint32
			State     string
			Placement struct {
				Cards []struct {
					UUID         string `json:"gpu_uuid"`
					Index        int
					Share, Cores int
					Memory       uint64 `json:"memory_bytes"`
				}
			}
		}
		if err := json.Unmarshal(record, &r); err != nil {
			return nil, err
		}
		e := Entry{Granted: r.State == "granted", UID: r.UID}
		for _, c := range r.Placement.Cards {
			e.Cards = append(e.Cards, EntryCard{c.UUID, c.Index, c.Share, c.Cores, c.Memory})
		}
		jobs[id] = e
	}
	return jobs, nil
}
