// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// mostRemoving bounds one removal: a user may add as fast as gresd removes. The next one goes on.
const mostRemoving = 10 * time.Second

// removeTree removes a file or a folder with all that is in it, as RemoveAll does,
// but holds one folder open, however deep they lie in each other: they are a
// user's, who could take all of gresd's descriptors by that. A folder that is not
// empty moves up beside name, as name.old.N, and has its turn later; those that an
// earlier removal has left are removed as well.
func removeTree(root *os.Root, name string, limit time.Duration) error {
	ours := func(entry string) bool { return entry == name || strings.HasPrefix(entry, name+".old.") }
	began := time.Now()
	lifted := began.UnixNano() // above all that were left
	for {
		left, err := list(root, ".", ours)
		if err != nil || len(left) == 0 {
			return err
		}
		changed := false
		for i, dir := range left {
			err := root.Remove(dir)
			if err == nil {
				changed = true
				continue
			}
			if time.Since(began) > limit {
				return fmt.Errorf("after %s some folders are left, %d or more: somebody is adding to them, or has mounted something there: %w", limit, len(left)-i, err)
			}
			entries, err := list(root, dir, func(string) bool { return true })
			if err != nil {
				return err
			}
			for _, entry := range entries {
				path := dir + "/" + entry
				if err = root.Remove(path); err != nil {
					lifted++
					err = root.Rename(path, fmt.Sprintf("%s.old.%d", name, lifted))
				}
				changed = changed || err == nil
			}
		}
		if !changed { // its user, or a mount, keeps it
			time.Sleep(pollEvery)
		}
	}
}

// list returns some of the names in a folder that are wanted, all of them if they
// are not many, and none only where none is there.
func list(root *os.Root, dir string, wanted func(string) bool) (all []string, err error) {
	folder, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	for err == nil && len(all) == 0 {
		var names []string
		names, err = folder.Readdirnames(10_000)
		all = slices.DeleteFunc(names, func(name string) bool { return !wanted(name) })
	}
	if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) { // that of a card is gone with the card's last daemon
		err = nil
	}
	return all, err
}
