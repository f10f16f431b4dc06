// SPDX-License-Identifier: Apache-2.0

package slices

import (
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/storm"
)

// limited starts gresd, and a program of the tests in job 1, which has a hard limit. The job is root's:
// without Slurm's cgroups, gresd believes the environment of a process if the job's user owns it.
func limited(t *testing.T, limit int, program string, args ...string) (n *node, pid int) {
	n = newNode(t, simgpu.CardConfig{})
	n.start()
	j := storm.Job{ID: 1, Share: limit}
	if err := n.Submit(j); err != nil {
		t.Fatal(err)
	}
	if rep, err := n.Prolog(context.Background(), j); err != nil || rep.Result != wire.Granted {
		t.Fatalf("%+v, %v", rep, err)
	}
	libs, dir := filepath.Join(n.Dir, "sim/lib"), filepath.Join(n.JobsDir(), "1")
	cmd := exec.Command(filepath.Join(n.build, "tests", program), append(args, "--libdir", libs)...)
	cmd.Env = []string{
		"SIMGPU_STATE=" + n.state, "SLURM_JOB_ID=1", "LD_LIBRARY_PATH=" + libs, "LD_PRELOAD=" + filepath.Join(n.build, "lib/libvgpu.so"),
		"VGPU_GRANT=" + dir + "/grant", "VGPU_CACHE=" + dir + "/cache",
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	n.eventually("it works", func() bool { return n.busy(cmd.Process.Pid)[0] > 0 })
	return n, cmd.Process.Pid
}

// part is the percentage of its limit that a process has of the card, after it was corrected a few
// times, and the lateness of the process.
func (n *node) part(limit float64, pid int) (percent, late float64) {
	n.t.Helper()
	time.Sleep(5 * time.Second)
	took, had, lateness := n.had(measureFor, pid)
	percent = 100 * had[0] / float64(took) / (limit / 100)
	n.t.Logf("it had %.1f %% of its limit; without a processor for %.3f of the time", percent, lateness[0])
	return percent, lateness[0]
}

// Between two kernels of 5 us the host needs 20 us. By events alone, the job has two thirds of its limit.
func TestASlowHostHasItsLimit(t *testing.T) {
	n, pid := limited(t, 15, "tokens", "--secs", "60", "--row", "2", "--compute-us", "20")
	if part, late := n.part(15, pid); part < 92*(1-late) || part > 103 {
		t.Errorf("%.1f %% of its limit, want 92 to 103", part)
	}
}

// forge changes balance and charges in the cache of job 1 every 2 ms. The argument grown is the
// charge since the last change.
func (n *node) forge(change func(balance int64, charged, grown uint64) (int64, uint64)) {
	n.t.Helper()
	f, err := os.OpenFile(filepath.Join(n.JobsDir(), "1", "cache"), os.O_RDWR, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	const budget = 2097152 + 960
	stop, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		var before uint64
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			var now [24]byte
			if _, err := f.ReadAt(now[:], budget); err != nil {
				n.t.Error(err)
			}
			charged := binary.NativeEndian.Uint64(now[16:])
			if before == 0 {
				before = charged
			}
			balance, sum := change(int64(binary.NativeEndian.Uint64(now[:])), charged, charged-before)
			before = sum
			for at, v := range map[int64]uint64{0: uint64(balance), 16: sum} {
				if v == binary.NativeEndian.Uint64(now[at:]) {
					continue // the job changes it meanwhile
				}
				if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, v), budget+at); err != nil {
					n.t.Error(err)
				}
			}
		}
	}()
	n.t.Cleanup(func() {
		close(stop)
		<-done
		_ = f.Close()
	})
}

// A job that is charged half of its work would have twice its limit.
func TestAJobThatIsChargedTooLittleKeepsItsLimit(t *testing.T) {
	n, pid := limited(t, 20, "vgpu-worker", "--kernel-us", "200", "--saturate", "60")
	n.forge(func(balance int64, charged, grown uint64) (int64, uint64) {
		return balance + int64(grown/2), charged - grown/2
	})
	if part, late := n.part(20, pid); part < 85*(1-late) || part > 105 {
		t.Errorf("%.1f %% of its limit, want 85 to 105", part)
	}
}

// gresd knows the work of a job from the driver: a job that writes larger charges into its cache
// gets nothing.
func TestForgedChargesGiveNothingBack(t *testing.T) {
	n, pid := limited(t, 20, "vgpu-worker", "--kernel-us", "200", "--saturate", "60")
	n.forge(func(balance int64, charged, _ uint64) (int64, uint64) { return balance, charged + 2e6 })
	if part, late := n.part(20, pid); part < 95*(1-late) || part > 103 {
		t.Errorf("%.1f %% of its limit, want 95 to 103", part)
	}
}
