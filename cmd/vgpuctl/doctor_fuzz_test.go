// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/doctor"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
)

// FuzzProbe: what the doctor's child prints, with the library and the driver in it. An
// answer is taken whole or not at all, no more of it is kept than an answer can have, and
// what is told of it is one line that commands no terminal.
func FuzzProbe(f *testing.F) {
	for _, s := range []string{
		`{"by_name":1073741824,"by_address":1073741824}`, `{"by_name":1073741824,"by_address":0}` + "\n", `{"by_name":-1}`, `{"by_name":1e300}`, ``, `null`, `[]`,
		`{"by_name":1}{"by_name":2}`, `{"BY_NAME":7,"by_name":8,"x":[{}]}`, "vgpu: hello\n" + `{"by_name":1}`, "\x1b]0;x\x07", `{"by_name":18446744073709551616}`,
	} {
		for _, said := range []string{"", "ERROR: ld.so: object '/l' cannot be preloaded: ignored.\n", "\x1b[2J\u009b\xff a\r\n\tb"} {
			f.Add([]byte(s), said, false)
			f.Add([]byte(s), said, true)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, said string, fails bool) {
		out := process.Output{Most: mostSaid}
		for part := text; ; part = part[min(len(part), 100):] {
			if n, err := out.Write(part[:min(len(part), 100)]); n != min(len(part), 100) || err != nil {
				t.Fatalf("%d bytes taken, %v", n, err)
			}
			if len(part) <= 100 {
				break
			}
		}
		if kept := len(out.String()); kept != min(len(text), mostSaid) {
			t.Fatalf("%d bytes kept of %d", kept, len(text))
		}
		var failed error
		if fails {
			failed = errors.New("exit status 1")
		}
		got, err := probedOf(out.String(), said, failed)
		if wrong := fails || strings.Contains(said, "ld.so"); err == nil && wrong {
			t.Fatalf("%+v is taken from a child that says %q, %v", got, said, failed)
		}
		if err != nil && got != (doctor.Probed{}) {
			t.Fatalf("%+v beside %v", got, err)
		}
		if err == nil {
			again, _ := json.Marshal(got)
			if same, err := probedOf(string(again), "", nil); err != nil || same != got {
				t.Fatalf("%+v, then %+v, %v", got, same, err)
			}
			return
		}
		var line bytes.Buffer
		writeFinding(&line, paint(false), told(doctor.Finding{Status: doctor.Fail, Check: "library", Message: err.Error()}))
		if text, ends := strings.CutSuffix(line.String(), "\n"); !ends || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("a terminal obeys %q", line.String())
		}
	})
}
