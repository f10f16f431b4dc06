// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// A plugin that this Slurm does not take must cost the options, not the node.
// TaskProlog then sets the limits.
func TestPluginOfAnotherReleaseIsLeftOut(t *testing.T) {
	opts := oneCard
	opts.Plugin = pluginOfAnotherRelease(t)
	s := up(t, opts) // slurmd has started, and its node is idle
	r := s.TrySbatch(alice, []string{"--gres=vgpu:30", "--vgpu-mem=8G"}, "true")
	if r.Code == 0 || !strings.Contains(r.Err, "unrecognized option") {
		t.Errorf("the plugin was loaded after all: %s", r)
	}
	if out := s.completed(bob, s.submit(bob, "", "echo fine")); out != "fine\n" {
		t.Errorf("a job without a share: %q", out)
	}
	for _, argv := range [][]string{
		{"srun", "--gres=vgpu:30", "bash", "-c", cluster.LookScript},
		{"vgpu-srun", "--gres=vgpu:30", "--vgpu-mem=24G", "bash", "-c", cluster.LookScript},
	} {
		if r := s.As(alice, argv...); r.Code != 0 {
			t.Errorf("%v: %s", argv, r)
		} else if got := look(t, r.Out); got.Total != 24*gib {
			t.Errorf("%v: saw %d bytes, want 24 GiB", argv, got.Total)
		}
	}
	if got := look(t, s.completed(alice, s.submit(alice, "--gres=vgpu:30", cluster.LookScript))); got.Total != 24*gib {
		t.Errorf("sbatch: saw %d bytes, want 24 GiB", got.Total)
	}
}

// pluginOfAnotherRelease changes a copy of the plugin into what it is for a
// Slurm that it does not know: it asks for a function that is not there, so it
// keeps the version that it was built for, which is none of today's.
func pluginOfAnotherRelease(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../build/spank/vgpu.so")
	if err != nil {
		t.Fatal(err)
	}
	const ask = "\x00slurm_api_version\x00"
	if n := bytes.Count(data, []byte(ask)); n != 1 {
		t.Fatalf("the plugin names slurm_api_version %d times, want once", n)
	}
	data = bytes.Replace(data, []byte(ask), []byte("\x00slurm_api_versioN\x00"), 1)
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Name != "plugin_version" {
			continue
		}
		in := file.Sections[s.Section]
		binary.LittleEndian.PutUint32(data[s.Value-in.Addr+in.Offset:], 10<<16|1<<8) // 10.01
		path := filepath.Join(t.TempDir(), "vgpu.so")
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Fatal("the plugin has no plugin_version")
	return ""
}
