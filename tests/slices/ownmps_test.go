// SPDX-License-Identifier: Apache-2.0

package slices

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/mps"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
)

// startOwnMPS starts an MPS daemon of a user's own, as a job may, and returns its folder of pipes.
func startOwnMPS(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "own-")
	if err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("../../build/tests/"+fake.Control, "-f")
	daemon.Env = []string{mps.PipeVariable + "=" + dir}
	if err := errors.Join(os.Chmod(dir, 0o777), daemon.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		_ = daemon.Wait()
		_ = os.RemoveAll(dir)
	})
	return dir
}

// Two jobs of a user share an MPS daemon that one of them has started. The clients have no time slices of
// their own, so the budget enforces their limits. Before, a job of 30 % had 70 % of the card.
func TestClientsOfAUsersOwnMPSKeepTheirLimit(t *testing.T) {
	n := newNode(t, simgpu.CardConfig{})
	n.start()
	n.verdict(probe.Obeyed)
	dir := startOwnMPS(t)
	n.eventually("a daemon", func() bool { _, err := os.Stat(filepath.Join(dir, "control")); return err == nil })
	shares := []int{30, 50, 20}
	var pids []int
	for i, share := range shares {
		job := uint32(i + 1)
		n.grant(job, share)
		if i == 2 {
			pids = append(pids, n.tenant(job))
			continue
		}
		pids = append(pids, n.workerWith([]string{"--part", "50"}, append(n.jobFiles(job), mps.PipeVariable+"="+dir)...))
	}
	n.eventually("all work", func() bool { return slices.Min(n.busy(pids...)) > 5e8 })
	took, had, late := n.had(measureFor, pids...)
	for i := range had {
		had[i] *= 100 / float64(took)
	}
	t.Logf("%.1f %% of the card; without a processor for %.3f of the time", had, late)
	for i, share := range shares[:2] {
		if had[i] > float64(share)+2*tolerance {
			t.Errorf("job %d had %.1f %% of the card, limit %d", i+1, had[i], share)
		}
	}
}
