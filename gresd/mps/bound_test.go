// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// write makes a file of that size, and leaves it open.
func write(t *testing.T, path string, size gpu.Bytes, uid int) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err == nil {
		err = errors.Join(f.Chown(uid, uid), unix.Fallocate(int(f.Fd()), 0, 0, int64(size)))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func sizeOf(t *testing.T, f *os.File) gpu.Bytes {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return gpu.Bytes(info.Size())
}

func TestAFolderOfTheUserIsBounded(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	f := folderOf(dir, Key{Card: card, UID: nobody})
	if err := f.make(nobody, nobody); err != nil {
		t.Fatal(err)
	}
	log := write(t, f.logs()+"/control.log", 10*gpu.MiB, nobody)
	if err := f.bound(nobody); err != nil || sizeOf(t, log) != 10*gpu.MiB {
		t.Errorf("below the bound: %v, %s are left", err, sizeOf(t, log))
	}

	// Above it, only the user's own files become empty.
	precious := write(t, filepath.Join(elsewhere, "file"), gpu.MiB, nobody)
	linked := write(t, filepath.Join(elsewhere, "linked"), gpu.MiB, nobody)
	large := write(t, f.pipe()+"/large", 60*gpu.MiB, nobody)
	roots := write(t, f.pipe()+"/roots", gpu.MiB, 0)
	if err := errors.Join(os.Symlink(precious.Name(), f.pipe()+"/link"), os.Link(linked.Name(), f.pipe()+"/linked"),
		unix.Mkfifo(f.pipe()+"/fifo", 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := f.bound(nobody); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		file *os.File
		want gpu.Bytes
	}{{log, 0}, {large, 0}, {precious, gpu.MiB}, {linked, gpu.MiB}, {roots, gpu.MiB}} {
		if got := sizeOf(t, c.file); got != c.want {
			t.Errorf("%s has %s, want %s", c.file.Name(), got, c.want)
		}
	}

	// If files cannot be emptied, the daemon must end.
	stubborn := write(t, f.pipe()+"/stubborn", 70*gpu.MiB, nobody)
	if err := os.Link(stubborn.Name(), f.pipe()+"/again"); err != nil {
		t.Fatal(err)
	}
	if f.bound(nobody) == nil {
		t.Error("70 MiB are left, and no error")
	}
	if err := os.Remove(f.pipe() + "/again"); err != nil {
		t.Fatal(err)
	}
	for i := range mostFiles {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", f.pipe(), i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if f.bound(nobody) == nil {
		t.Error("too many files, and no error")
	}
	if err := f.remove(); err != nil {
		t.Fatal(err)
	}
	if err := f.make(nobody, nobody); err != nil {
		t.Fatal(err)
	}
	depth(t, f.pipe(), 200)
	if f.bound(nobody) == nil {
		t.Error("too deep, and no error")
	}
	if err := errors.Join(f.remove(), f.bound(nobody)); err != nil {
		t.Error(err)
	}
}

// A daemon whose folder stays too large is replaced, and the folder with it.
func TestADaemonWhoseFolderIsTooLargeIsReplaced(t *testing.T) {
	n := newNode(t)
	key := Key{Card: card, UID: nobody}
	n.up(1, key, 30)
	f := folderOf(n.cfg.Dir, key)
	large := write(t, f.logs()+"/large", 70*gpu.MiB, nobody)
	if err := os.Link(large.Name(), f.logs()+"/again"); err != nil {
		t.Fatal(err)
	}
	n.eventually("the folder is new", func() bool {
		_, err := os.Stat(large.Name())
		return errors.Is(err, os.ErrNotExist) && n.Holds(1)
	})
}
