// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"strings"
	"testing"
)

func TestCordonWantsACard(t *testing.T) {
	for line, want := range map[string]string{
		`{"op":"cordon","card":"0","reason":"fan"}`:  "",
		`{"op":"uncordon","card":"GPU-a"}`:           "",
		`{"op":"cordon"}`:                            "wants a card, e.g. 0",
		`{"op":"uncordon","reason":"fan"}`:           "wants a card, e.g. 0",
		`{"op":"cordon","card":"0","reason":"a\nb"}`: "control character",
		`{"op":"cordon","card":"a\u0000"}`:           "control character",
	} {
		_, err := DecodeRequest([]byte(line))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
