// SPDX-License-Identifier: Apache-2.0

package platforms

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const docs = "../../docs"

func TestPageIsWhatTheTestsWroteDown(t *testing.T) {
	want, err := Page(filepath.Join(docs, "platforms"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(docs, "platforms.md"))
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != want {
		t.Error("docs/platforms.md is not what docs/platforms gives: run make platforms")
	}
}

// What nobody has run is not in the files of the releases, and each command is there.
func TestCellsAreProven(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(docs, "platforms/*.jsonl"))
	for _, file := range files {
		cells, err := Read(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cells {
			meant := filepath.Base(file) == "meant.jsonl"
			if meant != (c.State == Meant) || !meant && !strings.HasPrefix(c.Version, strings.TrimSuffix(filepath.Base(file), ".jsonl")) {
				t.Errorf("%s: %+v does not belong there", file, c)
			}
			for _, m := range regexp.MustCompile(`make ([a-z0-9-]+)|(tests/[\w/.-]+)`).FindAllStringSubmatch(c.Command, -1) {
				_, err := os.Stat(filepath.Join("../..", m[2]))
				if err != nil || m[1] != "" && !regexp.MustCompile(`(?m)^`+m[1]+`:`).Match(makefile) {
					t.Errorf("%s: %q: there is no %s", file, c.Command, m[0])
				}
			}
		}
	}
	if len(files) < 2 {
		t.Errorf("%q: want a file of a release, and meant.jsonl", files)
	}
}

func TestNewerCellsTakeThePlaceOfOlder(t *testing.T) {
	dir := t.TempDir()
	cell := Cell{Run, "Debian 12", "22.05.8", "none", "x86-64", "simulated", "simulated", "jobs", "make test", "1.0.0~git1"}
	newer := cell
	newer.Version, newer.What = "1.0.0", "all jobs"
	built := cell
	built.State, built.Command = Built, "make package"
	meant := cell
	meant.State, meant.Version = Meant, ""
	if err := Merge(dir, []Cell{built, cell, newer}); err != nil {
		t.Fatal(err)
	}
	if err := Record(filepath.Join(dir, "meant.jsonl"), meant); err != nil {
		t.Fatal(err)
	}
	page, err := Page(dir)
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(strings.TrimPrefix(page, head)), "\n")
	if len(rows) != 2 || !strings.Contains(rows[0], "*run*") || !strings.Contains(rows[0], "all jobs") || !strings.Contains(rows[1], "*built*") {
		t.Errorf("%q", rows)
	}
	if err := Record(filepath.Join(dir, "x"), Cell{State: Run}); err == nil {
		t.Error("a cell without a command is taken")
	}
	card := filepath.Join(dir, "proc/driver/nvidia/gpus/0000:18:00.0")
	if err := os.MkdirAll(card, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(card, "information"):               "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 0\n",
		filepath.Join(dir, "proc/driver/nvidia/version"): "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder)\nGCC version: 12.2.0\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if c := cell.WithCards(dir); c.Driver != "580.159.04" || c.Card != "NVIDIA H100 80GB HBM3" {
		t.Errorf("%+v", c)
	}
	if s := system("/"); len(s) < 5 {
		t.Errorf("this system is %q", s)
	}
}
