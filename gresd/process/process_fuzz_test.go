// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"strings"
	"testing"
)

// FuzzDaemonProcess: what /proc says of a process, whose user has chosen its name and its
// environment: neither makes it another process, or another user's.
func FuzzDaemonProcess(f *testing.F) {
	for _, s := range []string{"sh", "a) S 1 1 1 0 -1 (b", ") Z 1 1 1", "", "\n) R 1", "Uid:\t0"} {
		f.Add(s, 5, uint64(4242), uint32(1000))
	}
	f.Fuzz(func(t *testing.T, name string, parent int, start uint64, uid uint32) {
		if strings.Contains(name, "\x00") || len(name) > 64 {
			return
		}
		stat := fmt.Sprintf("77 (%s) S %d 70 71 0 -1 4194304 1 1 0 0 0 0 0 0 20 0 1 0 %d 1 1\n", name, parent, start)
		want := Stat{Name: name, Parent: parent, Group: 70, Session: 71, Start: start}
		if got, ok := ParseStat([]byte(stat)); !ok || got != want {
			t.Fatalf("%q: %+v, %v", stat, got, ok)
		}
		_, _ = ParseStat([]byte(name))
		// The kernel writes line ends in names as \n.
		status := fmt.Sprintf("Name:\t%s\nUmask:\t0022\nUid:\t%d\t0\t0\t0\n", strings.NewReplacer("\\", `\\`, "\n", `\n`).Replace(name), uid)
		if got, ok := ParseUID([]byte(status)); !ok || got != uid {
			t.Fatalf("%q: %d, %v", status, got, ok)
		}
	})
}
