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

// finds waits until the checker has found something by an invariant, and takes it.
func (n *node) finds(invariant string) {
	n.t.Helper()
	var all []string
	n.eventually(15*time.Second, "the checker finds: "+invariant, func() bool {
		all = append(all, n.Wrong()...)
		return slices.ContainsFunc(all, func(w string) bool { return strings.Contains(w, " "+invariant+": ") })
	})
	n.t.Logf("%s: %s", invariant, all[len(all)-1])
}

// TestCheckerFindsWhatIsBroken breaks the promises on a real node, and not only in
// observations that were made up: the checker must see each.
func TestCheckerFindsWhatIsBroken(t *testing.T) {
	n := up(t, "")
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
	n.finds("memory limit")
	n.finds("compute limit")
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

	if wrong := n.Released(); len(wrong) != 3 {
		t.Errorf("with a job on it, the node is not released by ledger, folders and card: %q", wrong)
	}
	n.end(j)
	n.clean(30 * time.Second)
	time.Sleep(500 * time.Millisecond) // Slurm's last answer is a new one
	n.Wrong()
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
