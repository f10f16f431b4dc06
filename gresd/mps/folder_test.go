// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"strings"
	"sync"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// The last daemon of a card takes the card's folder with it.
func TestADaemonStartsWhileAnotherUsersOfTheCardEnds(t *testing.T) {
	dir := t.TempDir()
	comeAndGo := func(uid uint32) {
		f := folderOf(dir, Key{Card: card, UID: uid})
		for range 1500 {
			if err := f.make(uid, uid); err != nil {
				t.Errorf("make the folders of user %d: %v", uid, err)
				return
			}
			if err := f.remove(); err != nil {
				t.Errorf("remove the folders of user %d: %v", uid, err)
				return
			}
		}
	}
	var both sync.WaitGroup
	both.Go(func() { comeAndGo(nobody) })
	both.Go(func() { comeAndGo(games) })
	both.Wait()
}

// The longest run_dir that a configuration may have leaves room for all sockets.
func TestTheConfigurationLeavesRoomForSockets(t *testing.T) {
	c := config.Default()
	c.MPS.Engines = []gpu.Engine{gpu.MPS}
	const longest = 108 - 1 // bytes of the name of a Unix socket
	key := Key{Card: "GPU-00000000-0000-0000-0000-000000000000", UID: 1<<32 - 1}
	for spare, fits := range map[int]bool{0: true, -1: false} {
		c.Paths.RunDir = "/"
		n := longest - spare - len(folderOf(c.Paths.MPS(), key).pipe()+"/control_privileged")
		c.Paths.RunDir = "/" + strings.Repeat("x", n-1) // one slash more follows
		if err := c.Validate(); (err == nil) != fits {
			t.Errorf("a socket of %d bytes: %v", len(folderOf(c.Paths.MPS(), key).pipe()+"/control_privileged"), err)
		}
	}
}
