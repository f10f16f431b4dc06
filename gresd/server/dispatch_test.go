// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

func TestWhoMayAskWhat(t *testing.T) {
	n := newTestNode(t).start()
	own := n.job(7, 30)
	n.want(own, wire.Granted)
	other := n.job(8, 30, func(f *slurm.JobFacts) { f.UID, f.GID, f.User = 33, 33, "www-data" })
	n.want(other, wire.Granted)

	for _, op := range []wire.Op{wire.OpGrant, wire.OpRelease} {
		if rep := n.askAs(nobody, wire.Request{Op: op, JobID: 7}); rep.OK || rep.Kind != wire.KindUser || !strings.Contains(rep.Message, "only root") {
			t.Errorf("%s by nobody: %+v", op, rep)
		}
	}
	if !n.grants.Has(7) {
		t.Fatal("nobody released a job")
	}
	if rep := n.askAs(nobody, wire.Request{Op: wire.OpJobs}); len(rep.Jobs) != 1 || rep.Jobs[0].JobID != 7 {
		t.Errorf("jobs that nobody sees: %+v", rep.Jobs)
	}
	if rep := n.askAs(nobody, wire.Request{Op: wire.OpStatus}); !rep.OK || len(rep.Status.Cards) != 2 || rep.Status.Jobs != 2 {
		t.Errorf("status that nobody sees: %+v", rep.Status)
	}
	if rep, err := n.ask(wire.Request{Op: wire.OpJobs}); err != nil || len(rep.Jobs) != 2 {
		t.Errorf("jobs that root sees: %+v, %v", rep.Jobs, err)
	}
	if rep, err := n.ask(wire.Request{Op: wire.OpPing}); err != nil || !rep.OK {
		t.Errorf("ping: %+v, %v", rep, err)
	}
}

// Root in a user namespace of one's own (Apptainer, rootless Podman) is at the socket who it is outside,
// and a subordinate user is nobody's.
func TestRootInOnesOwnContainerIsNotRoot(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	const sub = 100000
	inside := func(uid uint32) *syscall.SysProcAttr {
		maps := []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}, {ContainerID: 1, HostID: sub, Size: 1000}}
		return &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, UidMappings: maps, GidMappings: maps, Credential: &syscall.Credential{Uid: uid, Gid: uid},
		}
	}
	for _, op := range []wire.Op{wire.OpGrant, wire.OpRelease, wire.OpSet, wire.OpCordon, wire.OpUncordon} {
		for _, uid := range []uint32{0, 5} {
			rep := n.askIn(inside(uid), wire.Request{Op: op, JobID: 7, Cores: 10, Card: "0"})
			if rep.OK || !strings.Contains(rep.Message, "only root") {
				t.Errorf("%s by user %d inside: %+v", op, uid, rep)
			}
		}
	}
	if rep := n.askIn(inside(0), wire.Request{Op: wire.OpJobs}); len(rep.Jobs) != 1 {
		t.Errorf("its own jobs: %+v", rep)
	}
	if rep := n.askIn(inside(5), wire.Request{Op: wire.OpJobs}); !rep.OK || len(rep.Jobs) != 0 {
		t.Errorf("jobs of a subordinate user: %+v", rep)
	}
	if rep := n.askIn(inside(0), wire.Request{Op: wire.OpEnded, JobID: 7}); !rep.OK {
		t.Errorf("ended of its own job: %+v", rep)
	}
	if rep := n.askIn(inside(5), wire.Request{Op: wire.OpEnded, JobID: 7}); rep.OK {
		t.Errorf("ended by a subordinate user: %+v", rep)
	}
}

