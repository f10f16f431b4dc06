// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

const (
	// mostKept is how much memory the files of one daemon may have: run_dir is memory, and a user
	// can write into the folders of the own daemon.
	mostKept = 64 * gpu.MiB
	// mostFiles bounds the work to count them. A file counts once for each folder above it.
	mostFiles = 1000
)

// bound empties the user's files if they are too large together. It returns an error if too much is
// left. The caller then replaces the folder and its daemon.
func (f folder) bound(uid uint32) error {
	root, err := os.OpenRoot(f.base())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	size, err := usage(root, func(string) {})
	if err != nil || size <= mostKept {
		return err
	}
	if _, err = usage(root, func(path string) { empty(root, path, uid) }); err != nil {
		return err
	}
	if size, err = usage(root, func(string) {}); err == nil && size > mostKept {
		err = fmt.Errorf("its folder %s has %s: want at most %s", f.base(), size, mostKept)
	}
	return err
}

// usage adds up the memory of all files, and calls visit for each regular one.
func usage(root *os.Root, visit func(path string)) (size gpu.Bytes, err error) {
	files, dirs := 0, []string{"."}
	for ; len(dirs) > 0; dirs = dirs[1:] {
		dir, err := root.Open(dirs[0])
		if err != nil {
			continue // its user has just removed it
		}
		for {
			entries, err := dir.ReadDir(100)
			for _, entry := range entries {
				path := dirs[0] + "/" + entry.Name()
				if info, err := root.Lstat(path); err == nil {
					size += gpu.Bytes(info.Sys().(*syscall.Stat_t).Blocks) * 512
				}
				switch {
				case entry.IsDir():
					dirs = append(dirs, path)
				case entry.Type().IsRegular():
					visit(path)
				}
			}
			if files += len(entries) * (1 + strings.Count(dirs[0], "/")); files > mostFiles {
				_ = dir.Close()
				return size, fmt.Errorf("its folder %s has more than %d files", root.Name(), mostFiles)
			}
			if err != nil {
				_ = dir.Close()
				if !errors.Is(err, io.EOF) {
					return size, err
				}
				break
			}
		}
	}
	return size, nil
}

// empty truncates a user's file. A process may have it open. It leaves files with hard links and
// files of other users alone.
func empty(root *os.Root, path string, uid uint32) {
	file, err := root.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid == uid && stat.Nlink == 1 {
		_ = file.Truncate(0)
	}
}
