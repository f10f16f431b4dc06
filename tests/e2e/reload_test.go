// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// reload writes more lines after a configuration and has gresd read it.
func (s site) reload(before, lines string) {
	s.t.Helper()
	if err := s.SetConfig(before + lines); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Gresd.Reload(); err != nil {
		s.t.Fatal(err)
	}
}

// counted waits until a metric has a value.
func (s site) counted(series string, want string) {
	s.t.Helper()
	s.eventually(shortWait, series+" is "+want, func() bool {
		for line := range strings.Lines(metrics(s.t)) {
			if strings.TrimSpace(line) == series+" "+want {
				return true
			}
		}
		return false
	})
}

// A new configuration is for new jobs; one with a mistake is for none.
func TestReloadChangesNoRunningJob(t *testing.T) {
	s := up(t, oneCard)
	first := s.Config()
	pid := s.Gresd.PID()
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mode=soft", cluster.LookScript+"\nuntil [ -e again ]; do sleep 0.1; done\n"+cluster.LookScript)
	s.running(job)
	s.eventually(shortWait, "it has looked", func() bool { return len(cluster.Looks(s.Output(alice, job))) == 1 })

	s.reload(first, "[limits]\nmodes = [\"hard\"]\nmax_mem = \"4G\"\n[defaults]\nmem = \"2G\"\n[card.default]\nmem_scaling = 2\n[log]\nlevel = \"warn\"\n")
	s.counted(`vgpu_config_reloads_total{result="done"}`, "1")
	s.counted("vgpu_config_last_reload_successful", "1")
	s.counted("vgpu_config_restart_needed", "0")
	// The card is read anew, then what it shares out is known.
	s.eventually(shortWait, "the card's memory is shared out twice", func() bool {
		status, err := s.Status()
		return err == nil && status.Cards[0].MemoryBytes == 160*gib
	})
	if got := look(t, s.completed(bob, s.submit(bob, "--gres=vgpu:10", cluster.LookScript))); got.Total != 2*gib {
		t.Errorf("a new job saw %d bytes, want the site's default of 2 GiB", got.Total)
	}
	for option, want := range map[string]string{
		"--vgpu-mode=soft": "this site allows hard", "--vgpu-mem=5G": "this site allows no more than 4 GiB",
	} {
		if r := s.As(bob, "srun", "--gres=vgpu:10", option, "true"); r.Code == 0 || !strings.Contains(r.Err, want) {
			t.Errorf("%s after the reload: want %q: %s", option, want, r)
		}
	}
	// The running job has what it had, also for new processes.
	if r := s.As(alice, "touch", "again"); r.Code != 0 {
		t.Fatal(r)
	}
	looks := cluster.Looks(s.completed(alice, job))
	if len(looks) != 2 || looks[0].Total != 24*gib || looks[1].Total != looks[0].Total || looks[1].Granted+gib < looks[0].Granted {
		t.Errorf("the running job saw %+v, want 24 GiB before and after", looks)
	}

	s.reload(first, "[limits]\nmax_mem = \"3G\"\nmaxmem = \"2G\"\n")
	s.counted(`vgpu_config_reloads_total{result="refused"}`, "1")
	s.counted("vgpu_config_last_reload_successful", "0")
	line := fmt.Sprintf("vgpu.toml:%d: limits.maxmem: unknown key, did you mean limits.max_mem?", strings.Count(first, "\n")+3)
	if !s.shows("status", "problem: configuration: ", line) || !strings.Contains(s.Gresd.LogFrom(0), line) {
		t.Errorf("want %q in: %s", line, s.As("root", "vgpuctl", "status"))
	}
	if r := s.As("root", "vgpuctl", "check-config"); r.Code != 1 || !strings.Contains(r.Err, line) {
		t.Errorf("check-config: %s", r)
	}
	if r := s.As(bob, "srun", "--gres=vgpu:10", "--vgpu-mem=4G", "true"); r.Code != 0 {
		t.Errorf("the old limit of 4G is not in force: %s", r)
	}

	s.reload(first, "[metrics]\nlisten = \"127.0.0.1:9999\"\n")
	s.counted(`vgpu_config_reloads_total{result="done"}`, "2")
	s.counted("vgpu_config_restart_needed", "1")
	if !s.shows("status", "new values wait for systemctl restart gresd: metrics.listen") || s.shows("status", "mistake") {
		t.Error(s.As("root", "vgpuctl", "status"))
	}
	if s.Gresd.PID() != pid || !s.Gresd.Alive() {
		t.Error("gresd was started anew")
	}
}
