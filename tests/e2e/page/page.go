// SPDX-License-Identifier: Apache-2.0

// Package page keeps tables of docs/ equal to what tests have found.
package page

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Check compares what stands between two comments of a page with what a test has
// found, or writes it there when update is set. made is the command that writes it.
func Check(t *testing.T, file, name, made, want string, update bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	first, last := fmt.Sprintf("<!-- %s: made by %s -->\n", name, made), fmt.Sprintf("<!-- end of %s -->", name)
	before, rest, ok := strings.Cut(string(text), first)
	old, after, ok2 := strings.Cut(rest, last)
	if !ok || !ok2 {
		t.Fatalf("%s: want the comments %q and %q", file, first, last)
	}
	if old == want {
		return
	}
	if !update {
		t.Errorf("%s: the table %s is not what was found: run this test with -update, and look at the difference; want:\n%s", file, name, want)
		return
	}
	if t.Failed() {
		return
	}
	if err := os.WriteFile(file, []byte(before+first+want+last+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
