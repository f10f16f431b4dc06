// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// Report is what an audit found.
type Report struct {
	Rows     []Row    // classified functions, by line of the table
	Findings []string // what is wrong; empty when all is well
	Absent   []string // hooked, but not in this driver
	CUDA     int      // functions of libcuda looked at
	NVML     int      // functions of libnvidia-ml that need a class
}

// Row is one line of the table with the functions that it covers.
type Row struct {
	*Entry
	Names []string
}

// Agree compares the table with the hook list: a hooked function has a hooked
// class, and a function with a hooked class is hooked.
func Agree(t *Table, h Hooks) []string {
	var bad []string
	replaced := map[string]bool{}
	for _, name := range h.Replaced {
		if replaced[name] {
			bad = append(bad, name+": twice in hooks.def")
		}
		replaced[name] = true
		switch e, _ := t.Find(name); {
		case e == nil:
			bad = append(bad, name+": hooked, but has no class: add it to classes.def, e.g. \"charged "+name+" : charged before\"")
		case !hooked(e.Class):
			bad = append(bad, fmt.Sprintf("%s: hooked, but line %d of classes.def says %s: give it a class of what is hooked, e.g. charged", name, e.Line, e.Class))
		}
		if h.Called[name] {
			bad = append(bad, name+": both replaced and only called in hooks.def")
		}
	}
	for _, name := range t.names {
		if e := t.exact[name]; hooked(e.Class) && !replaced[name] {
			bad = append(bad, fmt.Sprintf("%s: line %d of classes.def says %s, but it is not hooked: add it to hooks.def or give it another class, e.g. passed", name, e.Line, e.Class))
		}
	}
	return bad
}

// Audit classifies the functions of the driver (cuda, nvml: sorted names).
func Audit(t *Table, h Hooks, cuda, nvml []string) Report {
	r := Report{Findings: Agree(t, h)}
	rows := map[int]*Row{}
	for _, name := range slices.Concat(cuda, nvml) {
		e, patterns := t.Find(name)
		switch {
		case e == nil && needsClass(name):
			why := "add it to classes.def, e.g. \"passed " + name + " : asks\""
			if mustBeNamed(name) {
				why = "its name speaks of memory or work: " + why
			}
			r.Findings = append(r.Findings, name+": no class: "+why)
		case e == nil:
			continue
		default:
			for _, p := range patterns {
				if other := t.families[p]; other.Class != e.Class {
					r.Findings = append(r.Findings, fmt.Sprintf("%s: line %d of classes.def says %s, line %d says %s: name it on a line of its own", name, e.Line, e.Class, other.Line, other.Class))
				}
			}
			if rows[e.Line] == nil {
				rows[e.Line] = &Row{Entry: e}
			}
			rows[e.Line].Names = append(rows[e.Line].Names, name)
		}
		if isNVML(name) {
			r.NVML++
		} else {
			r.CUDA++
		}
	}
	for _, row := range rows {
		r.Rows = append(r.Rows, *row)
	}
	slices.SortFunc(r.Rows, func(a, b Row) int { return a.Line - b.Line })
	for _, name := range h.Replaced {
		list := cuda
		if isNVML(name) {
			list = nvml
		}
		if _, found := slices.BinarySearch(list, name); !found && len(list) > 0 {
			r.Absent = append(r.Absent, name)
		}
	}
	slices.Sort(r.Absent)
	return r
}

// Count returns how many functions of libcuda or NVML have the class.
func (r Report) Count(c Class, nvml bool) int {
	n := 0
	for _, row := range r.Rows {
		for _, name := range row.Names {
			if row.Class == c && isNVML(name) == nvml {
				n++
			}
		}
	}
	return n
}

// Since lists the functions by the oldest header that declares them.
func Since(headers []Header, names []string) string {
	headers = slices.Clone(headers)
	slices.SortFunc(headers, func(a, b Header) int { return a.Version - b.Version })
	var out strings.Builder
	left := names
	for _, h := range headers {
		var declared, rest []string
		for _, name := range left {
			if h.Declares(name) {
				declared = append(declared, name)
			} else {
				rest = append(rest, name)
			}
		}
		fmt.Fprintf(&out, "in the header of CUDA %s: %d\n", h, len(declared))
		if h.Version != headers[0].Version {
			fmt.Fprintf(&out, "  %s\n", strings.Join(declared, " "))
		}
		left = rest
	}
	fmt.Fprintf(&out, "in none of these headers: %d\n  %s\n", len(left), strings.Join(left, " "))
	return out.String()
}
