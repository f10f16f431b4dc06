// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces small files as a whole.
package atomicfile

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// WriteFile replaces a file, mode 0600: after a crash of the host it holds the old text or the
// new one, whole. The text is on disk when WriteFile returns without an error.
func WriteFile(path string, text []byte) error {
	if err := replace(path, text, 0o600, true); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// WriteJSON is WriteFile of a value as JSON that people can read.
func WriteJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(text, '\n'))
}

// ReadJSON reads a file of WriteJSON. An absent or damaged file gives the zero value, because gresd
// can learn its content again. A damaged file is logged.
func ReadJSON[T any](path string, log *slog.Logger) (v T, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(text, &v); err != nil {
		log.Warn("cannot read a file of gresd: it counts as empty", "path", path, "error", err)
		v = *new(T)
	}
	return v, nil
}

// Remove removes a file, if there is one.
func Remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Replace replaces a file that can be made again: a kill of gresd leaves the old text or the new
// one, a crash of the host may leave neither. Who has the old one open keeps it.
func Replace(path string, text []byte, mode fs.FileMode) error {
	return replace(path, text, mode, false)
}

func replace(path string, text []byte, mode fs.FileMode, durable bool) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err = f.Write(text); err == nil {
		err = f.Chmod(mode) // whatever the umask is
	}
	if err == nil && durable {
		err = f.Sync()
	}
	if err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
