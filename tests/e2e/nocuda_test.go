// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// A program that uses its card without CUDA, as OpenCL, Vulkan and OpenGL do, has its share: it is told
// that, refused above it, and what it holds is what gresd says that the job has. It is no stranger.
func TestProgramsWithoutCUDAHaveTheirShare(t *testing.T) {
	opts := oneCard
	s := up(t, opts)
	data, err := os.ReadFile("../../build/simgpu/bin/nocuda")
	if err == nil {
		err = os.WriteFile(filepath.Join(cluster.Dir, "bin", "nocuda"), data, 0o755)
	}
	if err != nil {
		t.Fatalf("%v (run make first)", err)
	}
	// The simulated driver's device files are behind the library, as the kernel's are.
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G --vgpu-mode=hard",
		"LD_PRELOAD=$(cat /etc/ld.so.preload):"+cluster.Dir+"/simgpu/lib/libsimrm.so exec nocuda 600")
	s.running(job)
	s.eventually(shortWait, "the job is at its limit", func() bool { return strings.Contains(s.Output(alice, job), `"got_mib"`) })
	output := s.Output(alice, job)
	for _, want := range []string{
		`{"total_mib":8192,"free_mib":`, `"status":81}`,
		"vgpu: memory: 256 MiB refused: the limit of job ", "vgpu: compute: process ",
	} {
		if !strings.Contains(output, want) {
			t.Errorf("not said: %s; output:\n%s", want, output)
		}
	}
	// With what the card takes for its context, which nobody asked for, by the comparison.
	const limit, step = 8 << 30, 256 << 20
	s.eventually(shortWait, "gresd tells what the job has", func() bool {
		records, err := s.Records()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if r.JobID == uint32(job) && len(r.Cards) == 1 && r.Cards[0].UsedBytes != nil && r.Cards[0].Processes != nil {
				used := *r.Cards[0].UsedBytes
				return *r.Cards[0].Processes == 1 && used > limit-step && used <= limit+(1<<30)
			}
		}
		return false
	})
	time.Sleep(6 * time.Second) // longer than the grace of the audit
	if strings.Contains(s.Output(alice, job), "audit") {
		t.Errorf("the audit speaks of it:\n%s", s.Output(alice, job))
	}
	s.cancel(alice, job)
	s.nothingLeft()
}
