// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DebsEnv names a folder of Debian packages that [Enter] unpacks for the run
// alone, for a machine where Slurm is not installed and nothing should be.
const DebsEnv = "VGPU_CLUSTER_DEBS"

// unpackDebs lays the packages' files over /usr in this mount namespace. Slurm
// finds its plugins and its step daemon by absolute paths, so they have to
// appear where they would have been installed.
func unpackDebs() error {
	folder := os.Getenv(DebsEnv)
	if folder == "" {
		return nil
	}
	debs, err := filepath.Glob(filepath.Join(folder, "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) == 0 {
		return fmt.Errorf("vgpu: cluster: %s=%s: no .deb files there", DebsEnv, folder)
	}
	const root = "/run/debs"
	for _, deb := range debs {
		if err := command("dpkg", "-x", deb, root); err != nil {
			return err
		}
	}
	// Packages older than the merged /usr have some libraries in /lib.
	if _, err := os.Stat(root + "/lib"); err == nil {
		if err := command("cp", "-a", root+"/lib/.", root+"/usr/lib"); err != nil {
			return err
		}
	}
	// What an installation would have linked through the alternatives.
	suffixed, err := filepath.Glob(root + "/usr/*bin/*-wlm")
	if err != nil {
		return err
	}
	for _, path := range suffixed {
		if err := os.Symlink(filepath.Base(path), strings.TrimSuffix(path, "-wlm")); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	err = unix.Mount("overlay", "/usr", "overlay", unix.MS_RDONLY, "lowerdir="+root+"/usr:/usr")
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("lay %s over /usr: %w", root, err)
	}
	if err != nil {
		return fmt.Errorf("vgpu: cluster: this kernel has no overlay file system: install Slurm and unset %s", DebsEnv)
	}
	return command("ldconfig", "-X", "-i")
}

// command runs a program that prints only what is wrong.
func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
