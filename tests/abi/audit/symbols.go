// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ReadSymbols returns the sorted names with the prefix that a shared library
// exports, or that a text file lists one on a line.
func ReadSymbols(file, prefix string) ([]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read symbols: %w", err)
	}
	var all []string
	if bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
		if all, err = exports(data); err != nil {
			return nil, fmt.Errorf("read symbols of %s: %w", file, err)
		}
	} else {
		all = strings.Fields(string(data))
	}
	var names []string
	for _, name := range all {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("read symbols of %s: no name starts with %q: want the driver's library or a list of its names, e.g. /usr/lib/x86_64-linux-gnu/libcuda.so.1", file, prefix)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func exports(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	syms, err := f.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range syms {
		bind := elf.ST_BIND(s.Info)
		if s.Section != elf.SHN_UNDEF && (bind == elf.STB_GLOBAL || bind == elf.STB_WEAK) {
			names = append(names, s.Name)
		}
	}
	return names, nil
}

// Header is what one cuda.h declares.
type Header struct {
	Version int // 13000 is CUDA 13.0
	words   map[string]bool
}

var (
	headerVersion = regexp.MustCompile(`(?m)^#define CUDA_VERSION (\d+)`)
	headerWord    = regexp.MustCompile(`\bcu[A-Z][A-Za-z0-9_]*`)
	perThread     = regexp.MustCompile(`_pt[ds][sz]$`)
)

// ReadHeader reads a cuda.h.
func ReadHeader(file string) (Header, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Header{}, fmt.Errorf("read header: %w", err)
	}
	m := headerVersion.FindSubmatch(data)
	if m == nil {
		return Header{}, fmt.Errorf("read header %s: no CUDA_VERSION: want CUDA's cuda.h", file)
	}
	h := Header{words: map[string]bool{}}
	if h.Version, err = strconv.Atoi(string(m[1])); err != nil {
		return Header{}, fmt.Errorf("read header %s: %w", file, err)
	}
	for _, w := range headerWord.FindAll(data, -1) {
		h.words[string(w)] = true
	}
	return h, nil
}

func (h Header) String() string { return fmt.Sprintf("%d.%d", h.Version/1000, h.Version%1000/10) }

// Declares reports whether the header knows the function. It makes the names
// for the per-thread default stream from the others.
func (h Header) Declares(name string) bool {
	return h.words[perThread.ReplaceAllString(name, "")]
}

// Hooks are the functions of hooks.def.
type Hooks struct {
	Replaced []string        // exported in place of the driver's
	Called   map[string]bool // only called
}

// The row of a pair of functions ends in the suffix of the second one.
var hookLine = regexp.MustCompile(`(?m)^(?:CU|NV)\w*?(_USE|_PTSZ|_PTDS)?\((\w+),`)

// ReadHooks reads hooks.def.
func ReadHooks(file string) (Hooks, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Hooks{}, fmt.Errorf("read hooks: %w", err)
	}
	h := Hooks{Called: map[string]bool{}}
	for _, m := range hookLine.FindAllSubmatch(data, -1) {
		switch suffix, name := string(m[1]), string(m[2]); suffix {
		case "_USE":
			h.Called[name] = true
		case "":
			h.Replaced = append(h.Replaced, name)
		default:
			h.Replaced = append(h.Replaced, name, name+strings.ToLower(suffix))
		}
	}
	if len(h.Replaced) == 0 {
		return Hooks{}, fmt.Errorf("read hooks %s: no line CU(name, params)", file)
	}
	return h, nil
}
