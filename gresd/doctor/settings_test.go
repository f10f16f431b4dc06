// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"maps"
	"testing"
)

func TestSettings(t *testing.T) {
	for _, c := range []struct {
		text string
		want map[string]string
	}{
		{"ClusterName = c # x=y\n", map[string]string{"clustername": "c"}},
		{"Prolog=/x\nProlog=/y\n", map[string]string{"prolog": "/x,/y"}},
		{"Prolog=\"/x\"\nProlog=\"/y\"\n", map[string]string{"prolog": "/x,/y"}},
		{"Prolog=/x\nProlog=(null)\n", map[string]string{"prolog": "/x"}},
		{"Epilog = (null)\nTaskProlog=\"(null)\n", map[string]string{"epilog": "", "taskprolog": ""}},
		{"SlurmctldHost=a\nSlurmctldHost=b\n", map[string]string{"slurmctldhost": "b"}},
	} {
		got := map[string]string{}
		parseSettings(c.text, got)
		if !maps.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}
