// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"
)

// An earlier gresd wrote names alone.
func TestNodesOfAnEarlierGresd(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nodes.json"), []byte(`{"n1":"/a"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := LoadNames(dir)
	if err != nil || n.All()["n1"] != "/a" || n.Cluster() != "" {
		t.Errorf("%v, %q, %v", n.All(), n.Cluster(), err)
	}
}

// FuzzNodesFile: node names that an earlier gresd has learned are read as it wrote
// them, or not at all; what a Prolog says of a node then counts, also after a restart.
func FuzzNodesFile(f *testing.F) {
	for _, s := range []string{
		``, `null`, `{}`, `[]`, `{"n1":"/etc/slurm/slurm.conf"}`, `{"n1":"","n2":"/b"}`, `{"n1":3,"n2":"/b"}`, `{"":"/x"}`, `{"n1":"/a","n1":"/b"}`, `{"n1":"/a"`, `{"\u001b[2J":"\ud800"}`,
		`{"cluster":"a","nodes":{"n1":"/a"}}`, `{"cluster":"a","nodes":null}`, `{"nodes":"/a"}`,
	} {
		f.Add([]byte(s), "n1", "/run/slurm/conf/slurm.conf")
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte, name, conf string) {
		if !utf8.ValidString(name) || !utf8.ValidString(conf) {
			return // a request is JSON
		}
		if err := os.WriteFile(filepath.Join(dir, "nodes.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := LoadNames(dir)
		if err != nil {
			t.Fatal(err)
		}
		before := n.All()
		if ours, err := n.Enter(name, conf, "", func() bool { return true }); err != nil || !ours {
			t.Fatal(ours, err)
		}
		n.Leave()
		want := maps.Clone(before)
		if old, known := before[name]; name != "" && (!known || conf != "" && conf != old) {
			want[name] = conf
		}
		if got := n.All(); !maps.Equal(got, want) {
			t.Fatalf("%q, and %q at %q, is %q", before, name, conf, got)
		}
		again, err := LoadNames(dir)
		if err != nil || !maps.Equal(again.All(), want) {
			t.Fatalf("after a restart %q, %v; want %q", again.All(), err, want)
		}
		if names := again.List(); len(names) != len(want) || !slices.IsSorted(names) {
			t.Fatalf("names %q of %q", names, want)
		}
	})
}
