// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// The committed results of each version compare with themselves, file or folder.
func TestCompareReadsFilesAndFolders(t *testing.T) {
	for _, version := range []string{"0.9.0", "0.10.0"} {
		folder := "../../docs/benchmarks/" + version
		if err := compare([]string{folder, folder + "/results.jsonl"}); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
	if err := compare([]string{"one"}); err == nil {
		t.Error("one run: want an error")
	}
	if err := compare([]string{"../../docs/benchmarks/0.9.0", t.TempDir()}); err == nil {
		t.Error("a folder without results: want an error")
	}
}
