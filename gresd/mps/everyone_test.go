// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

func TestEverybodySharesTheDaemonOfACard(t *testing.T) {
	n := newNode(t)
	key := ForEveryone(card)
	n.up(1, key, gpu.FullCard)
	n.up(2, key, gpu.FullCard)
	n.up(3, Key{Card: card}, 30) // of root's own jobs: another one
	n.Release(3)
	n.Settle()
	n.eventually("the daemon of root's jobs is gone", func() bool { return len(n.processes()) == 1 })
	pid := n.only(fake.Control)
	if uid, _ := process.Of(pid).UID(); uid != 0 {
		t.Errorf("the daemon runs as user %d, want root", uid)
	}
	asGames := key
	asGames.UID = games
	server := n.tell(asGames, fake.Client)
	if want := strconv.Itoa(n.only(fake.Server)); server != want {
		t.Errorf("a client of another user is told %q, want the server %s", server, want)
	}
	if got := n.tell(asGames, "quit"); !strings.Contains(got, "denied") {
		t.Errorf("a user's quit is answered %q", got)
	}
	pipe, err := os.Stat(folderOf(n.cfg.Dir, key).pipe())
	if err != nil || pipe.Mode().Perm() != 0o755 || pipe.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("pipe: %v, %v; want root's, and closed to others' files", pipe.Mode(), err)
	}
	n.reopen()
	n.Keep(1, key, 0, gpu.FullCard)
	n.Keep(2, key, 0, gpu.FullCard)
	n.Settle()
	if err := n.wait(2); err != nil || n.only(fake.Control) != pid {
		t.Errorf("the daemon is not adopted: %v, %v", err, n.processes())
	}
	n.Release(1)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.eventually("a dead daemon is started again, without its old server", func() bool {
		all := n.processes()
		return len(all) == 1 && all[pid] == "" && n.Serves(2)
	})
	n.Release(2)
	n.eventually("all is gone", func() bool { return len(n.processes()) == 0 && len(n.files()) == 0 })
}

func TestTheEnvironmentOfAJobThatSharesItsDaemon(t *testing.T) {
	got := Environment("/run/vgpu/mps", ForEveryone(card), gpu.FullCard)
	want := []string{"CUDA_MPS_PIPE_DIRECTORY=/run/vgpu/mps/" + string(card) + "/all/pipe", "CUDA_VISIBLE_DEVICES=" + string(card)}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
