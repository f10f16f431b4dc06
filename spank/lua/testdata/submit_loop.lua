-- SPDX-License-Identifier: Apache-2.0
--
-- submit_loop.lua FOLDER...: answers the fuzz target of job_submit.lua, one job after
-- another, with the script and the cards of the folder that each job names.
--
-- Either side writes a line of lengths and then that many bytes of each field; -1 is nil.
-- A job: which folder (a digit), tres_per_node, comment, then each option as the plugin
-- sends it. The answer: status, lines for the user, lines for the log, tres_per_node and
-- comment after slurm_job_submit; the same five after slurm_job_modify, which is given
-- the accepted comment once more, against the accepted job.

local OPTIONS = {"MEM", "CORES", "CARDS", "MODE", "PRIORITY", "POLICY", "ENGINE"}
local said, logged

slurm = {
  SUCCESS = 0,
  ERROR = -1,
  log_user = function(...) said[#said + 1] = string.format(...) end,
  log_error = function(...) logged[#logged + 1] = string.format(...) end,
}

local sites = {}
for i, folder in ipairs(arg) do
  sites[i] = assert(loadfile(folder .. "/job_submit.lua"))("as a module")
end

local function read_fields()
  local head = io.read("*l")
  if not head then os.exit(0) end
  local fields, n = {}, 0
  for length in string.gmatch(head, "%S+") do
    n, length = n + 1, tonumber(length)
    if length == 0 then fields[n] = "" elseif length > 0 then fields[n] = assert(io.read(length)) end
  end
  return fields
end

local function write_fields(fields, n)
  local lengths, bytes = {}, {}
  for i = 1, n do
    lengths[i] = fields[i] and #fields[i] or -1
    bytes[#bytes + 1] = fields[i] or nil
  end
  io.write(table.concat(lengths, " "), "\n", table.concat(bytes))
  io.flush()
end

while true do
  local fields = read_fields()
  local site = sites[tonumber(fields[1])]
  local job = {tres_per_node = fields[2], comment = fields[3], spank_job_env = {}, script = "#!/bin/sh"}
  for i, name in ipairs(OPTIONS) do
    local value = fields[3 + i]
    if value then job.spank_job_env[#job.spank_job_env + 1] = "VGPU_" .. name .. "=" .. value end
  end
  local answer = {}
  said, logged = {}, {}
  answer[1] = tostring(site.submit(job, {}, 1000))
  answer[2], answer[3] = table.concat(said, "\n"), table.concat(logged, "\n")
  answer[4], answer[5] = job.tres_per_node, job.comment
  said, logged = {}, {}
  local change = {comment = job.comment}
  answer[6] = answer[1] == "0" and tostring(site.modify(change, job, {}, 1000)) or "0"
  answer[7], answer[8] = table.concat(said, "\n"), table.concat(logged, "\n")
  answer[9], answer[10] = change.tres_per_node, change.comment
  write_fields(answer, 10)
end
