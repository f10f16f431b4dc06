// SPDX-License-Identifier: Apache-2.0

// Package durable writes small files that must survive a crash.
package durable

import (
	"os"
	"path/filepath"
)

// WriteFile replaces a file, mode 0600: after a crash it holds the old text or the
// new one, whole. The text is on disk when WriteFile returns without an error.
func WriteFile(path string, text []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
