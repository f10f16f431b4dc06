// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed xids.tsv
var xidCatalog string

// xid is an error of a card that the driver reports, from NVIDIA's catalog.
type xid struct {
	number uint32
	name   string // in the driver's source
	action string // NVIDIA's advice; "": none
}

var xids = sync.OnceValue(func() (all []xid) {
	for line := range strings.Lines(xidCatalog) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if number, err := strconv.ParseUint(fields[0], 10, 32); err == nil && len(fields) == 3 {
			all = append(all, xid{uint32(number), fields[1], fields[2]})
		}
	}
	return all
})

// harmless are the actions that do not concern the card. A user's program can provoke many of these
// XIDs. WORKFLOW_XID_45 means that a program was ended.
var harmless = []string{"RESTART_APP", "IGNORE", "WORKFLOW_XID_45"}

// HarmlessXIDs returns the XIDs that leave a card in use, in rising order. An XID that the catalog
// does not have is not harmless.
func HarmlessXIDs() (all []uint32) {
	for _, x := range xids() {
		if slices.Contains(harmless, x.action) {
			all = append(all, x.number)
		}
	}
	return all
}

// XIDName returns the name of an XID; "": the catalog does not have it.
func XIDName(number uint64) string {
	for _, x := range xids() {
		if uint64(x.number) == number {
			return x.name
		}
	}
	return ""
}
