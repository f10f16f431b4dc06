// SPDX-License-Identifier: Apache-2.0

// Package xid has NVIDIA's catalog of XIDs: the errors of a card that the driver reports.
package xid

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
)

//go:embed catalog.tsv
var catalog string

// entry is one XID.
type entry struct {
	number uint32
	name   string // in the driver's source
	action string // that NVIDIA advises at once; "": none is stated
}

// harmless are the actions that do not concern the card. A program of a user can provoke many of
// these XIDs. WORKFLOW_XID_45 means that a program was ended.
var harmless = []string{"RESTART_APP", "IGNORE", "WORKFLOW_XID_45"}

var entries = parse(catalog)

func parse(text string) (all []entry) {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if number, err := strconv.ParseUint(fields[0], 10, 32); err == nil && len(fields) == 3 {
			all = append(all, entry{uint32(number), fields[1], fields[2]})
		}
	}
	return all
}

// Harmless returns the XIDs that leave a card in use, in rising order. An XID that the catalog does
// not have is not among them.
func Harmless() (all []uint32) {
	for _, e := range entries {
		if slices.Contains(harmless, e.action) {
			all = append(all, e.number)
		}
	}
	return all
}

// Name is the name of an XID, "" if the catalog does not have it.
func Name(number uint64) string {
	for _, e := range entries {
		if uint64(e.number) == number {
			return e.name
		}
	}
	return ""
}
