// SPDX-License-Identifier: Apache-2.0

package process

import (
	"io"
	"strings"
	"testing"
)

// A program of the user's can print without an end; os/exec copies as io.Copy does.
func TestLittleIsKeptOfWhatAProgramPrints(t *testing.T) {
	const most = 4 << 10
	out := Output{Most: most}
	n, err := io.Copy(&out, strings.NewReader(strings.Repeat("x", 10*most)))
	if err != nil || n != 10*most || len(out.String()) != most {
		t.Errorf("%d bytes taken, %d kept, %v; want all taken and %d kept", n, len(out.String()), err, most)
	}
}
