// SPDX-License-Identifier: Apache-2.0

// Command vgpu-platforms, run from the top of the source, puts build/platforms.jsonl into
// docs/platforms and writes docs/platforms.md. "vgpu-platforms record NAME=VALUE..." notes a
// cell; root=FOLDER takes the system and its Slurm from there.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/tests/platforms"
)

const (
	notes = "build/platforms.jsonl"
	data  = "docs/platforms"
	page  = "docs/platforms.md"
)

func main() {
	err := write
	if len(os.Args) > 1 && os.Args[1] == "record" {
		err = record
	}
	if err := err(); err != nil {
		fmt.Fprintf(os.Stderr, "vgpu: platforms: %v\n", err)
		os.Exit(1)
	}
}

func record() error {
	version, err := exec.Command("tools/version").Output()
	if err != nil {
		return fmt.Errorf("tools/version: %w", err)
	}
	root := "/"
	for _, arg := range os.Args[2:] {
		if dir, ok := strings.CutPrefix(arg, "root="); ok {
			root = dir
		}
	}
	cell := platforms.Of(root)
	cell.Version = strings.TrimSpace(string(version))
	for _, arg := range os.Args[2:] {
		name, value, _ := strings.Cut(arg, "=")
		if field := cell.Fields()[name]; field != nil {
			*field = value
		} else if name != "root" {
			return fmt.Errorf("%s: a cell has no %s", arg, name)
		}
	}
	if err := os.MkdirAll("build", 0o755); err != nil {
		return err
	}
	return platforms.Record(notes, cell)
}

func write() error {
	cells, err := platforms.Read(notes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := platforms.Merge(data, cells); err != nil {
		return err
	}
	text, err := platforms.Page(data)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(text), 0o644)
}
