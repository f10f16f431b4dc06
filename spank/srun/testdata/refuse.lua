-- SPDX-License-Identifier: Apache-2.0
--
-- lua refuse.lua JOB_SUBMIT_LUA GRES [OPTION=VALUE ...]: what job_submit.lua
-- tells the user of such a job, without its sizes of cards.
slurm = {SUCCESS = 0, ERROR = -1, log_error = function() end}
slurm.log_user = function(...) print(string.format(...)) end
local open = io.open
io.open = function(path, mode)
  if string.find(path, "vgpu_cards.lua", 1, true) then return nil end
  return open(path, mode)
end
dofile(arg[1])
local job = {tres_per_node = "gres:" .. arg[2], spank_job_env = {}}
for i = 3, #arg do
  local name, value = string.match(arg[i], "^(%w+)=(.*)$")
  table.insert(job.spank_job_env, "VGPU_" .. string.upper(name) .. "=" .. value)
end
slurm_job_submit(job, {}, 1000)
