// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// breaker is a node that is broken on purpose, with the invariants that saw it.
type breaker struct {
	*node
	found map[string]bool
}

// finds waits until the checker has found something by each of the invariants, and
// takes it.
func (n breaker) finds(invariants ...string) {
	n.t.Helper()
	var all []string
	for _, name := range invariants {
		by := func(w string) bool { return strings.Contains(w, " "+name+": ") }
		n.eventually(15*time.Second, "the checker finds: "+name, func() bool {
			all = append(all, n.Wrong()...)
			return slices.ContainsFunc(all, by)
		})
		n.t.Log(all[slices.IndexFunc(all, by)])
		n.found[name] = true
	}
}

// TestCheckerFindsWhatIsBroken breaks the promises on a real node, and not only in
// observations that were made up: the checker must see each.
func TestCheckerFindsWhatIsBroken(t *testing.T) {
	n := breaker{up(t, ""), map[string]bool{}}
	j := n.submit(alice, 30, holdScript)
	n.working(30*time.Second, j)
	n.eventually(10*time.Second, "the checker has seen the job run", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		_, seen := n.inv.run[uint32(j.id)]
		return seen
	})
	n.report()

	// A process of the job without the library takes what it likes.
	free := exec.Command(cluster.Worker, "--alloc", "40G", "--saturate", "100")
	free.Env = []string{"SLURM_JOB_ID=" + strconv.Itoa(j.id)}
	n.must(free.Start())
	n.finds("memory limit", "announced", "compute limit")
	n.must(free.Process.Kill())
	_ = free.Wait()

	// Somebody opens the grant.
	grant := cluster.JobDir(j.id) + "/grant"
	file, err := os.OpenFile(grant, os.O_RDWR, 0)
	n.must(err)
	limit := make([]byte, 8)
	const limitAt = 128 + 48 // of the first card: libvgpu/region.h
	_, err = file.ReadAt(limit, limitAt)
	n.must(err)
	_, err = file.WriteAt(make([]byte, 8), limitAt)
	n.must(err)
	n.finds("grant file")
	_, err = file.WriteAt(limit, limitAt)
	n.must(err)
	n.must(file.Close())

	// The ledger forgets the job, remembers it, gives it more than there is, is torn.
	ledger := cluster.StateDir + "/ledger.json"
	text, err := os.ReadFile(ledger)
	n.must(err)
	n.write(ledger, empty())
	n.finds("lost")
	n.write(ledger, empty())
	time.Sleep(time.Second)
	n.write(ledger, text)
	n.finds("doubled")
	n.write(ledger, again(bytes.Replace(text, []byte(`"share":30`), []byte(`"share":130`), 1)))
	n.finds("100 %")
	n.write(ledger, text[:len(text)-3])
	n.finds("ledger")
	n.write(ledger, text)

	_, err = n.Scontrol("update", "NodeName=vgpu-node", "State=DRAIN", "Reason=vgpu: test")
	n.must(err)
	n.finds("drained")
	_, err = n.Scontrol("update", "NodeName=vgpu-node", "State=RESUME")
	n.must(err)

	n.leaveBehind()
	for name := range names() {
		if !n.found[name] {
			t.Errorf("nothing here breaks the invariant %q", name)
		}
	}

	if wrong := n.Released(); len(wrong) != 3 {
		t.Errorf("with a job on it, the node is not released by ledger, folders and card: %q", wrong)
	}
	n.end(j)
	n.clean(30 * time.Second)
	time.Sleep(500 * time.Millisecond) // Slurm's last answer is a new one
	n.Wrong()
}

// leaveBehind runs something with the name of a short-lived program for too long, by a
// patience of seconds.
func (n breaker) leaveBehind() {
	n.t.Helper()
	n.patience(2 * time.Second)
	defer n.patience(oldAfter)
	program, err := os.ReadFile("/bin/sleep")
	n.must(err)
	const path = cluster.Dir + "/vgpu-prolog"
	n.must(os.WriteFile(path, program, 0o755))
	sleep := exec.Command(path, "60")
	n.must(sleep.Start())
	n.finds("stuck")
	n.must(sleep.Process.Kill())
	_ = sleep.Wait()
}

func (n *node) patience(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.eyes.patience = d
}

// write replaces a file in one step, as gresd does.
func (n *node) write(path string, text []byte) {
	n.t.Helper()
	n.must(os.WriteFile(path+".test", text, 0o600))
	n.must(unix.Rename(path+".test", path))
}

func empty() []byte {
	return fmt.Appendf(nil, `{"version":1,"checksum":"crc32c:%08x","records":[]}`+"\n", crc32.Checksum([]byte("[]"), crc32.MakeTable(crc32.Castagnoli)))
}

// again gives a ledger that was changed the checksum that it should have.
func again(text []byte) []byte {
	_, records, _ := bytes.Cut(text, []byte(`"records":`))
	records = bytes.TrimSuffix(bytes.TrimSpace(records), []byte("}"))
	compact := bytes.ReplaceAll(records, []byte("\n"), nil)
	return fmt.Appendf(nil, `{"version":1,"checksum":"crc32c:%08x","records":%s}`+"\n",
		crc32.Checksum(compact, crc32.MakeTable(crc32.Castagnoli)), compact)
}
