// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// depth makes folders within each other, deeper than any path can be long.
func depth(t *testing.T, dir string, levels int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; err == nil && i < levels; i++ {
		var next int
		if err = unix.Mkdirat(at, "d", 0o700); err == nil {
			next, err = unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		_ = unix.Close(at)
		at = next
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(at)
}

// withFewFiles lets a function have only so many descriptors.
func withFewFiles(t *testing.T, n uint64, do func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	do()
}

func TestRemoveTree(t *testing.T) {
	dir, precious := t.TempDir(), t.TempDir()
	kept := filepath.Join(precious, "file")
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	must := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	must(os.WriteFile(kept, nil, 0o600), os.MkdirAll(dir+"/7/pipe/a/b", 0o700), os.MkdirAll(dir+"/7.old.3/x/y", 0o700), os.Mkdir(dir+"/8", 0o700),
		os.Symlink(precious, dir+"/7/pipe/link"), os.Symlink(precious, dir+"/7/pipe/a/b/link"), os.WriteFile(dir+"/7.out", nil, 0o600),
		unix.Mkfifo(dir+"/7/pipe/fifo", 0o600))
	for i := range 50 {
		must(os.MkdirAll(fmt.Sprintf("%s/7/log/%d/x", dir, i), 0o700))
	}
	depth(t, dir+"/7/pipe/a", 300)
	withFewFiles(t, 100, func() {
		if err := removeTree(root, "7", time.Minute); err != nil {
			t.Error(err)
		}
	})
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 || entries[0].Name() != "7.out" || entries[1].Name() != "8" {
		t.Errorf("left: %v, %v; want what is not of 7", entries, err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	if err := removeTree(root, "7", time.Minute); err != nil {
		t.Errorf("what is not there: %v", err)
	}
}

// A user who makes folders as fast as they are removed keeps gresd no longer than this.
func TestARemovalIsBoundedAndTheNextOneGoesOn(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err == nil {
		err = os.MkdirAll(dir+"/7/pipe", 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	depth(t, dir+"/7/pipe", 3000)
	err = removeTree(root, "7", time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "after 1ms some folders are left") {
		t.Errorf("error %v, want what is left", err)
	}
	if err := removeTree(root, "7", time.Minute); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left the next time: %v, %v", entries, err)
	}
}
