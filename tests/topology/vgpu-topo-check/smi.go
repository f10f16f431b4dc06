// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// smiCard is one row of nvidia-smi topo -m.
type smiCard struct {
	cells []string // by nvidia-smi's index
	cpus  string   // "": not shown
	numa  string
}

// escape is what nvidia-smi underlines its header with, on a terminal or not.
var escape = regexp.MustCompile("\x1b\\[[0-9;]*m")

var gpuName = regexp.MustCompile(`^GPU\d+$`)

// readSMI reads the output of nvidia-smi topo -m: columns between tabs, those of
// the cards first, then perhaps network cards, then affinities.
func readSMI(text string) ([]smiCard, error) {
	var header []string
	var cards []smiCard
	for line := range strings.Lines(escape.ReplaceAllString(text, "")) {
		columns := strings.Split(strings.TrimRight(line, "\r\n"), "\t")
		for i := range columns {
			columns[i] = strings.TrimSpace(columns[i])
		}
		switch {
		case header == nil && slices.Contains(columns, "GPU0"):
			header = columns
		case header != nil && gpuName.MatchString(columns[0]):
			if want := fmt.Sprintf("GPU%d", len(cards)); columns[0] != want {
				return nil, fmt.Errorf("row %s: want %s", columns[0], want)
			}
			cards = append(cards, readRow(header, columns))
		}
	}
	if len(cards) == 0 {
		return nil, errors.New("no row GPU0 below a header: want the output of nvidia-smi topo -m")
	}
	for i, c := range cards {
		if len(c.cells) != len(cards) {
			return nil, fmt.Errorf("row GPU%d has %d cells for %d cards", i, len(c.cells), len(cards))
		}
	}
	return cards, nil
}

func readRow(header, columns []string) smiCard {
	var c smiCard
	for i, name := range header {
		if i == 0 || i >= len(columns) {
			continue
		}
		switch {
		case gpuName.MatchString(name):
			c.cells = append(c.cells, columns[i])
		case name == "CPU Affinity":
			c.cpus = columns[i]
		case name == "NUMA Affinity":
			c.numa = columns[i]
		}
	}
	return c
}

// readIndex reads the output of
// nvidia-smi --query-gpu=index,uuid --format=csv,noheader: UUIDs by index.
func readIndex(text string) ([]string, error) {
	var uuids []string
	for line := range strings.Lines(text) {
		index, uuid, found := strings.Cut(strings.TrimSpace(line), ", ")
		if index == "" {
			continue
		}
		if n, err := strconv.Atoi(index); !found || err != nil || n != len(uuids) {
			return nil, fmt.Errorf("line %q: want \"%d, GPU-...\"", strings.TrimSpace(line), len(uuids))
		}
		uuids = append(uuids, uuid)
	}
	return uuids, nil
}
