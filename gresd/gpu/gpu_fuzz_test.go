// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"strconv"
	"testing"
)

// FuzzWords: each word that is accepted has one meaning, which is written as that word
// or a simpler one and read the same again.
func FuzzWords(f *testing.F) {
	for _, s := range []string{
		"hard", "soft", "soft:80", "soft:100", "soft:0", "soft:", "hard:1", "off:", "Soft:80", "soft:080", "soft:1e1", "high", "normal", "low", "binpack",
		"spread", "topology", "exclusive", "time", "mps", "1", "16", "100", "101", "4294967295", "4294967296", "00", "-1", "+1", " 1", "1 ", "٣", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		mode, ceiling, ok := ParseMode(s)
		again, same, okAgain := ParseMode(FormatMode(mode, ceiling))
		if ok && (!okAgain || again != mode || same != ceiling || ceiling >= 100) {
			t.Fatalf("%q is %s %d, written %q, read %s %d, %v", s, mode, ceiling, FormatMode(mode, ceiling), again, same, okAgain)
		}
		if n, ok := ParseCount(s, 1000); ok && (n < 1 || n > 1000 || s != strconv.FormatUint(uint64(n), 10)) {
			t.Fatalf("count %q is %d", s, n)
		}
	})
}
