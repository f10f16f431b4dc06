// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"
)

// FuzzSettings: scontrol's and slurm.conf's lines; each name is told small, and no
// value has more than one line.
func FuzzSettings(f *testing.F) {
	for _, s := range []string{
		"SlurmctldHost=a\nProlog=/x\nProlog=/y # twice\n", "ClusterName = c\n", "Prolog                  = (null)\nEpilog[0] = \"/usr/sbin/vgpu-prolog\"\n",
		"=\n==\n# x=y\nA\n", "NodeName=n[1-2] Gres=gpu:2\n", "ınclude=x\nTASKPROLOG=,\r\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		values := map[string]string{}
		parseSettings(text, values)
		if len(values) > strings.Count(text, "=") {
			t.Fatalf("%d values", len(values))
		}
		for name, value := range values {
			if name != strings.ToLower(strings.TrimSpace(name)) || strings.ContainsAny(name+value, "\n#") || value == "(null)" {
				t.Fatalf("%q is %q", name, value)
			}
		}
	})
}
