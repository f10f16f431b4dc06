// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// mostPasses is how often one folder is looked through: its user may still be
// adding to it.
const mostPasses = 100

// removeTree removes a file or a folder with all that is in it, as RemoveAll does,
// but holds one folder open, however deep they lie in each other: they are a
// user's, who could take all of gresd's descriptors by that. A folder that is not
// empty moves up beside name, as name.old.N, and has its turn later; those that a
// killed gresd has left are removed as well.
func removeTree(root *os.Root, name string) error {
	left, err := list(root, ".", func(entry string) bool { return strings.HasPrefix(entry, name+".old.") })
	if err != nil {
		return err
	}
	lifted := len(left)
	for _, n := range left {
		var number int
		if _, err := fmt.Sscanf(n, name+".old.%d", &number); err == nil {
			lifted = max(lifted, number+1)
		}
	}
	for todo := append(left, name); len(todo) > 0; {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for pass := 0; ; pass++ {
			err := root.Remove(dir)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			if pass == mostPasses {
				return fmt.Errorf("remove: somebody is adding to it: %w", err)
			}
			entries, err := list(root, dir, nil)
			if err != nil {
				return err
			}
			for _, entry := range entries {
				path := dir + "/" + entry
				if err := root.Remove(path); err == nil || errors.Is(err, fs.ErrNotExist) {
					continue
				}
				up := fmt.Sprintf("%s.old.%d", name, lifted)
				if err := root.Rename(path, up); err != nil {
					continue // it is looked at again
				}
				lifted++
				todo = append(todo, up)
			}
		}
	}
	return nil
}

// list returns some of the names in a folder that are wanted, all of them if they
// are not many.
func list(root *os.Root, dir string, wanted func(string) bool) ([]string, error) {
	folder, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(10_000)
	if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) { // that of a card is gone with the card's last daemon
		err = nil
	}
	var all []string
	for _, name := range names {
		if wanted == nil || wanted(name) {
			all = append(all, name)
		}
	}
	return all, err
}
