// SPDX-License-Identifier: Apache-2.0

// Package platforms keeps what ran where: a test that proves a cell writes it down when it
// has passed, and docs/platforms.md is made from what was written down.
package platforms

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// What a cell can say.
const (
	Run   = "run"
	Built = "built"
	Meant = "meant to work"
)

var states = []string{Run, Built, Meant}

// Cell is one line of the table. A part that has nothing to do with it is "-".
type Cell struct {
	State   string `json:"state"`
	System  string `json:"system"`
	Slurm   string `json:"slurm"`
	Cgroup  string `json:"cgroup"`
	Arch    string `json:"arch"`
	Driver  string `json:"driver"`
	Card    string `json:"card"`
	What    string `json:"what"`
	Command string `json:"command"`
	Version string `json:"version,omitempty"` // of slurm-vgpu
}

// of is what the cell is about; a newer one takes its place.
func (c Cell) of() string {
	return strings.Join([]string{c.System, c.Slurm, c.Cgroup, c.Arch, c.Driver, c.Card, c.Command}, "\x00")
}

// Fields points to the parts by the names that they have in a line.
func (c *Cell) Fields() map[string]*string {
	return map[string]*string{
		"state": &c.State, "system": &c.System, "slurm": &c.Slurm, "cgroup": &c.Cgroup, "arch": &c.Arch, "driver": &c.Driver,
		"card": &c.Card, "what": &c.What, "command": &c.Command, "version": &c.Version,
	}
}

// Check says what is wrong with a cell.
func (c Cell) Check() error {
	if !slices.Contains(states, c.State) {
		return fmt.Errorf("%q: want one of %q", c.State, states)
	}
	for name, value := range c.Fields() {
		if *value == "" && (name != "version" || c.State != Meant) {
			return fmt.Errorf("%s is empty in %+v", name, c)
		}
		if strings.Contains(*value, "\n") {
			return fmt.Errorf("%s: want one line, not %q", name, *value)
		}
	}
	return nil
}

// Of begins a cell for the system below root: its name, its Slurm, the kind of processor.
func Of(root string) Cell {
	c := Cell{State: Run, System: system(root), Slurm: "-", Cgroup: "-", Arch: arch(runtime.GOARCH), Driver: "-", Card: "-"}
	slurmd := exec.Command("slurmd", "-V")
	if root != "/" {
		slurmd = exec.Command("chroot", root, "slurmd", "-V")
	}
	if out, err := slurmd.Output(); err == nil {
		c.Slurm = strings.TrimPrefix(strings.TrimSpace(string(out)), "slurm-wlm ")
	}
	return c
}

func arch(goarch string) string {
	if goarch == "amd64" {
		return "x86-64"
	}
	return goarch
}

// system is a name such as "Debian 12".
func system(root string) string {
	text, err := os.ReadFile(filepath.Join(root, "usr/lib/os-release"))
	if err != nil {
		return ""
	}
	value := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		value[name] = strings.Trim(v, `"`)
	}
	name, _, _ := strings.Cut(value["NAME"], " ")
	return name + " " + cmp.Or(value["VERSION_ID"], "sid")
}

// WithCards adds the NVIDIA driver and the first card of the system below root.
func (c Cell) WithCards(root string) Cell {
	find := func(pattern, file string) string {
		files, _ := filepath.Glob(filepath.Join(root, "proc/driver/nvidia", file))
		if len(files) == 0 {
			return ""
		}
		text, _ := os.ReadFile(files[0])
		m := regexp.MustCompile(pattern).FindSubmatch(text)
		if m == nil {
			return ""
		}
		return string(m[1])
	}
	c.Driver = find(`NVRM version:.* (\d{3}\.[\d.]+)`, "version")
	c.Card = find(`Model:\s+(.+)`, "gpus/*/information")
	return c
}

// Record appends a cell to a file.
func Record(path string, c Cell) error {
	if err := c.Check(); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(f).Encode(c), f.Close())
}

// RecordBuilt appends a cell to the notes in a folder of built programs, whose version it is.
func RecordBuilt(build string, c Cell) error {
	said, err := exec.Command(filepath.Join(build, "bin/gresd"), "version").Output()
	words := strings.Fields(string(said))
	if err != nil || len(words) < 2 {
		return fmt.Errorf("gresd version: %q: %w", said, err)
	}
	c.Version = words[1]
	return Record(filepath.Join(build, "platforms.jsonl"), c)
}

// Read reads a file of cells.
func Read(path string) ([]Cell, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var cells []Cell
	for line := range bytes.Lines(text) {
		var c Cell
		decoder := json.NewDecoder(bytes.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&c); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, line, err)
		}
		if err := c.Check(); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		cells = append(cells, c)
	}
	return cells, nil
}

// Merge puts new cells into the files of dir, one for each release.
func Merge(dir string, cells []Cell) error {
	for _, c := range cells {
		release, _, _ := strings.Cut(c.Version, "~")
		path := filepath.Join(dir, release+".jsonl")
		all, err := Read(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		all = slices.DeleteFunc(all, func(old Cell) bool { return old.of() == c.of() })
		all = append(all, c)
		sort(all)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, c := range all {
			if err := Record(path, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// sort puts what ran first.
func sort(cells []Cell) {
	slices.SortFunc(cells, func(a, b Cell) int {
		return cmp.Or(cmp.Compare(slices.Index(states, a.State), slices.Index(states, b.State)), cmp.Compare(a.of(), b.of()))
	})
}

const head = `# Platforms

What was run where. The tests make this page: a test that proves a line writes it into build/platforms.jsonl when it has
passed, and

    make platforms

takes the lines from there into docs/platforms and makes the page of them.

* *run*: the command ended well on that system. *built*: packages were built there. *meant to work*: nobody has run it; the
  command would show it. What has no line was not run.
* *simulated* is the card of the tests, in the place of driver and card. With it a line says nothing about a driver.
* "-": has no part in what was run. Slurm, where packages were built: that of the headers.

What each release of Slurm does with each kind of job is in [slurm.md](slurm.md).

| | system | Slurm | cgroup | processor | driver | card | what | command | release |
|---|---|---|---|---|---|---|---|---|---|
`

// Page makes docs/platforms.md from the files of dir; of two lines about the same, the
// newer release's holds, and one that ran is no longer only meant to work.
func Page(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return "", err
	}
	newest := map[string]Cell{}
	for _, file := range files { // "meant.jsonl" is the last one
		cells, err := Read(file)
		if err != nil {
			return "", err
		}
		for _, c := range cells {
			if _, ran := newest[c.of()]; !ran || c.State != Meant {
				newest[c.of()] = c
			}
		}
	}
	var cells []Cell
	for _, c := range newest {
		cells = append(cells, c)
	}
	sort(cells)
	page := head
	for _, c := range cells {
		release, _, _ := strings.Cut(c.Version, "~")
		page += fmt.Sprintf("| *%s* | %s | %s | %s | %s | %s | %s | %s | `%s` | %s |\n",
			c.State, c.System, c.Slurm, c.Cgroup, c.Arch, c.Driver, c.Card, c.What, strings.ReplaceAll(c.Command, "|", `\|`), release)
	}
	return page, nil
}
