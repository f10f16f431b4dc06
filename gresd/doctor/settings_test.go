// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
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
		checkSettings(f, config.MPS{Auto: true, Trust: config.TrustAccount}, func(s Status, message, remedy string) {
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
