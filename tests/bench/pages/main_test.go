// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const docs = "../../../docs"

// The committed page and charts are those of the committed data.
func TestPageIsThatOfTheData(t *testing.T) {
	out := t.TempDir()
	if err := pages(docs, out); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"benchmarks.md", "benchmarks/company.svg", "benchmarks/shares.svg"} {
		made, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		committed, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil || !bytes.Equal(made, committed) {
			t.Errorf("docs/%s is not that of the data (%v): make bench-pages", name, err)
		}
		if lines := strings.Count(string(made), "\n"); strings.HasSuffix(name, ".md") && lines > 120 {
			t.Errorf("docs/%s has %d lines, want 120 at most", name, lines)
		}
	}
}

// A figure without data is an error, not a gap.
func TestAFigureWithoutDataIsAnError(t *testing.T) {
	r, err := load(filepath.Join(docs, "benchmarks/0.9.0"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.Part("contended", "none", "ours"); err == nil {
		t.Errorf("got %q, want an error", got)
	}
	if got, err := r.Num("contended", "all", "ours", "none"); err == nil {
		t.Errorf("got %q, want an error", got)
	}
	if _, err := r.Company("none"); err == nil {
		t.Error("company: want an error")
	}
}
