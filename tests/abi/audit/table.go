// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
)

// Class says what libvgpu does with a function of the driver.
type Class string

// classes in the order in which they are listed. A hooked class belongs to
// exactly the functions that libvgpu exports.
var classes = []struct {
	Name    Class
	Hooked  bool
	Meaning string
}{
	{"charged", true, "card memory is charged against the job's limit, or given back"},
	{"gated", true, "starts work: waits for GPU time, and pays for it"},
	{"boundary", true, "ends a measured batch of work"},
	{"told", true, "the program is told something else than the driver says"},
	{"followed", true, "watched: contexts, streams, captures, handles"},
	{"passed", false, "takes no card memory and starts no work that needs the gate"},
	{"uncharged", false, "moves memory or work and is not charged: the reason says why"},
	{"cannot", false, "cannot be handled in the library: the reason says what catches it"},
}

// riskyWords are in the names of functions that take memory or start work. Such
// a function must be named in the table: no pattern covers it. "Info" is here
// because what a program is told must be decided too.
var riskyWords = []string{
	"Alloc", "Create", "Malloc", "Launch", "Memcpy", "Memset", "Import", "Load",
	"Instantiate", "Map", "Register", "Prefetch", "Batch", "Info",
}

// nvmlWords are in the names of NVML's functions that tell memory, utilisation
// or processes. Only those need a class.
var nvmlWords = []string{
	"MemoryInfo", "BAR1", "MemSizeInfo", "MemoryUsage", "UnprotectedMem", "Process",
	"Utilization", "Accounting", "Sample",
}

func hasWord(name string, words []string) bool {
	for _, w := range words {
		if strings.Contains(name, w) {
			return true
		}
	}
	return false
}

func isNVML(name string) bool { return strings.HasPrefix(name, "nvml") }

// mustBeNamed reports whether no pattern may stand for the function.
func mustBeNamed(name string) bool { return !isNVML(name) && hasWord(name, riskyWords) }

// needsClass reports whether the function may not be left out of the table.
func needsClass(name string) bool { return !isNVML(name) || hasWord(name, nvmlWords) }

func hooked(c Class) bool {
	for _, k := range classes {
		if k.Name == c {
			return k.Hooked
		}
	}
	return false
}

func known(c Class) bool {
	for _, k := range classes {
		if k.Name == c {
			return true
		}
	}
	return false
}

// Entry is one line of the table.
type Entry struct {
	Class  Class
	Reason string
	Line   int
}

// Table is classes.def.
type Table struct {
	exact    map[string]*Entry
	names    []string // of exact, in the order of the file
	patterns []string // in the order of the file
	families map[string]*Entry
}

var validName = regexp.MustCompile(`^(cu|nvml)[A-Za-z0-9_*]+$`)

// ParseTable reads classes.def; file is its name for messages.
func ParseTable(file string, r io.Reader) (*Table, error) {
	t := &Table{exact: map[string]*Entry{}, families: map[string]*Entry{}}
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		left, reason, ok := strings.Cut(line, " : ")
		words := strings.Fields(left)
		reason = strings.TrimSpace(reason)
		if !ok || len(words) < 2 || reason == "" {
			return nil, fmt.Errorf("%s:%d: want \"<class> <name>... : <reason>\", e.g. \"charged cuMemAlloc_v2 : charged before\"", file, n)
		}
		e := &Entry{Class: Class(words[0]), Reason: reason, Line: n}
		if !known(e.Class) {
			return nil, fmt.Errorf("%s:%d: class %q: want one of %s", file, n, e.Class, classNames())
		}
		for _, name := range words[1:] {
			if err := t.add(name, e); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", file, n, err)
			}
		}
	}
	return t, in.Err()
}

func classNames() string {
	var names []string
	for _, k := range classes {
		names = append(names, string(k.Name))
	}
	return strings.Join(names, " ")
}

func (t *Table) add(name string, e *Entry) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("name %q: want a function of the driver, e.g. cuMemAlloc_v2 or cuTexRef*", name)
	}
	if strings.Contains(name, "*") {
		if hooked(e.Class) {
			return fmt.Errorf("pattern %s: class %s is for functions that are hooked: name them one by one", name, e.Class)
		}
		if before := t.families[name]; before != nil {
			return fmt.Errorf("pattern %s: already on line %d", name, before.Line)
		}
		t.families[name] = e
		t.patterns = append(t.patterns, name)
		return nil
	}
	if before := t.exact[name]; before != nil {
		return fmt.Errorf("name %s: already on line %d", name, before.Line)
	}
	t.exact[name] = e
	t.names = append(t.names, name)
	return nil
}

// Find returns the line of the table for a function, or nil, and the patterns
// that cover it. A line that names it goes before any pattern.
func (t *Table) Find(name string) (*Entry, []string) {
	if e := t.exact[name]; e != nil {
		return e, nil
	}
	if mustBeNamed(name) {
		return nil, nil
	}
	var found []string
	for _, p := range t.patterns {
		if ok, _ := path.Match(p, name); ok {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	return t.families[found[0]], found
}
