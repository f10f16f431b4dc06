// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzQueue: whatever squeue prints, only jobs with a share are shown, and no byte that
// a terminal would obey.
func FuzzQueue(f *testing.F) {
	for _, s := range []string{
		"7|ada|gres/shard:30|Resources\n", "7|ada|gres/vgpu:h200:30|Priority\n8|bob|gres/gpu:1|None\n", "7|a|b|shard|vgpu|x\n", "|||\n", "7|ada|N/A|\n",
		"7|\x1b[2J|gres/shard:1|\x9b\n", "7|ada|shard\xff|\u202e\n", strings.Repeat("1|u|shard|r\n", 12),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		jobs := parseQueue(string(text))
		if len(jobs) > bytes.Count(text, []byte("\n"))+1 {
			t.Fatalf("%d jobs", len(jobs))
		}
		var out bytes.Buffer
		if err := writeQueue(&out, paint(false), jobs); err != nil {
			t.Fatal(err)
		}
		if bad := bytes.IndexFunc(out.Bytes(), func(r rune) bool { return r != '\n' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0) }); bad >= 0 {
			t.Fatalf("byte %d of what is shown: %q", bad, out.Bytes())
		}
	})
}
