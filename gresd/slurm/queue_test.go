// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"slices"
	"strings"
	"testing"
)

func TestSharesOfAQueue(t *testing.T) {
	const text = `5|4_1|RUNNING|gpu[01-02,7]|None|gres:shard:30|(null)
6|6|RUNNING|n1|None|gres:gpu:1|(null)
7|7|RUNNING|n1|None|gres:gpu:2|vgpu(mode=soft)
8|8|PENDING||Resources|gres:vgpu:h200:30|a | comment
99|forged|RUNNING|n9
9|9|RUNNING|n[1|None|gres:shard:30|(null)
`
	jobs := parseShares(text)
	var got []string
	for _, j := range jobs {
		got = append(got, strings.Join(append([]string{j.Name, j.State, j.Reason}, j.Nodes...), " "))
	}
	want := []string{"4_1 RUNNING None gpu01 gpu02 gpu7", "7 RUNNING None n1", "8 PENDING Resources"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Whatever is named by a list is in it.
func TestHostlistsAreExpanded(t *testing.T) {
	for list, want := range map[string]string{
		"(null)":               "",
		"n1":                   "n1",
		"n1,gpu[01-03,7]":      "n1 gpu01 gpu02 gpu03 gpu7",
		"r[1-2]c[08-10]-ib":    "r1c08-ib r1c09-ib r1c10-ib r2c08-ib r2c09-ib r2c10-ib",
		"n[1-3000],m[1-3000]":  "error",
		"n[0-4294967295]":      "error",
		"n[5-1]":               "error",
		"n[1-":                 "error",
		"a[1-64]b[1-64]c[1-2]": "error",
	} {
		names, err := hosts(list, "")
		got := strings.Join(names, " ")
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: got %q, %v; want %q", list, got, err, want)
		}
		for _, name := range names {
			if in, err := HostlistContains(list, name); !in || err != nil {
				t.Errorf("%s is not in %s: %v", name, list, err)
			}
		}
	}
}
