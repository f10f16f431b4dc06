// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"slices"
	"strings"
	"testing"
)

func TestTheCatalogIsComplete(t *testing.T) {
	lines := 0
	for line := range strings.Lines(xidCatalog) {
		if !strings.HasPrefix(line, "#") {
			lines++
		}
	}
	if len(xids()) != lines || lines < 100 {
		t.Errorf("%d entries of %d lines", len(xids()), lines)
	}
	actions := []string{
		"RESTART_APP", "IGNORE", "RESET_GPU", "RESTART_BM", "RESTART_VM", "CONTACT_SUPPORT", "CHECK_MECHANICALS", "CHECK_UVM", "UPDATE_SWFW",
		"WORKFLOW_XID_45", "WORKFLOW_XID_48", "WORKFLOW_NVLINK_ERR", "WORKFLOW_NVLINK5_ERR", "XID_154", "",
	}
	for i, e := range xids() {
		if i > 0 && xids()[i-1].number >= e.number || e.name == "" || !slices.Contains(actions, e.action) {
			t.Errorf("entry %+v", e)
		}
	}
}

// No program of a user takes a card out of use, and a card that NVIDIA wants reset is out of use.
func TestWhichXIDsLeaveACardInUse(t *testing.T) {
	harmless := HarmlessXIDs()
	for _, xid := range []uint32{
		8, 13, 25, 31, 32, 37, 38, 39, 43, 44, 45, 60, 63, 66, 67, 68, 69, 70, 71, 72, 75, 76, 77, 80, 84, 85, 86, 92, 93, 94, 106, 107, 126, 137, 139, 141,
	} {
		if !slices.Contains(harmless, xid) {
			t.Errorf("XID %d (%s) takes a card out of use", xid, XIDName(uint64(xid)))
		}
	}
	for _, xid := range []uint32{46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 149, 154, 156, 158, 167, 171, 1, 999} {
		if slices.Contains(harmless, xid) {
			t.Errorf("XID %d (%s) leaves a card in use", xid, XIDName(uint64(xid)))
		}
	}
}

func TestXIDNames(t *testing.T) {
	for xid, want := range map[uint64]string{79: "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS", 119: "GSP_RPC_TIMEOUT", 1: "", 1<<32 + 79: ""} {
		if got := XIDName(xid); got != want {
			t.Errorf("XID %d is %q, want %q", xid, got, want)
		}
	}
}
