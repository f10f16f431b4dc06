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
		n := &node{slurm: slurm.ParseShown("SLURM_VERSION = 24.11.5\nSelectType = select/cons_tres\nGresTypes = gpu,shard,vgpu\n" + text)}
		n.cfg.MPS.DefaultEngine, n.cfg.MPS.Trust = gpu.Auto, config.TrustAccount
		if n.slurm.get("AccountingStorageEnforce") == "" {
			n.slurm["accountingstorageenforce"] = "associations"
		}
		got := 0
		for _, f := range checkNamed("slurm").findings(n) {
			if f.Status == Pass {
				continue
			}
			got++
			if f.Status != Warn || f.Message == "" || f.Remedy == "" {
				t.Errorf("%q: %+v", text, f)
			}
		}
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
		n := &node{settings: slurm.ParseShown(shown)}
		n.cfg.Placement.By = c.mode
		for _, f := range checkNamed("lua").findings(n) {
			if f.Status != c.want {
				t.Errorf("%+v: %+v", c, f)
			}
		}
	}
}
