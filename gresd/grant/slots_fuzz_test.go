// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"strings"
	"testing"
)

// FuzzSlots: the words of the child, which runs as the job's user, are read as gresd
// writes them, or refused.
func FuzzSlots(f *testing.F) {
	for _, s := range []string{"0:1", "4095:18446744073709551615 7:9", "", "4294967296:1", "1", ":", "1:-1", "1:2:3", "1:2:left", "+1:1", "\x001:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		words := strings.Fields(text)
		dead, err := parseSlots(words)
		if err != nil {
			return
		}
		if len(dead) != len(words) {
			t.Fatalf("%q: %d slots", words, len(dead))
		}
		for i, slot := range dead {
			again, err := parseSlots([]string{wordOf(slot)})
			if err != nil || again[0] != slot {
				t.Fatalf("%q: %+v, then %+v, %v", words[i], slot, again, err)
			}
		}
	})
}
