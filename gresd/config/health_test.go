// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
	"testing"
)

func TestHealthAndAudit(t *testing.T) {
	c, err := parse("version = 1\n[health]\naction = \"drain\"\nignore_xids = [13, 94]\nclean_probes = 0\n" +
		"[audit]\nunregistered = \"kill\"\nexceeded = \"ignore\"\nstrangers = \"ignore\"\n")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Health.Ignored(), []uint64{13, 94}) || c.Health.CleanProbes != 0 ||
		c.Health.Action != HealthDrain || c.Audit.Unregistered != AuditKill {
		t.Errorf("got %+v, %+v", c.Health, c.Audit)
	}
	if d := Default(); slices.Contains(d.Health.IgnoreXIDs, 79) || slices.Contains(d.Health.IgnoreXIDs, 109) ||
		!slices.Contains(d.Health.IgnoreXIDs, 31) || !slices.Contains(d.Health.IgnoreXIDs, 70) || d.Audit.Unregistered != AuditReport {
		t.Errorf("defaults %+v, %+v", d.Health, d.Audit)
	}
	for text, want := range map[string]string{
		"[health]\naction = \"reset\"":      `health.action: "reset": want "cordon"`,
		"[health]\nignore_xids = [0]":       "health.ignore_xids: [0]: want the numbers",
		"[health]\nignore_xids = [\"13\"]":  "a list of whole numbers",
		"[health]\nignore_xids = [-1]":      "a list of whole numbers",
		"[health]\nclean_probes = 1000001":  "want 0 to 1000000",
		"[audit]\nunregistered = \"drain\"": `want "report", "kill" or "ignore", for example unregistered = "report"`,
		"[audit]\nexceeded = \"\"":          `for example exceeded = "report"`,
		"[audit]\nstrangers = \"kill\"":     `want "report" or "ignore", for example strangers = "report"`,
	} {
		if _, err := parse("version = 1\n" + text + "\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// XIDs of programs take no card from others; those of a broken card do.
func TestXIDsOfPrograms(t *testing.T) {
	ignored := Default().Health.Ignored()
	for _, xid := range []uint64{8, 13, 31, 32, 43, 45, 66, 68, 69, 88, 94, 100, 137} {
		if !slices.Contains(ignored, xid) {
			t.Errorf("XID %d is not ignored", xid)
		}
	}
	for _, xid := range []uint64{46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 154} {
		if slices.Contains(ignored, xid) {
			t.Errorf("XID %d is ignored", xid)
		}
	}
}
