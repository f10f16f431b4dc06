// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// Jobs with a share have mounts of their own. What the host mounts later is there as well, by hand or because
// the job looks at it (autofs); and what the host unmounts is gone, until the job looks at it again.
func TestMountsOfTheHostReachJobs(t *testing.T) {
	s := up(t, oneCard)
	shared := cluster.Dir + "/shared"
	s.must(os.Mkdir(shared, 0o755))
	s.must(unix.Mount(shared, shared, "", unix.MS_BIND, ""))
	s.must(unix.Mount("", shared, "", unix.MS_SHARED, "")) // as all mounts are where systemd is
	t.Cleanup(func() { _ = unix.Unmount(shared, unix.MNT_DETACH) })
	s.must(os.Mkdir(shared+"/late", 0o755))
	s.automounts(shared + "/auto")

	job := s.submit(alice, "--gres=vgpu:30", fmt.Sprintf(`
		readlink /proc/self/ns/mnt
		touch ready; until [ -e mounted ]; do sleep 0.1; done
		cat %[1]s/late/file %[1]s/auto/one/file
		srun cat %[1]s/late/file %[1]s/auto/two/file
		touch seen; until [ -e unmounted ]; do sleep 0.1; done
		ls -A %[1]s/late; cat %[1]s/auto/one/file`, shared))
	is := func(file string) {
		t.Helper()
		s.eventually(shortWait, "the job has got as far as "+file, func() bool { _, err := os.Stat(s.Home(alice) + "/" + file); return err == nil })
	}
	is("ready")
	tmpfs(t, shared+"/late")
	s.must(os.WriteFile(s.Home(alice)+"/mounted", nil, 0o644))
	is("seen")
	for _, dir := range []string{"/late", "/auto/one"} {
		s.must(unix.Unmount(shared+dir, 0))
	}
	s.must(os.WriteFile(s.Home(alice)+"/unmounted", nil, 0o644))
	got := strings.Fields(s.completed(alice, job))
	ours, err := os.Readlink("/proc/self/ns/mnt")
	s.must(err)
	want := []string{shared + "/late", shared + "/auto/one", shared + "/late", shared + "/auto/two", shared + "/auto/one"}
	if len(got) == 0 || got[0] == ours || !slices.Equal(got[1:], want) {
		t.Errorf("the job saw %q, want a namespace of its own (not %s) and %q", got, ours, want)
	}
}

// tmpfs mounts one, with a file that says where.
func tmpfs(t *testing.T, dir string) {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(dir+"/file", []byte(dir+"\n"), 0o644); err != nil {
		t.Error(err)
	}
}

// What linux/auto_fs4.h says.
const (
	lookedAt  = 3 // autofs_ptype_missing_indirect
	sayReady  = 0x9360
	sayNoWait = 0x9362 // AUTOFS_IOC_CATATONIC
)

// automounts mounts a tmpfs for each name that somebody looks at below dir, as automount(8) does for a map.
func (s site) automounts(dir string) {
	s.t.Helper()
	read, write, err := os.Pipe()
	s.must(err)
	s.must(os.Mkdir(dir, 0o755))
	s.must(unix.Setpgid(0, 0)) // its own group is the automounter, for which nothing is mounted; that of outside has no number here
	if err := unix.Mount("test", dir, "autofs", 0, fmt.Sprintf("fd=%d,pgrp=%d,minproto=5,maxproto=5,indirect", write.Fd(), unix.Getpgrp())); err != nil {
		s.t.Skipf("this machine has no autofs: %v", err)
	}
	root, err := os.Open(dir)
	s.must(err)
	done := make(chan struct{})
	s.t.Cleanup(func() {
		_ = unix.IoctlSetInt(int(root.Fd()), sayNoWait, 0)
		root.Close()
		write.Close()
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		<-done
		read.Close()
	})
	go func() {
		defer close(done)
		packet := make([]byte, 304)
		for {
			if n, err := read.Read(packet); err != nil || n != len(packet) {
				return
			}
			kind, token, name := binary.NativeEndian.Uint32(packet[4:]), binary.NativeEndian.Uint32(packet[8:]), packet[44:]
			if kind != lookedAt {
				continue
			}
			at := filepath.Join(dir, string(name[:binary.NativeEndian.Uint32(packet[40:])]))
			if err := os.MkdirAll(at, 0o755); err != nil {
				s.t.Error(err)
			}
			tmpfs(s.t, at)
			if err := unix.IoctlSetInt(int(root.Fd()), sayReady, int(token)); err != nil {
				s.t.Error(err)
			}
		}
	}()
}
