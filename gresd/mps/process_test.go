// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"os"
	"os/exec"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

// Its user can let who reads the environment of a process wait.
func TestOnlyTheProgramsOfMPSAreAskedForTheToken(t *testing.T) {
	n := newNode(t)
	start := func(program, token string) *exec.Cmd {
		cmd := exec.Command(program)
		cmd.Args[0], cmd.Env = fake.Server, []string{tokenVariable + "=" + token}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	server := start(n.cfg.Control, "ours")
	start(n.cfg.Control, "another")
	start("/proc/self/exe", "ours")
	if err := os.Remove(n.cfg.Control); err != nil { // as an update of the driver does
		t.Fatal(err)
	}
	for _, key := range []Key{{Card: card}, ForEveryone(card)} {
		got := record{Key: key, Token: "ours"}.family()
		if len(got) != 1 || got[0].PID != server.Process.Pid {
			t.Errorf("of %s: processes %v, want only %d", key.whose(), got, server.Process.Pid)
		}
	}
}
