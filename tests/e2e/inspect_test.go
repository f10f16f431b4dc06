// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// inspected is what vgpuctl shows of a grant or of a cache.
type inspected struct {
	Kind  string `json:"kind"`
	Cards []struct {
		UUID     string `json:"gpu_uuid"`
		Limit    uint64 `json:"memory_limit_bytes"`
		Physical uint64 `json:"memory_physical_bytes"`
		Used     uint64 `json:"memory_used_bytes"`
		Context  uint64 `json:"context_bytes"`
		Cores    uint32 `json:"cores"`
	} `json:"cards"`
	Processes []struct {
		PID   uint32 `json:"pid"`
		Alive bool   `json:"alive"`
	} `json:"processes"`
}

// inspect shows the "grant" or the "cache" of a job of one card, as an
// administrator sees it.
func (s site) inspect(job int, file string) inspected {
	s.t.Helper()
	path := filepath.Join(cluster.JobDir(job), file)
	// slurmctld calls a job running when its Prolog begins.
	s.eventually(shortWait, "the job has a "+file, func() bool { _, err := os.Stat(path); return err == nil })
	r := s.As("root", "vgpuctl", "inspect", "--json", path)
	var v inspected
	if r.Code != 0 {
		s.t.Fatalf("inspect the %s of job %d: %s", file, job, r)
	}
	if err := json.Unmarshal([]byte(r.Out), &v); err != nil || v.Kind != file || len(v.Cards) != 1 {
		s.t.Fatalf("inspect the %s of job %d: %v: %s", file, job, err, r)
	}
	return v
}
