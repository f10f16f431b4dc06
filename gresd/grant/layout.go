// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
)

// Paths that are the same on every node: the SPANK plugin and libvgpu know
// them without a configuration.
const (
	SelfDir     = "/run/vgpu/self"
	HostPreload = "/etc/ld.so.preload"
)

// Layout is where the files are. Jobs and Preload are inside RunDir.
type Layout struct {
	RunDir      string
	Jobs        string // RunDir/jobs
	Preload     string // RunDir/preload
	Library     string // libvgpu.so, as tasks see it
	SelfDir     string // "" means [SelfDir]
	HostPreload string // "" means [HostPreload]
	Socket      string // gresd's, told to the job's processes
}

// prepare makes the folders, the mount points and the preload file.
func (l Layout) prepare() error {
	for _, d := range []struct {
		path string
		mode fs.FileMode
	}{
		{l.RunDir, 0o755}, // the socket is in it
		{l.Jobs, 0o711},
		{l.SelfDir, 0o755},
	} {
		if err := makeDir(d.path, d.mode); err != nil {
			return fmt.Errorf("prepare %s: %w", d.path, err)
		}
	}
	for _, mountPoint := range []string{"grant", "cache"} {
		if err := touch(filepath.Join(l.SelfDir, mountPoint), 0o444); err != nil {
			return fmt.Errorf("prepare mount point: %w", err)
		}
	}
	// A file can be bound over another only where that one exists.
	if err := touch(l.HostPreload, 0o644); err != nil {
		return fmt.Errorf("prepare %s: %w", l.HostPreload, err)
	}
	if err := l.writePreload(); err != nil {
		return fmt.Errorf("prepare %s: %w", l.Preload, err)
	}
	return nil
}

// makeDir makes a folder, or checks that the one that is there can be trusted:
// a real folder of ours that nobody else may write to.
func makeDir(path string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return errors.New("not a folder: want a folder of root, not a link or a file")
	case st.Uid != uint32(os.Geteuid()):
		return fmt.Errorf("owned by user %d: want user %d", st.Uid, os.Geteuid())
	}
	return os.Chmod(path, mode)
}

// touch makes an empty file unless there is one. It follows no link.
func touch(path string, mode fs.FileMode) error {
	f, err := makeFile(path, mode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// makeFile makes a file, whatever the umask is. One that is there is an error.
func makeFile(path string, mode fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(mode); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// writeNew makes a file with a text that everybody may read who comes into its folder.
func writeNew(path, text string) error {
	f, err := makeFile(path, 0o444)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text + "\n")
	return err
}

// writePreload keeps what the host preloads already and adds our library. The
// file is replaced by rename: tasks that have the old one bound keep it whole.
func (l Layout) writePreload() error {
	host, err := os.ReadFile(l.HostPreload)
	if err != nil {
		return err
	}
	want := preloadText(string(host), l.Library)
	if have, err := os.ReadFile(l.Preload); err == nil && string(have) == want {
		return nil
	}
	return atomicfile.Replace(l.Preload, []byte(want), 0o644)
}

// preloadText returns the host's lines without our library, then our library.
// In such a file names are separated by spaces or colons, # starts a comment.
func preloadText(host, library string) string {
	var out strings.Builder
	for line := range strings.Lines(host) {
		line = strings.TrimRight(line, "\n")
		text, _, _ := strings.Cut(line, "#")
		names := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t:\r", r) })
		if slices.Contains(names, library) {
			names = slices.DeleteFunc(names, func(n string) bool { return n == library })
			line = strings.Join(names, " ")
		}
		if line != "" {
			out.WriteString(line + "\n")
		}
	}
	out.WriteString(library + "\n")
	return out.String()
}
