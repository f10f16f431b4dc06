// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

// startProgram starts a program by the name of one of MPS.
func startProgram(t *testing.T, program string, uid uint32, token string) int {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Args[0], cmd.Env = fake.Server, []string{tokenVariable + "=" + token}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// Its user can let who reads the environment of a process wait.
func TestOnlyTheProgramsOfMPSAreAskedForTheToken(t *testing.T) {
	n := newNode(t)
	server := startProgram(t, n.cfg.Control, 0, "ours")
	startProgram(t, n.cfg.Control, 0, "another")
	startProgram(t, "/proc/self/exe", 0, "ours")
	startProgram(t, n.cfg.Control, games, "ours")    // MPS that is for everyone is root's
	if err := os.Remove(n.cfg.Control); err != nil { // as an update of the driver does
		t.Fatal(err)
	}
	for _, key := range []Key{{Card: card}, ForEveryone(card)} {
		got := record{Key: key, Token: "ours"}.family()
		if len(got) != 1 || got[0].PID != server {
			t.Errorf("of %s: processes %v, want only %d", key.whose(), got, server)
		}
	}
}

func TestAUserWhoseProcessesDoNotAnswerDelaysNobodyElse(t *testing.T) {
	n := newNode(t)
	for range 40 {
		startProgram(t, n.cfg.Control, games, "ours")
	}
	theirs := startProgram(t, n.cfg.Control, nobody, "ours")
	ofRoot := startProgram(t, n.cfg.Control, 0, "ours")
	end, read := make(chan struct{}), environment
	environment = func(pid int) []byte {
		if uid, _ := process.Of(pid).UID(); uid == games {
			<-end
		}
		return read(pid)
	}
	defer func() {
		close(end)
		n.eventually("nobody waits", func() bool { return len(stuck.List()) == 0 })
		environment = read
	}()
	of := func(key Key) []identity { return record{Key: key, Token: "ours"}.family() }
	began := time.Now()
	if got := of(Key{Card: card, UID: games}); len(got) != 0 || time.Since(began) > mostAsking+2*time.Second {
		t.Errorf("of who does not answer: %v after %s, want none after %s", got, time.Since(began), mostAsking)
	}
	stuck.Timeout = time.Millisecond
	of(Key{Card: card, UID: games}) // as many wait as may
	stuck.Timeout = 0
	for key, want := range map[Key]int{{Card: card, UID: nobody}: theirs, {Card: card}: ofRoot, ForEveryone(card): ofRoot} {
		began = time.Now()
		if got := of(key); len(got) != 1 || got[0].PID != want || time.Since(began) > time.Second {
			t.Errorf("of %s: %v after %s, want at once %d", key.whose(), got, time.Since(began), want)
		}
	}
}
