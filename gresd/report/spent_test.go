// SPDX-License-Identifier: Apache-2.0

package report

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
)

// Of a job that has ended nothing is remembered.
func TestJobsThatEndedAreForgotten(t *testing.T) {
	records, err := ledger.Open(filepath.Join(t.TempDir(), "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	rec := ledger.Record{JobID: 7, UID: 1000, State: ledger.Granted, Created: time.Now(), Placement: place.Placement{Cards: []place.CardShare{{UUID: "GPU-a", Share: 30, Cores: 30}}}}
	if err := records.Commit(rec); err != nil {
		t.Fatal(err)
	}
	r := New(Parts{Ledger: records, ByMPS: func(uint32) bool { return false }})
	r.SetWork(func(arbiter.Key) (arbiter.Work, bool) { return arbiter.Work{Busy: true, Bound: arbiter.ByHost}, true })
	now, key := time.Now(), cardOfJob{7, "GPU-a"}
	// What was measured just now is told again: neither cache nor driver is asked.
	half := 50.0
	r.lately.at, r.lately.rates = time.Now(), map[cardOfJob]rate{key: {compute: &half}}
	r.Count(t.Context(), now)
	r.Count(t.Context(), now.Add(spentEvery))
	if run := runOf(rec, "GPU-a"); r.spent.jobs[run] != spentEvery/2 || r.spent.bound[run]["host"] != spentEvery {
		t.Errorf("%v, %v; want half of %s, and all of it bound by the host", r.spent.jobs, r.spent.bound, spentEvery)
	}
	if _, err := records.Delete(7); err != nil {
		t.Fatal(err)
	}
	r.Count(t.Context(), now.Add(2*spentEvery))
	if len(r.spent.jobs) != 0 || len(r.spent.bound) != 0 {
		t.Errorf("remembered of a job that has ended: %v, %v", r.spent.jobs, r.spent.bound)
	}
}
