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
	below, err := mountsBelow("/usr")
	if err != nil {
		return err
	}
	back, err := keepMounts(below)
	if err != nil {
		return err
	}
	err = unix.Mount("overlay", "/usr", "overlay", unix.MS_RDONLY, "lowerdir="+root+"/usr:/usr")
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("lay %s over /usr: %w", root, err)
	}
	if err != nil {
		return fmt.Errorf("vgpu: cluster: this kernel has no overlay file system: install Slurm and unset %s", DebsEnv)
	}
	if err := back(); err != nil {
		return err
	}
	return command("ldconfig", "-X", "-i")
}

// mountsBelow lists what is mounted under a folder: an overlay does not show
// it, and a driver's libraries may lie there.
func mountsBelow(folder string) ([]string, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], folder+"/") {
			points = append(points, f[4])
		}
	}
	return points, nil
}

// keepMounts binds mounts aside; the function that it returns puts them back.
func keepMounts(points []string) (back func() error, err error) {
	const aside = "/run/kept"
	kept := map[string]string{}
	for i, point := range points {
		info, err := os.Stat(point)
		if err != nil {
			return nil, err
		}
		to := filepath.Join(aside, fmt.Sprint(i))
		if info.IsDir() {
			err = os.MkdirAll(to, 0o755)
		} else if err = os.MkdirAll(aside, 0o755); err == nil {
			err = os.WriteFile(to, nil, 0o644)
		}
		if err == nil {
			err = unix.Mount(point, to, "", unix.MS_BIND, "")
		}
		if err != nil {
			return nil, fmt.Errorf("keep %s: %w", point, err)
		}
		kept[point] = to
	}
	return func() error {
		for _, point := range points {
			if err := unix.Mount(kept[point], point, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("put %s back: %w", point, err)
			}
		}
		return nil
	}, nil
}

// command runs a program that prints only what is wrong.
func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
