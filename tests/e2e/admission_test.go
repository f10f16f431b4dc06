// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// A job_submit.lua of a site, which has ours as a module, and a rule of its own.
const siteScript = `package.path = "/etc/slurm/?.lua;" .. package.path
local vgpu = require("vgpu_job_submit")
function slurm_job_submit(job, parts, uid)
  local rc = vgpu.submit(job, parts, uid)
  if rc ~= slurm.SUCCESS then return rc end
  if job.name == "forbidden" then
    slurm.log_user("site: no jobs of that name")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, parts, uid)
  return vgpu.modify(job, record, parts, uid)
end
return slurm.SUCCESS
`

// A cli_filter.lua of a site, likewise.
const siteFilter = `package.path = "/etc/slurm/?.lua;" .. package.path
local vgpu = require("vgpu_cli_filter")
function slurm_cli_setup_defaults(options, early) return vgpu.setup_defaults(options, early) end
function slurm_cli_pre_submit(options, offset)
  if options["job-name"] == "misnamed" then
    slurm.log_error("site: another name, please")
    return slurm.ERROR
  end
  return vgpu.pre_submit(options, offset)
end
function slurm_cli_post_submit(...) return vgpu.post_submit(...) end
return slurm.SUCCESS
`

// rulesOfPartitions is a site's vgpu_cards.lua.
const rulesOfPartitions = `return { default = 81920, cards = { sim = 81920 }, partitions = {
  debug = { defaults = { mode = "soft", mem = "10%" }, max_share = 50, modes = {"soft"} } } }
`

func TestSiteWithScriptsOfItsOwn(t *testing.T) {
	opts := oneCard
	opts.Slurm = "PartitionName=debug Nodes=ALL MaxTime=INFINITE State=UP\n"
	s := up(t, opts)
	for name, text := range map[string]string{"job_submit": siteScript, "cli_filter": siteFilter} {
		path := filepath.Join("/etc/slurm", name+".lua")
		if err := os.Rename(path, filepath.Join("/etc/slurm", "vgpu_"+name+".lua")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		// slurmctld reads a script again that is younger, by whole seconds.
		later := time.Now().Add(5 * time.Second)
		if err := os.Chtimes(path, later, later); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("/etc/slurm/vgpu_cards.lua", []byte(rulesOfPartitions), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ client, args, say string }{
		{"sbatch", "--gres=vgpu:30 --job-name=forbidden", "site: no jobs of that name"},
		{"srun", "--gres=vgpu:30 --job-name=misnamed", "site: another name"},
		{"sbatch", "--gres=vgpu:101", `vgpu: --gres=vgpu: "101"`},
		{"sbatch", "-p debug --gres=vgpu:60", `vgpu: --gres=vgpu: "60": want at most 50 in partition debug, for example --gres=vgpu:50`},
		{"srun", "-p debug --gres=vgpu:60", `want at most 50 in partition debug`},
		{"salloc", "-p debug --gres=vgpu:30 --vgpu-mode=hard", `vgpu: --vgpu-mode: "hard": want soft in partition debug`},
		{"sbatch", "-p main,debug --gres=vgpu:60", `want at most 50 in partition debug`},
	} {
		argv := append([]string{c.client}, strings.Fields(c.args)...)
		if c.client == "sbatch" {
			argv = append(argv, "--wrap")
		}
		if r := s.As(bob, append(argv, "true")...); r.Code == 0 || !strings.Contains(r.Err, c.say) {
			t.Errorf("%s %s: want a refusal with %q: %s", c.client, c.args, c.say, r)
		}
	}
	// A step by srun, where both scripts must have been at work.
	r := s.As(alice, "srun", "-p", "debug", "--gres=vgpu:30", "bash", "-c", cluster.LookScript)
	if r.Code != 0 {
		t.Fatal(r)
	}
	if got := look(t, r.Out); got.Total != 8*gib {
		t.Errorf("with the partition's default of 10 %%: saw %d bytes, want 8 GiB", got.Total)
	}
	// In another partition there is no such default, and no way in with more.
	job := s.submit(alice, "-p main --hold --gres=vgpu:60", cluster.LookScript)
	update := func(what string) cluster.Result {
		return s.As(alice, "scontrol", "update", "JobId="+strconv.Itoa(job), what)
	}
	if r := update("Partition=debug"); r.Code == 0 {
		t.Errorf("a job of 60 moved to a partition of 50: %s", r)
	}
	if r := update("Gres=vgpu:50"); r.Code != 0 {
		t.Error(r)
	}
	if r := s.As(alice, "scontrol", "release", strconv.Itoa(job)); r.Code != 0 {
		t.Fatal(r)
	}
	if got := look(t, s.completed(alice, job)); got.Total != 40*gib {
		t.Errorf("a job of 50 in the other partition: saw %d bytes, want 40 GiB", got.Total)
	}
}
