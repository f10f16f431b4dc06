-- SPDX-License-Identifier: Apache-2.0
--
-- cli_filter.lua: runs inside sbatch, salloc and srun, before they talk to
-- slurmctld.
--
-- Install as /etc/slurm/cli_filter.lua on every host that has a slurm.conf, nodes
-- included, with CliFilterPlugins=lua: without it no srun starts there. It is needed
-- because srun asks twice, once for the job and once for its step: job_submit.lua
-- sees the first only, and a step that asks for vgpu in a job that holds shards is
-- refused. So srun's list is rewritten here. Checks stay in job_submit.lua, which
-- nobody can leave out; what is not well formed goes there unchanged. Where gresd
-- places (placement = "gresd" in vgpu_cards.lua) this file is not wanted.
--
-- A site with a cli_filter.lua of its own links this file under another name,
--   ln -s /usr/share/slurm-vgpu/cli_filter.lua /etc/slurm/vgpu_cli_filter.lua
-- and calls it as a module: local vgpu = require("vgpu_cli_filter"), and then
-- vgpu.pre_submit(options, offset) and the like (see job_submit.lua).

local UNITS = 100
local MAX_CARDS = 16
local OPTIONS = {"mem", "cores", "cards", "mode", "priority", "policy", "engine"}

-- vgpu[:type]:N as slurmctld can place it; nil when word is something else.
-- Second: the share, where the new word no longer shows that it is one.
local function rewritten(word)
  local prefix, rest = string.match(word, "^(gres[:/])(.*)$")
  if not prefix then prefix, rest = "", word end
  local card_type, count = string.match(rest, "^vgpu(:?[^:=]*)[:=]([1-9]%d*)$")
  if card_type ~= "" and string.sub(card_type or "", 1, 1) ~= ":" then return nil end
  local share = tonumber(count or "")
  if not share or share > MAX_CARDS * UNITS then return nil end
  if share <= UNITS then return string.format("%sshard%s:%d", prefix, card_type, share) end
  if share % UNITS ~= 0 then return nil end
  return string.format("%sgpu%s:%d", prefix, card_type, share / UNITS), share
end

-- Rewrites a list of GRES. Returns the list, and the share as above. A list
-- with more than one kind of GPU in it stays, for job_submit.lua to refuse.
local function rewrite(list)
  local words, share, gpus = {}, nil, 0
  for word in string.gmatch(list, "[^,]+") do
    local new, whole = rewritten(word)
    if new or string.find(word, "gpu") or string.find(word, "shard") then gpus = gpus + 1 end
    words[#words + 1] = new or word
    share = share or whole
  end
  if gpus > 1 then return list, nil end
  return table.concat(words, ","), share
end

local function asks_for_cards(options)
  for _, name in ipairs({"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"}) do
    if options[name] then return true end
  end
  for _, name in ipairs({"gres", "tres-per-task"}) do
    local list = options[name] or ""
    if string.find(list, "gpu") or string.find(list, "shard") then return true end
  end
  return false
end

-- The first SPANK option that was typed, "--vgpu-mem" and "8G"; nil for none. The value
-- none takes an option of the script back.
local function typed_option(options)
  for _, of_plugin in pairs(options["spank"] or {}) do
    for _, name in ipairs(OPTIONS) do
      local value = of_plugin["vgpu-" .. name]
      if value and value ~= "none" then return "--vgpu-" .. name, value end
    end
  end
end

-- A step takes its limits from its job, and inherits the options of the job
-- through the environment. One of another job has --jobid, which may say "unset".
local function is_step(options)
  if options["type"] ~= "srun" then return false end
  return os.getenv("SLURM_JOB_ID") ~= nil or string.find(options["jobid"] or "", "^%d") ~= nil
end

local function setup_defaults(_, _)
  return slurm.SUCCESS
end

local function rewrite_srun(options, step)
  for _, name in ipairs({"gres", "tres-per-task"}) do
    local list = options[name]
    if list and string.find(list, "vgpu") then
      local new, share = rewrite(list)
      options[name] = new
      if share and not step then
        local comment = options["comment"] or ""
        local space = comment ~= "" and " " or ""
        options["comment"] = string.format("%s%svgpu(share=%d)", comment, space, share)
      end
    end
  end
end

local function said(value)
  return value and value ~= "" and value ~= "0" and value ~= "unset" and value or nil
end

-- What Slurm knows of whole GPUs alone: its clients refuse it beside shards without a
-- word of why. In the words of job_submit.lua; false where nothing is wrong.
local function refused_beside(options)
  local list = rewrite((options["gres"] or "") .. "," .. (options["tres-per-task"] or ""))
  if not string.find(list, "shard") then return false end
  local cpus, mem, freq = said(options["cpus-per-gpu"]), said(options["mem-per-gpu"]), said(options["gpu-freq"])
  if cpus then
    slurm.log_error('vgpu: --cpus-per-gpu: "%s": want --cpus-per-task beside a share, for example --cpus-per-task=%s',
      cpus, cpus)
  elseif mem then
    slurm.log_error('vgpu: --mem-per-gpu: "%s": want --mem beside a share, for example --mem=%s', mem, mem)
  elseif freq then
    slurm.log_error('vgpu: --gpu-freq: "%s": want no frequency of a card that others use, or whole GPUs, '
      .. "for example --gres=gpu:1", freq)
  end
  return cpus or mem or freq
end

-- offset: which component of a het job this is. All but the first may have
-- their options from the one before.
local function pre_submit(options, offset)
  local step = is_step(options)
  if not step and (offset or 0) == 0 and not asks_for_cards(options) then
    local flag, value = typed_option(options)
    if flag then
      slurm.log_error('vgpu: %s: "%s": want also a share of a card: add for example --gres=vgpu:30, or %s=none',
        flag, tostring(value), flag)
      return slurm.ERROR
    end
  end
  if refused_beside(options) then return slurm.ERROR end
  -- In a job the plugin says it: only there can it tell what was typed from what is inherited.
  if step and not os.getenv("SLURM_JOB_ID") then
    local flag = typed_option(options)
    if flag then
      slurm.log_info("vgpu: %s: no effect: a step has the limits of its job %s; give it to sbatch or salloc",
        flag, tostring(options["jobid"]))
    end
  end
  if options["type"] == "srun" then rewrite_srun(options, step) end
  return slurm.SUCCESS
end

local function post_submit(_, _, _)
  return slurm.SUCCESS
end

-- require names the module; Slurm gives no word.
if ... then return {setup_defaults = setup_defaults, pre_submit = pre_submit, post_submit = post_submit} end

slurm_cli_setup_defaults, slurm_cli_pre_submit, slurm_cli_post_submit = setup_defaults, pre_submit, post_submit

return slurm.SUCCESS
