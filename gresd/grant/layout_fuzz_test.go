// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"slices"
	"strings"
	"testing"
)

// FuzzPreload: the host's list of libraries, as its administrator has written it: ours
// comes once and last, all others stay as they are.
func FuzzPreload(f *testing.F) {
	const library = "/usr/lib/vgpu/libvgpu.so"
	for _, s := range []string{
		"", "/a.so\n", "/a.so:/b.so /c.so # d\n# e", library, "/a.so " + library + " # x\n\n\t\r\n" + library + ":" + library, library + ".1\n#" + library, "\x00\n\xff",
	} {
		f.Add(s)
	}
	// names is what the loader reads.
	names := func(text string) (all []string) {
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, "#")
			all = append(all, strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t:\r\n", r) })...)
		}
		return all
	}
	f.Fuzz(func(t *testing.T, host string) {
		text := preloadText(host, library)
		want := append(slices.DeleteFunc(names(host), func(n string) bool { return n == library }), library)
		if got := names(text); !slices.Equal(got, want) {
			t.Fatalf("%q is %q: %q, want %q", host, text, got, want)
		}
		if again := preloadText(text, library); again != text {
			t.Fatalf("%q, then %q", text, again)
		}
	})
}
