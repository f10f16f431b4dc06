// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A shared cache on a full file system does not end the program: the limit holds for the
// process alone.
func TestACacheOnAFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=755"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	full, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = full.Write(make([]byte, 4096))
	}
	_ = full.Close()
	env, libdir, lib := card(t, oneCard)
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G", "CUDA_DEVICE_MEMORY_SHARED_CACHE="+filepath.Join(dir, "cache")),
		"captured", "beside", "--libdir", libdir)
	if err != nil {
		t.Fatal(err)
	}
	if granted := r["granted"].(float64); granted != 7 {
		t.Errorf("%v GiB granted of a limit of 8, want 7 beside a context", granted)
	}
}

// Where NVML cannot be loaded it is not looked for again and again.
func TestNVMLIsNotLookedForAllTheTime(t *testing.T) {
	t.Parallel()
	env, libdir, lib := card(t, oneCard)
	own := t.TempDir()
	if err := os.Symlink(filepath.Join(libdir, "libcuda.so.1"), filepath.Join(own, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(own, "libnvidia-ml.so.1")
	if err := os.WriteFile(broken, []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, broken, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	there, end := waiting(t, append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+own, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "poolback", "free", "--libdir", own)
	if e := there(); e != 0 {
		t.Errorf("error %v", e)
	}
	opened := 0
	// It begins after a second; four looks a second would follow.
	for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(20 * time.Millisecond) {
		var buf [4096]byte
		if n, _ := unix.Read(watch, buf[:]); n > 0 {
			opened++
		}
	}
	end()
	if opened < 1 || opened > 2 {
		t.Errorf("it was opened %d times in 3 s, want once", opened)
	}
}
