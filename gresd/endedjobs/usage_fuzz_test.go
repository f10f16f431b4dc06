// SPDX-License-Identifier: Apache-2.0

package endedjobs

import (
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// FuzzComment: the word for a node's use stands once in a comment, behind what users,
// the site and other nodes have put there, which stays.
func FuzzComment(f *testing.F) {
	for _, s := range []string{
		"", "mine", "a vgpu_used(node=n2,mem_mib=1,gpu_s=0.1) b", "vgpu_used(node=n1,mem_mib=1,gpu_s=0.1)", "vgpu_used(node=N1,mem_mib=", "xvgpu_used(node=n1,)",
		"vgpu_used(node=,)vgpu_used(node=n1,vgpu_used(node=n1,x)", "\n\t vgpu_used(node=n1,\n)", "\xff é vgpu_used(node=n1,x)é",
	} {
		f.Add(s, "n1", uint64(1<<30), int64(8124e8))
	}
	f.Fuzz(func(t *testing.T, text, node string, memory uint64, took int64) {
		if strings.ContainsAny(node, "(), \t\n\v\f\r") || node == "" || node != strings.ToLower(node) {
			return // no name of a node
		}
		u := Used{JobID: 7, Node: node, Memory: gpu.Bytes(memory), GPU: time.Duration(took)}
		got := u.with(text)
		rest, is := strings.CutSuffix(got, u.word())
		if !is || u.with(got) != got {
			t.Fatalf("%q is %q, then %q", text, got, u.with(got))
		}
		for _, found := range words.FindAllStringSubmatch(rest, -1) {
			if found[1] == node {
				t.Fatalf("%q is %q", text, got)
			}
		}
		// The words of other nodes and all other text stay.
		other := words.ReplaceAllString(text, "")
		if left := words.ReplaceAllString(got, ""); strings.Join(strings.Fields(left), " ") != strings.Join(strings.Fields(other), " ") {
			t.Fatalf("of %q is left %q, want %q", text, left, other)
		}
	})
}
