// SPDX-License-Identifier: Apache-2.0

package status

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
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
	r.Work = func(arbiter.Key) (arbiter.Work, bool) {
		return arbiter.Work{Busy: true, Bound: arbiter.ByProgram}, true
	}
	now, key := time.Now(), cardOfJob{7, "GPU-a"}
	// What was measured just now is told again: neither cache nor driver is asked.
	half := 50.0
	r.rateCache.at, r.rateCache.rates = time.Now(), map[cardOfJob]rate{key: {compute: &half}}
	r.Count(t.Context(), now)
	r.Count(t.Context(), now.Add(countPeriod))
	if u := r.gpuSeconds.runs[runOf(rec, "GPU-a")]; u.had != countPeriod/2 || u.limited["program"] != countPeriod {
		t.Errorf("%+v; want half of %s, and all of it limited by the program", u, countPeriod)
	}
	_, onDisk := records.BeginDelete(7)
	if err := onDisk.Wait(); err != nil {
		t.Fatal(err)
	}
	r.Count(t.Context(), now.Add(2*countPeriod))
	if len(r.gpuSeconds.runs) != 0 {
		t.Errorf("remembered of a job that has ended: %v", r.gpuSeconds.runs)
	}
}

func TestACardIsTheLimitWhereItIsFull(t *testing.T) {
	percent := func(n float64) *float64 { return &n }
	for _, c := range []struct {
		limit
		got  *float64
		want string
	}{
		{limit{arbiter.ByProgram, gpu.Hard, 0}, percent(50), "program"},
		{limit{arbiter.ByProgram, gpu.Soft, 0}, percent(99), "card"},
		{limit{arbiter.ByProgram, gpu.Soft, 0}, nil, "program"},
		{limit{arbiter.ByLimit, gpu.Hard, 0}, percent(50), "limit"},
		{limit{arbiter.ByLimit, gpu.Soft, 0}, percent(82), "card"},
		{limit{arbiter.ByLimit, gpu.Soft, 80}, percent(50), "card"},
		{limit{arbiter.ByLimit, gpu.Soft, 80}, percent(79), "limit"},
		{limit{arbiter.ByNeighbors, gpu.Soft, 0}, percent(99), "neighbors"},
		{limit{}, percent(99), ""},
	} {
		if got := c.by(c.got); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.limit, got, c.want)
		}
	}
}
