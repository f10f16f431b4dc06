// SPDX-License-Identifier: Apache-2.0

// Package lua runs the tests of the scripts in etc/slurm, so that one runner
// counts them all.
package lua

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestLua(t *testing.T) {
	if out, err := exec.Command("./check.sh").CombinedOutput(); err != nil {
		t.Errorf("check.sh: %v\n%s", err, out)
	}
}

// The script in docs/migration.md that keeps SoftMig's names, as it stands there.
func TestScriptOfTheMigrationGuide(t *testing.T) {
	guide, err := os.ReadFile("../../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(guide), "```lua\n")
	script, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/migration.md has no Lua")
	}
	ours, err := filepath.Abs("../../etc/slurm/job_submit.lua")
	if err != nil {
		t.Fatal(err)
	}
	script = strings.Replace(script, "/usr/share/slurm-vgpu/job_submit.lua", ours, 1)
	path := filepath.Join(t.TempDir(), "job_submit.lua")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	const run = `
slurm = {SUCCESS = 0, ERROR = -1, log_user = print, log_error = print}
assert(dofile(arg[1]) == 0)
for asked, want in pairs({
  ["gres:gpu:l40s.4:1"] = "gres:shard:l40s:25", ["gres/gpu:l40s.2:1"] = "gres/shard:l40s:50",
  ["gres/gpu:l40s.8=3"] = "gres/shard:l40s=37", ["gres:gpu:l40s.4"] = "gres:shard:l40s:25",
  ["gres:gpu:l40s:1"] = "gres:gpu:l40s:1", ["gres:vgpu:30,fpga:1"] = "gres:shard:30,fpga:1",
}) do
  local job = {tres_per_node = asked}
  local rc = slurm_job_submit(job, {}, 1000)
  assert(rc == 0 and job.tres_per_node == want, asked .. " became " .. tostring(job.tres_per_node) .. ", want " .. want)
end
local job = setmetatable({}, {__newindex = function(_, field, value)
  assert(type(value) == "string", "Slurm takes no " .. type(value) .. " for " .. field)
end})
assert(slurm_job_modify(job, {}, {}, 1000) == 0)
assert(slurm_job_submit(job, {}, 1000) == 0 and job.tres_per_node == nil)
`
	harness := filepath.Join(t.TempDir(), "run.lua")
	if err := os.WriteFile(harness, []byte(run), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("lua5.3", harness, path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
