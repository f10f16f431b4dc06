// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

func TestSettingsThatJobsWouldNotice(t *testing.T) {
	for text, want := range map[string]int{
		"PrologEpilogTimeout = 65534\nJobRequeue = 1": 0, "PrologEpilogTimeout = 30": 0, "PrologEpilogTimeout = 0": 0,
		"PrologEpilogTimeout = 10\nJobRequeue = 0": 2, "PrologTimeout = 5": 1,
		"AccountingStorageEnforce = none": 1, "AccountingStorageEnforce = associations,limits": 0,
	} {
		f := &facts{slurm.ParseShown(text)}
		if f.get("AccountingStorageEnforce") == "" {
			f.values["accountingstorageenforce"] = "associations"
		}
		got := 0
		checkSettings(f, config.MPS{DefaultEngine: gpu.Auto, Trust: config.TrustAccount}, func(s Status, message, remedy string) {
			got++
			if s != Warn || message == "" || remedy == "" {
				t.Errorf("%q: %v %q %q", text, s, message, remedy)
			}
		})
		if got != want {
			t.Errorf("%q: %d warnings, want %d", text, got, want)
		}
	}
}

// cli_filter.lua asks for shards: where gresd places, slurmctld has none.
func TestScriptsThatSlurmRuns(t *testing.T) {
	for _, c := range []struct {
		mode, filter string // what placement.by and CliFilterPlugins say
		ours         bool   // cli_filter.lua is there
		want         Status
	}{
		{config.PlacementSlurm, "lua", true, Pass},
		{config.PlacementSlurm, "lua", false, Fail},
		{config.PlacementSlurm, "(null)", true, Fail},
		{config.PlacementGresd, "(null)", false, Pass},
		{config.PlacementGresd, "(null)", true, Pass},
		{config.PlacementGresd, "lua", true, Fail},
	} {
		dir := t.TempDir()
		if c.ours {
			if err := os.WriteFile(filepath.Join(dir, "cli_filter.lua"), []byte("-- vgpu\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		shown := "SLURM_CONF = " + dir + "/slurm.conf\nSlurmctldHost[0] = elsewhere\nJobSubmitPlugins = lua\nCliFilterPlugins = " + c.filter
		n := &node{slurm: &facts{slurm.ParseShown(shown)}}
		n.cfg.Placement.By = c.mode
		checkLua(t.Context(), n, func(got Status, message, remedy string) {
			if got != c.want {
				t.Errorf("%+v: %v, %s (%s)", c, got, message, remedy)
			}
		})
	}
}
