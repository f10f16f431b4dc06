-- SPDX-License-Identifier: Apache-2.0
--
-- Runs etc/slurm/cli_filter.lua against a slurm of its own making.
-- Usage: lua cli_filter_test.lua, from this folder, with any Lua from 5.1 on.

local failures, checks, logged = 0, 0, {}

local function check(ok, format, ...)
  checks = checks + 1
  if ok then return end
  failures = failures + 1
  io.stderr:write(string.format(format, ...), "\n")
end

slurm = {
  SUCCESS = 0,
  ERROR = -1,
  log_error = function(...) logged[#logged + 1] = string.format(...) end,
  log_info = function(...) logged[#logged + 1] = string.format(...) end,
}
check(dofile("../../etc/slurm/cli_filter.lua") == 0, "loading must return SUCCESS")

local in_job
local real_getenv = os.getenv
os.getenv = function(name) -- luacheck: ignore
  if name == "SLURM_JOB_ID" then return in_job end
  return real_getenv(name)
end

local function filter(options)
  logged = {}
  return slurm_cli_pre_submit(options, 0)
end

-- gres of srun, the expected gres and comment.
for _, c in ipairs({
  {"gres:vgpu:30", "gres:shard:30"},
  {"gres/vgpu:h200:30", "gres/shard:h200:30"},
  {"gres/vgpu=30", "gres/shard:30"},
  {"vgpu:30", "shard:30"},
  {"gres:nic:1,gres:vgpu:30", "gres:nic:1,gres:shard:30"},
  {"gres:vgpu:200", "gres:gpu:2", "vgpu(share=200)"},
  {"gres:vgpu:h200:1600", "gres:gpu:h200:16", "vgpu(share=1600)"},
  -- for job_submit.lua to refuse, with the words that were typed
  {"gres:vgpu:0", "gres:vgpu:0"},
  {"gres:vgpu:101", "gres:vgpu:101"},
  {"gres:vgpu:1700", "gres:vgpu:1700"},
  {"gres:vgpu:-5", "gres:vgpu:-5"},
  {"gres:vgpu", "gres:vgpu"},
  {"gres:vgpu:x", "gres:vgpu:x"},
  {"gres:vgpu:30,gres:gpu:1", "gres:vgpu:30,gres:gpu:1"},
  {"gres:vgpu:30,gres:vgpu:20", "gres:vgpu:30,gres:vgpu:20"},
  {"gres:vgpus:30", "gres:vgpus:30"},
  {"gres:gpu:2", "gres:gpu:2"},
}) do
  local options = {type = "srun", gres = c[1]}
  check(filter(options) == 0, "%s: refused", c[1])
  check(options.gres == c[2], "%s: got %s, want %s", c[1], options.gres, c[2])
  check(options.comment == c[3], "%s: got comment %s, want %s", c[1], tostring(options.comment), tostring(c[3]))
end

local options = {type = "srun", gres = "gres:vgpu:200", comment = "night"}
filter(options)
check(options.comment == "night vgpu(share=200)", "comment: %s", options.comment)

options = {type = "srun", ["tres-per-task"] = "cpu=2,gres/vgpu=30"}
filter(options)
check(options["tres-per-task"] == "cpu=2,gres/shard:30", "per task: %s", options["tres-per-task"])

for _, command in ipairs({"sbatch", "salloc"}) do
  options = {type = command, gres = "gres:vgpu:30"}
  check(filter(options) == 0 and options.gres == "gres:vgpu:30", "%s is left to the server", command)
end

-- Options without a share are told apart from those with one.
local spank = {vgpu = {["vgpu-mem"] = "8G"}, other = {x = "1"}}
for _, command in ipairs({"sbatch", "salloc", "srun"}) do
  check(filter({type = command, spank = spank}) == -1 and #logged == 1, "%s: option without a share", command)
  check(string.find(logged[1] or "", 'vgpu: --vgpu-mem: "8G": want also a share', 1, true), "line: %s",
    tostring(logged[1]))
  for name, list in pairs({gres = "gres:shard:20", gpus = "2", ["gpus-per-node"] = "1",
    ["tres-per-task"] = "gres/vgpu=10"}) do
    check(filter({type = command, spank = spank, [name] = list}) == 0, "%s with %s", command, name)
  end
end
check(slurm_cli_pre_submit({type = "sbatch", spank = spank}, 1) == 0, "options of an earlier component")
check(filter({type = "srun", spank = {other = {x = "1"}}}) == 0, "options of other plugins")

-- Slurm's clients know these of whole GPUs alone, and say no reason.
for option, want in pairs({
  ["cpus-per-gpu"] = '--cpus-per-gpu: "4": want --cpus-per-task beside a share, for example --cpus-per-task=4',
  ["mem-per-gpu"] = '--mem-per-gpu: "4": want --mem beside a share', ["gpu-freq"] = '--gpu-freq: "4": want no frequency',
}) do
  for _, command in ipairs({"sbatch", "salloc", "srun"}) do
    check(filter({type = command, gres = "gres:vgpu:30", [option] = "4"}) == -1
      and string.find(logged[1] or "", want, 1, true), "%s --%s: %s", command, option, tostring(logged[1]))
    check(filter({type = command, gres = "gres:vgpu:200", [option] = "4"}) == 0, "%s --%s: whole cards", command, option)
    check(filter({type = command, gres = "gres:vgpu:30", [option] = "unset"}) == 0, "%s --%s: unset", command, option)
  end
end

-- srun --jobid starts a step; the others have no such option, and 22.05 says unset.
check(filter({type = "srun", spank = spank, jobid = "5"}) == 0, "a step of another job with options")
check(logged[1] == "vgpu: --vgpu-mem: no effect: a step has the limits of its job 5; give it to sbatch or salloc"
  and #logged == 1, "an option of a step: %s", tostring(logged[1]))
check(filter({type = "srun", jobid = "5"}) == 0 and #logged == 0, "a step of another job")
check(filter({type = "sbatch", spank = {vgpu = {["vgpu-mem"] = "none"}}}) == 0, "an option that is taken back")
options = {type = "srun", gres = "gres:vgpu:200", jobid = "5"}
filter(options)
check(options.gres == "gres:gpu:2" and options.comment == nil, "a step of another job: whole cards")
check(filter({type = "srun", spank = spank, jobid = "unset"}) == -1, "a job whose id is unset")
check(filter({type = "sbatch", spank = spank, jobid = "5"}) == -1, "sbatch starts no step")

-- In a job: a step inherits options, and cannot comment.
in_job = "5"
check(filter({type = "srun", spank = spank}) == 0 and #logged == 0, "a step with inherited options")
check(filter({type = "sbatch", spank = spank}) == -1, "a new job from within a job")
options = {type = "srun", gres = "gres:vgpu:200"}
filter(options)
check(options.gres == "gres:gpu:2" and options.comment == nil, "a step of whole cards")

print(string.format("%d checks, %d failed", checks, failures))
os.exit(failures == 0 and 0 or 1)
