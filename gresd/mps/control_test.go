// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"io"
	"strings"
	"testing"
)

// A program of the user's can print without an end; os/exec copies as io.Copy does.
func TestLittleIsKeptOfWhatAProgramPrints(t *testing.T) {
	var out limited
	n, err := io.Copy(&out, strings.NewReader(strings.Repeat("x", 10*mostOutput)))
	if err != nil || n != 10*mostOutput || len(out.String()) != mostOutput {
		t.Errorf("%d bytes taken, %d kept, %v; want all taken and %d kept", n, len(out.String()), err, mostOutput)
	}
}