func TestStatusAndJobReport(t *testing.T) {
	n := newTestNode(t).start()
	req := n.job(7, 30)
	req.Options = wire.Options{Mem: "8G", Cores: "20"}
	n.want(req, wire.Granted)
	putSlot(t, n.file(7, "cache"), 5<<30, 2e9)
	n.grants.SetSchedule(7, 0, libvgpu.Schedule{SliceUS: 6000, Gate: 1, Cores: 20})
	n.grants.SetOutside(7, 0, 1<<30)

	cards, jobs := n.report.Snapshot()
	if c := cards[0]; c.Share != 30 || c.Cores != 20 || c.GrantedBytes != 8<<30 || c.Jobs != 1 || !c.Healthy {
		t.Errorf("card 0: %+v", c)
	}
	if c := cards[1]; c.Share != 0 || c.GrantedBytes != 0 || c.Jobs != 0 {
		t.Errorf("card 1: %+v", c)
	}
	c := jobs[0].Cards[0]
	if c.UsedBytes == nil || *c.UsedBytes != 6<<30 || *c.GPUSeconds != 2 || *c.Processes != 1 || c.SliceUS != 6000 || !c.Gate {
		t.Errorf("job card %+v", c)
	}

	// What cannot be read is unknown, not 0.
	n.restart()
	if err := os.Truncate(n.file(7, "cache"), 0); err != nil {
		t.Fatal(err)
	}
	if _, jobs = n.report.Snapshot(); jobs[0].Cards[0].UsedBytes != nil || jobs[0].Cards[0].GPUSeconds != nil {
		t.Errorf("job card %+v", jobs[0].Cards[0])
	}
}

// Who has ended is told the job's user and root.
func TestEndedIsToldToWhoseJobItIs(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	putSlot(t, n.file(7, "cache"), 5<<30, 0)
	if rep, err := n.ask(wire.Request{Op: wire.OpEnded, JobID: 7}); err != nil || !rep.OK || len(rep.Ended) != 0 {
		t.Errorf("of a job whose process lives: %+v, %v", rep, err)
	}
	if rep, _ := n.ask(wire.Request{Op: wire.OpEnded, JobID: 8}); rep.OK || !strings.Contains(rep.Message, "no job 8") {
		t.Errorf("of a job that is not here: %+v", rep)
	}
	spec, _ := n.grants.Spec(7)
	if rep := n.ended(7, wire.Cred{UID: spec.UID + 1}); rep.OK {
		t.Errorf("of another user's: %+v", rep)
	}
	if rep := n.ended(7, wire.Cred{UID: spec.UID}); !rep.OK {
		t.Errorf("of one's own: %+v", rep)
	}
}

// putSlot writes this process into slot 0 of a cache, as libvgpu would.
func putSlot(t *testing.T, path string, mem, chargedNS uint64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const header, slots = 2097152, 2097152 + 3072
	le := binary.LittleEndian
	slot := make([]byte, 128)
	le.PutUint64(slot, 0x3ff<<54|uint64(os.Getpid())<<32) // of a namespace that it does not know
	le.PutUint32(slot[16:], uint32(os.Getpid()))
	le.PutUint64(slot[24:], monotonic(t)) // the heartbeat
	le.PutUint64(slot[64:], mem)
	le.PutUint32(slot[64+52:], 1) // contexts
	for _, w := range []struct {
		at   int64
		data []byte
	}{
		{slots, slot},
		{header + 960 + 16, le.AppendUint64(nil, chargedNS)},
		{header + 32, le.AppendUint32(nil, 1)}, // high_slot
	} {
		if _, err := f.WriteAt(w.data, w.at); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSilentClientsBlockNobody(t *testing.T) {
	n := newTestNode(t).start()
	for range 255 {
		conn, err := net.Dial("unix", n.cfg.Paths.Socket())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, `{"op":`) // and never the rest
	}
	start := time.Now()
	n.want(n.job(7, 30), wire.Granted)
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("a grant waited %v for silent clients", d)
	}
	n.stop() // does not wait for them either
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("stopping took %v", d)
	}
}

func TestCardsThatVanishAreRemembered(t *testing.T) {
	n := newTestNode(t).start()
	n.cards.mu.Lock()
	n.cards.cards, n.cards.err = nil, errors.New("driver is reloading")
	n.cards.mu.Unlock()
	n.refreshCards()
	st := n.report.Status(t.Context(), true)
	if len(st.Cards) != 2 || len(st.Problems) != 1 || st.Problems[0] != "driver is reloading" {
		t.Errorf("status %+v", st)
	}
}
