// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"strconv"
	"testing"
)

// FuzzWords: each word that is accepted has one meaning, which is written as that word
// or a simpler one and read the same again; every other is a mistake that says what is wanted.
func FuzzWords(f *testing.F) {
	for _, s := range []string{
		"hard", "soft", "soft:80", "soft:100", "soft:0", "soft:", "hard:1", "off:", "Soft:80", "soft:080", "soft:1e1", "high", "normal", "low", "binpack",
		"spread", "topology", "exclusive", "time", "mps", "1", "16", "100", "101", "4294967295", "4294967296", "00", "-1", "+1", " 1", "1 ", "٣", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		mistake := func(err error) {
			var value *ValueError
			if !errors.As(err, &value) {
				t.Fatalf("%q: %v is a %T", s, err, err)
			}
		}
		if mode, ceiling, err := ParseMode(s); err != nil {
			mistake(err)
		} else if again, same, err := ParseMode(FormatMode(mode, ceiling)); err != nil || again != mode || same != ceiling || ceiling >= 100 {
			t.Fatalf("%q is %s %d, written %q, read %s %d, %v", s, mode, ceiling, FormatMode(mode, ceiling), again, same, err)
		}
		if p, err := ParsePriority(s); err != nil {
			mistake(err)
		} else if string(p) != s {
			t.Fatalf("priority %q is %q", s, p)
		}
		if p, err := ParsePolicy(s); err != nil {
			mistake(err)
		} else if string(p) != s {
			t.Fatalf("policy %q is %q", s, p)
		}
		if e, err := ParseEngine(s); err != nil {
			mistake(err)
		} else if string(e) != s {
			t.Fatalf("engine %q is %q", s, e)
		}
		if n, err := ParsePercent(s); err == nil && (n < 1 || n > 100 || s != strconv.FormatUint(uint64(n), 10)) {
			t.Fatalf("percentage %q is %d", s, n)
		}
		if n, err := ParseCount(s, 1000); err == nil && (n < 1 || n > 1000 || s != strconv.FormatUint(uint64(n), 10)) {
			t.Fatalf("count %q is %d", s, n)
		}
	})
}
