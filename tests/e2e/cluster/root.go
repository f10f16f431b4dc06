// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RootEnv names a folder with a whole system in it, such as debootstrap makes
// one. [Enter] makes it the root of the private machine, so that a cluster runs
// the Slurm, the loader and the C library of that system. Nothing in the folder
// is changed, and runs may share it.
const RootEnv = "VGPU_CLUSTER_ROOT"

// enterRoot moves this mount namespace to the system of [RootEnv]. The checkout
// stays at its path: programs and logs are there.
func enterRoot() error {
	system := os.Getenv(RootEnv)
	if system == "" {
		return nil
	}
	checkout, err := checkoutFolder()
	if err != nil {
		return err
	}
	work, err := os.Getwd()
	if err != nil {
		return err
	}
	// Lstat: what a link names is a path of that system, not of this one.
	if _, err := os.Lstat(filepath.Join(system, "usr/sbin/slurmd")); err != nil {
		return fmt.Errorf("vgpu: cluster: %s=%s: want a folder with a system that has Slurm, "+
			"for example one that tests/e2e/matrix makes: %w", RootEnv, system, err)
	}
	// A tmpfs over a folder that every system has; what it hides is not needed
	// before the old root is gone.
	const root = "/mnt"
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount the new root: %w", err)
	}
	if err := fillRoot(root, system, checkout); err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	// Its folder for temporary files need not be here.
	if err := os.Setenv("TMPDIR", "/tmp"); err != nil {
		return err
	}
	// The old root is stacked on the new one, and taken off at once.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("move to the new root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	return os.Chdir(work)
}

// fillRoot gives the new root the folders of the system, read-only, the
// devices of this machine, and the checkout.
func fillRoot(root, system, checkout string) error {
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		target, err := os.Readlink(filepath.Join(system, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // not every architecture has lib64
		}
		if err != nil {
			return fmt.Errorf("vgpu: cluster: %s=%s: want a system with a merged /usr: %w", RootEnv, system, err)
		}
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	for _, b := range []struct {
		from, at string
		flags    uintptr
	}{
		{filepath.Join(system, "usr"), "usr", unix.MS_RDONLY},
		{filepath.Join(system, "etc"), "etc", unix.MS_RDONLY}, // privateEtc copies it
		{filepath.Join(system, "var"), "var", unix.MS_RDONLY},
		{"/dev", "dev", 0},
		{"/sys", "sys", 0},
		{checkout, checkout, 0},
	} {
		at := filepath.Join(root, b.at)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(b.from, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s: %w", b.from, err)
		}
		if b.flags != 0 { // the flags of a bind count only in a second call
			if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|b.flags, ""); err != nil {
				return fmt.Errorf("bind %s read-only: %w", b.from, err)
			}
		}
	}
	for _, name := range []string{"home", "mnt", "opt", "proc", "root", "run", "srv"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	tmp := filepath.Join(root, "tmp")
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	return os.Chmod(tmp, 0o1777)
}

// checkoutFolder finds the folder of go.mod above the working folder.
func checkoutFolder() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("vgpu: cluster: no go.mod above the working folder")
}
