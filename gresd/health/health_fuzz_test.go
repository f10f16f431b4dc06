// SPDX-License-Identifier: Apache-2.0

package health

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
)

// FuzzCardsFile: the state of the cards is read as it was written, or not at all: a
// card that is out of use must not come back by a torn file.
func FuzzCardsFile(f *testing.F) {
	for _, s := range []string{
		`{"version":1,"cards":{}}`, `{"version":1,"cards":{"GPU-1":{}}}`, `{"version":1}`, `{"version":2,"cards":{}}`, `{}`, `null`, `[]`, ``, `{"version":1,"cards":null}`,
		`{"version":1,"cards":{"GPU-1":{"state":"cordoned","reason":"\u001b[2J","since":"2026-01-01T00:00:00Z"}}}`, `{"version":1,"cards":{"":{"counters":{"x":-1}}}}`,
	} {
		f.Add([]byte(s))
	}
	path := filepath.Join(f.TempDir(), "cards.json")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		first, err := load(path)
		if err != nil {
			return
		}
		if first.Cards == nil {
			t.Fatal("read, but nothing")
		}
		if err := atomicfile.WriteJSON(path, first); err != nil {
			t.Fatalf("read, but cannot be written: %v", err)
		}
		again, err := load(path)
		if err != nil || !reflect.DeepEqual(first, again) {
			t.Fatalf("%v: %+v became %+v", err, first, again)
		}
	})
}
