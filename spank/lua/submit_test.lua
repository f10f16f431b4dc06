-- SPDX-License-Identifier: Apache-2.0
--
-- Runs etc/slurm/job_submit.lua against a slurm of its own making.
-- Usage: lua submit_test.lua, from this folder, with any Lua from 5.1 on.

local SCRIPT = "../../etc/slurm/job_submit.lua"
local FORMS = "../plugin/testdata/options.txt"

local failures, checks = 0, 0
local said, logged = {}, {}

local function check(ok, format, ...)
  checks = checks + 1
  if ok then return end
  failures = failures + 1
  io.stderr:write(string.format(format, ...), "\n")
end

-- What this machine has in /etc/slurm is not for the tests.
local open = io.open
io.open = function(path, mode) -- luacheck: ignore
  if string.find(path, "^/etc/slurm/") then return nil end
  return open(path, mode)
end

-- Loads the script as slurmctld does, with a table of cards beside it.
local folder

local function load_script(cards)
  said, logged = {}, {}
  slurm = {
    SUCCESS = 0,
    ERROR = -1,
    log_user = function(...) said[#said + 1] = string.format(...) end,
    log_error = function(...) logged[#logged + 1] = string.format(...) end,
  }
  -- The script reads the site's file at every job: it stays until the next load.
  if folder then os.execute("rm -r " .. folder) end
  folder = os.tmpname()
  os.remove(folder)
  os.execute("mkdir " .. folder .. " && cp " .. SCRIPT .. " " .. folder)
  if cards then
    local file = assert(io.open(folder .. "/vgpu_cards.lua", "w"))
    file:write(cards)
    file:close()
  end
  check(assert(loadfile(folder .. "/job_submit.lua"))() == 0, "loading must return SUCCESS")
end

local CARDS = "return { units = 100, default = 81920, cards = { h200 = 143771, a100 = 40960 } }"

-- A job of sbatch, unless it says script = false.
local function submit(job)
  said = {}
  if job.script == nil then job.script = "#!/bin/sh" end
  local rc = slurm_job_submit(job, {}, 1000)
  check(rc == 0 or #said == 1, "rc %s with %d lines for the user", tostring(rc), #said)
  return rc, said[1]
end

-- ---- what is taken ----------------------------------------------------------

-- gres, spank options, comment; then the expected list and comment.
local GOOD = {
  {"a share becomes shards", "gres:vgpu:30", {}, nil, "gres:shard:30", nil},
  {"the form of later releases", "gres/vgpu:30", {}, nil, "gres/shard:30", nil},
  {"an equals sign", "gres/vgpu=30", {}, nil, "gres/shard=30", nil},
  {"a type", "gres:vgpu:h200:30", {}, nil, "gres:shard:h200:30", nil},
  {"a type and an equals sign", "gres/vgpu:h200=30", {}, nil, "gres/shard:h200=30", nil},
  {"a whole card", "gres:vgpu:100", {}, nil, "gres:shard:100", nil},
  {"two whole cards", "gres:vgpu:h200:200", {}, nil, "gres:gpu:h200:2", "vgpu(share=200)"},
  {"other resources stay as they are", "cpu=2,gres:lustre,gres:vgpu:30,gres:nic:mlx:2", {}, nil,
    "cpu=2,gres:lustre,gres:shard:30,gres:nic:mlx:2", nil},
  {"memory above the share", "gres:vgpu:30", {MEM = "40G"}, nil, "gres:shard:50", "vgpu(share=30)"},
  {"memory within the share", "gres:vgpu:30", {MEM = "10G"}, nil, "gres:shard:30", nil},
  {"memory rounds up", "gres:vgpu:1", {MEM = "820M"}, nil, "gres:shard:2", "vgpu(share=1)"},
  {"memory of the named type", "gres:vgpu:h200:10", {MEM = "40G"}, nil, "gres:shard:h200:29",
    "vgpu(share=10)"},
  {"all memory of a card", "gres:vgpu:h200:10", {MEM = "143771M"}, nil, "gres:shard:h200:100",
    "vgpu(share=10)"},
  {"memory in percent", "gres:vgpu:30", {MEM = "55%"}, nil, "gres:shard:55", "vgpu(share=30)"},
  {"cores above the share", "gres:vgpu:30", {CORES = "60"}, nil, "gres:shard:60", "vgpu(share=30)"},
  {"cores below the share", "gres:vgpu:30", {CORES = "10"}, nil, "gres:shard:30", nil},
  {"words that change no count", "gres:vgpu:30", {MODE = "soft:80", PRIORITY = "low", POLICY = "spread"},
    nil, "gres:shard:30", nil},
  {"a card without other jobs", "gres:vgpu:30", {POLICY = "exclusive"}, nil, "gres:shard:100",
    "vgpu(share=30)"},
  {"four cards", "gres:vgpu:400", {CARDS = "4", MEM = "10%"}, nil, "gres:gpu:4", "vgpu(share=400)"},
  {"one card said aloud", "gres:vgpu:30", {CARDS = "1"}, nil, "gres:shard:30", nil},
  {"plain shards count as a share", "gres:shard:20", {MEM = "50%"}, nil, "gres:shard:50",
    "vgpu(share=20)"},
  {"one plain shard", "gres:shard", {}, nil, "gres:shard:1", nil},
  {"whole GPUs with a limit", "gres:gpu:2", {MEM = "10G"}, nil, "gres:gpu:2", "vgpu(share=200)"},
  {"a GPU of a type with a limit", "gres:gpu:h200", {MEM = "100G"}, nil, "gres:gpu:h200",
    "vgpu(share=100)"},
  {"whole GPUs are not ours", "gres:gpu:2", {}, nil, "gres:gpu:2", nil},
  {"a comment stays", "gres:vgpu:30", {MEM = "50%"}, "night run", "gres:shard:50",
    "night run vgpu(share=30)"},
  {"options in the comment", "gres:vgpu:30", {}, "a vgpu(mem=50%) b", "gres:shard:50",
    "a  b vgpu(share=30,mem=50%)"},
  {"a share in the comment is overwritten", "gres:vgpu:30", {}, "vgpu(share=99)", "gres:shard:30", ""},
  {"a lower share behind raised shards stays", "gres:shard:50", {}, "vgpu(share=30,mem=50%)",
    "gres:shard:50", "vgpu(share=30,mem=50%)"},
  {"a higher share behind shards does not", "gres:shard:50", {}, "vgpu(share=90)", "gres:shard:50", ""},
  {"the mark of several cards", "gres:gpu:2", {}, "vgpu(share=200)", "gres:gpu:2", "vgpu(share=200)"},
  {"no mark is behind several cards", "gres:shard:200", {}, "vgpu(share=30)", "gres:gpu:2", "vgpu(share=200)"},
  {"the token of cli_filter.lua beside one", "gres:gpu:2", {}, "vgpu(mem=9%,share=1) vgpu(share=200)",
    "gres:gpu:2", "vgpu(share=200,mem=9%)"},
  {"a mark on a job without cards", nil, {}, "vgpu(share=50)", nil, ""},
  {"SPANK options before the comment", "gres:vgpu:30", {MEM = "10%"}, "vgpu(mem=50%)", "gres:shard:30",
    "vgpu(mem=50%)"},
  {"another word with the same end", nil, {}, "my_vgpu(x)", nil, "my_vgpu(x)"},
  {"a job without cards", nil, {}, nil, nil, nil},
}

local function spank_env(options)
  local env = {[0] = "_SLURM_SPANK_OPTION_other=1"}
  for name, value in pairs(options) do env[#env + 1] = "VGPU_" .. name .. "=" .. value end
  return env
end

local function test_good()
  load_script(CARDS)
  for _, c in ipairs(GOOD) do
    local name, gres, options, comment, want_gres, want_comment =
      c[1], c[2], c[3], c[4], c[5], c[6]
    local fields = {"tres_per_node", "tres_per_socket", "tres_per_task"}
    if not string.find(want_gres or "", "shard") then fields[4] = "tres_per_job" end
    for _, field in ipairs(fields) do
      local job = {[field] = gres, comment = comment, spank_job_env = spank_env(options)}
      local rc, line = submit(job)
      check(rc == 0, "%s: refused: %s", name, tostring(line))
      check(job[field] == want_gres, "%s: got %s, want %s", name, tostring(job[field]), tostring(want_gres))
      check(job.comment == want_comment, "%s: got comment %s, want %s", name, tostring(job.comment),
        tostring(want_comment))
    end
  end
end

-- Where a step may be the first on a node, the comment has the options: slurmd then hands
-- Prolog those of the step.
local function test_steps_first()
  load_script(CARDS)
  for _, c in ipairs({
    {{script = false}, "vgpu(mem=8G,mode=soft)"},
    {{min_nodes = 2}, "vgpu(mem=8G,mode=soft)"},
    {{num_tasks = 4}, "vgpu(mem=8G,mode=soft)"},
    {{num_tasks = 4, max_nodes = 1}, nil},
    {{num_tasks = 1, min_nodes = 4294967294}, nil},
  }) do
    local job = c[1]
    job.tres_per_node, job.spank_job_env = "gres:vgpu:30", spank_env({MEM = "8G", MODE = "soft"})
    local rc, line = submit(job)
    check(rc == 0 and job.comment == c[2], "%s: comment %s, want %s", tostring(line), tostring(job.comment), tostring(c[2]))
  end
  local job = {script = false, spank_job_env = spank_env({})}
  check(submit(job) == 0 and job.comment == nil, "without a share: comment %s", tostring(job.comment))
end

-- ---- what is refused ---------------------------------------------------------

-- gres, spank options, comment; then parts of the line.
local BAD = {
  {"gres:vgpu:0", {}, nil, '"0"', "1 to 100", "--gres=vgpu:30"},
  {"gres:vgpu:101", {}, nil, '"101"', "1 to 100"},
  {"gres:vgpu:150", {}, nil, '"150"', "1 to 100"},
  {"gres:vgpu:250", {}, nil, '"250"', "1 to 100"},
  {"gres:vgpu:1700", {}, nil, '"1700"', "1 to 100"},
  {"gres:vgpu:-5", {}, nil, '"-5"', "1 to 100"},
  {"gres:vgpu:030", {}, nil, '"030"', "1 to 100"},
  {"gres:vgpu:1k", {}, nil, '"1k"', "1 to 100"},
  {"gres:vgpu:30%", {}, nil, '"30%"', "1 to 100"},
  {"gres:vgpu:x", {}, nil, '"x"', "1 to 100"},
  {"gres:vgpu:1\n2", {}, nil, '"1?2"', "1 to 100"},
  {"gres:vgpu", {}, nil, '""', "1 to 100"},
  {"gres/vgpu=101", {}, nil, '"101"', "1 to 100"},
  {"gres:vgpu:h200:101", {}, nil, "--gres=vgpu:h200", '"101"', "1 to 100"},
  {"gres:shard:150", {}, nil, "--gres=shard", '"150"', "1 to 100"},
  {"gres:vgpu:30", {MEM = "1.5g"}, nil, '--vgpu-mem: "1.5g"', "whole number", "8G"},
  {"gres:vgpu:30", {MEM = "8192"}, nil, '--vgpu-mem: "8192": want at least 1M', "counts bytes", "--vgpu-mem=8192M"},
  {"gres:vgpu:30", {}, "vgpu(mem=4K)", '--vgpu-mem: "4K": want at least 1M', "--vgpu-mem=8G"},
  {"gres:vgpu:30", {MEM = "200G"}, nil, '--vgpu-mem: "200G"', "143771 MiB", "(h200)", "140G"},
  {"gres:vgpu:a100:30", {MEM = "50G"}, nil, "40960 MiB", "a100", "--vgpu-mem=40G"},
  {"gres:vgpu:30", {MEM = "100G"}, nil, "81920 MiB", "--gres=vgpu:h200:72"},
  {"gres:gpu:a100:1", {MEM = "50G"}, nil, "40960 MiB"},
  {"gres:vgpu:30", {CORES = "0"}, nil, '--vgpu-cores: "0"', "1 to 100"},
  {"gres:vgpu:30", {CORES = "101"}, nil, '--vgpu-cores: "101"', "1 to 100"},
  {"gres:vgpu:30", {MODE = "fast"}, nil, '--vgpu-mode: "fast"', "hard, soft"},
  {"gres:vgpu:30", {MODE = "soft:20"}, nil, '"soft:20"', "at least the compute share 30", "soft:30"},
  {"gres:vgpu:60", {CARDS = "2"}, nil, '--vgpu-cards: "2"', "whole cards", "--gres=vgpu:200"},
  {"gres:vgpu:120", {}, nil, '--gres=vgpu: "120"', "with --vgpu-cards a share of several cards"},
  {"gres:vgpu:120", {CARDS = "2"}, nil, '--vgpu-cards: "2"', "whole cards", "--gres=vgpu:200"},
  {"gres:vgpu:120", {CARDS = "1"}, nil, '--vgpu-cards: "1"', "whole cards", "--gres=vgpu:200"},
  {"gres:vgpu:200", {CARDS = "3"}, nil, "divides the share 200", "--vgpu-cards=2"},
  {"gres:vgpu:200", {CARDS = "1"}, nil, "2 cards for the share 200"},
  {nil, {MEM = "8G"}, nil, '--vgpu-mem: "8G"', "--gres=vgpu:30"},
  {"gres:nic:1", {MODE = "hard"}, nil, '--vgpu-mode: "hard"', "--gres=vgpu:30"},
  {nil, {}, "vgpu(mem=8G)", '--vgpu-mem: "8G"', "--gres=vgpu:30"},
  {"gres:gpu:0", {MEM = "8G"}, nil, "--gres=vgpu:30"},
  {"gres:gpu:vgpu:30", {}, nil, "--gpus", '"vgpu:30"', "--gres=vgpu:30"},
  {"gres:vgpu:vgpu:200", {}, nil, '--gres: "vgpu:200"', "not a type of GPU"},
  {"gres:gpu:vgpu", {}, nil, "--gpus", "--gres=vgpu:30"},
  {"gres:vgpu:30,gres:gpu:1", {}, nil, '"gpu:1"', "either shares or whole GPUs"},
  {"gres:vgpu:30,gres:vgpu:20", {}, nil, '"vgpu:20"', "one share"},
  {"gres:vgpu:30,gres:shard:20", {}, nil, '"shard:20"', "one share"},
  {"gres:vgpu:30", {}, "vgpu(mem=1.5g)", '--vgpu-mem: "1.5g"'},
  {"gres:vgpu:30", {}, "vgpu(memory=8G)", '--comment: "memory=8G"', "mem, cores"},
  {"gres:vgpu:30", {}, "vgpu(mem)", '--comment: "mem"', "mem, cores"},
  {"gres:vgpu:30", {}, "vgpu(mem=8G", "closing bracket"},
  {"gres:vgpu:30", {}, "vgpu(mem=8G,mem=1G)", "mem once"},
  {"gres:vgpu:30", {}, "vgpu(mem=8G) vgpu(mem=8G)", "mem once"},
  {"gres:vgpu:30", {}, "vgpu(mem=8G,)", '--comment: ""', "mem, cores"},
  {"gres:vgpu:a\nvgpu:0", {}, nil, "--gres=vgpu:a?vgpu"},
}

local function test_bad()
  load_script(CARDS)
  for _, c in ipairs(BAD) do
    local name = string.format("%s %s", tostring(c[1]), tostring(c[3]))
    local job = {tres_per_node = c[1], spank_job_env = spank_env(c[2]), comment = c[3]}
    local rc, line = submit(job)
    check(rc == 2072, "%s: rc %s", name, tostring(rc))
    check(line and string.sub(line, 1, 6) == "vgpu: " and not string.find(line, "\n"), "%s: line %s",
      name, tostring(line))
    for i = 4, #c do
      check(string.find(line or "", c[i], 1, true), "%s: %s, want %s in it", name, tostring(line), c[i])
    end
    check(job.tres_per_node == c[1] and job.comment == c[3], "%s: a refused job was changed", name)
  end
end

-- The flag in the message is the one that was typed.
local function test_spelling_names_the_flag()
  load_script(CARDS)
  for field, flag in pairs({tres_per_node = "--gpus-per-node", tres_per_job = "--gpus",
    tres_per_socket = "--gpus-per-socket", tres_per_task = "--gpus-per-task"}) do
    local _, line = submit({[field] = "gres:gpu:vgpu:30"})
    check(string.find(line or "", flag .. ":", 1, true), "%s: %s", field, tostring(line))
  end
  local _, line = submit({tres_per_node = "gres:vgpu:30", tres_per_task = "gres:vgpu:30"})
  check(string.find(line or "", "one share", 1, true), "two lists: %s", tostring(line))
end

local function test_forms()
  load_script(CARDS)
  local lines = 0
  for line in io.lines(FORMS) do
    local name, value, want = string.match(line, "^(%l+)\t(.-)\t(%l+)$")
    if name then
      value = string.gsub(value, "_", " ")
      -- Big sizes are right in form and too large for any card: ask with no cards.
      load_script(nil)
      local rc = submit({tres_per_node = "gres:vgpu:16", spank_job_env = {"VGPU_" .. string.upper(name) .. "=" .. value}})
      local form_ok = rc == 0 or (name == "cards" and string.find(said[1], "divides"))
        or (name == "cards" and string.find(said[1], "whole cards"))
        or (name == "mode" and string.find(said[1], "ceiling of at least"))
        or (name == "mem" and string.find(said[1], "at least 1M"))
      check((want == "ok") == (form_ok and true or false), "%s %q: %s, want %s", name, value,
        tostring(said[1]), want)
      lines = lines + 1
    end
  end
  check(lines >= 80, "only %d lines in %s", lines, FORMS)
end

-- With --exclusive slurmctld would want all shards and all cards of a node.
local function test_exclusive()
  load_script(CARDS)
  local rc, line = submit({tres_per_node = "gres:vgpu:30", shared = 0})
  check(rc == 2072 and string.find(line or "", '--exclusive: "vgpu:30"', 1, true)
    and string.find(line, "--exclusive --gres=gpu:1", 1, true), "a share: %s", tostring(line))
  for _, job in ipairs({{tres_per_node = "gres:vgpu:30", shared = 65534}, -- not said
    {tres_per_node = "gres:vgpu:30", shared = 2}, -- --exclusive=user
    {tres_per_node = "gres:gpu:2", shared = 0}, {shared = 0}}) do
    rc, line = submit(job)
    check(rc == 0, "shared = %s, %s: %s", job.shared, tostring(job.tres_per_node), tostring(line))
  end
end

-- A partition that gives each job its nodes alone, also the default one, or one of several.
local ALONE = {
  excl = {name = "excl", flag_default = 0, max_share = 0}, main = {name = "main", flag_default = 1, max_share = 1},
  user = {name = "user", flag_default = 0, max_share = 1, flags = 64},
}

local function test_exclusive_partition()
  load_script(CARDS)
  local function ask(job, parts)
    said = {}
    return slurm_job_submit(job, parts or ALONE, 1000), said[1]
  end
  local want = 'vgpu: --partition: "excl": want a partition whose nodes jobs share, or whole cards, for example '
    .. "--gres=gpu:1: each job there has its node alone (OverSubscribe=EXCLUSIVE)"
  for _, partition in ipairs({"excl", "main,excl"}) do
    local rc, line = ask({tres_per_node = "gres:vgpu:30", partition = partition})
    check(rc == 2072 and line == want, "%s: %s", partition, tostring(line))
  end
  local rc, line = ask({tres_per_node = "gres:shard:30"}, {excl = {name = "excl", flag_default = 1, max_share = 0}})
  check(rc == 2072 and line == want, "the default: %s", tostring(line))
  for _, job in ipairs({{tres_per_node = "gres:vgpu:30", partition = "user"}, {tres_per_node = "gres:vgpu:30"},
    {tres_per_node = "gres:gpu:1", partition = "excl"}, {partition = "excl"}}) do
    rc, line = ask(job)
    check(rc == 0, "%s in %s: %s", tostring(job.tres_per_node), tostring(job.partition), tostring(line))
  end
  said = {}
  rc = slurm_job_modify({partition = "excl"}, {tres_per_node = "gres:shard:30", partition = "main"}, ALONE, 1000)
  check(rc == 2072 and said[1] == want, "moved: %s", tostring(said[1]))
  check(slurm_job_modify({partition = "excl"}, {tres_per_node = "gres:gpu:1"}, ALONE, 1000) == 0, "whole GPUs move")
end

-- What Slurm has for whole GPUs alone is told apart.
local function test_beside_a_share()
  load_script(CARDS)
  for _, c in ipairs({
    {{cpus_per_tres = "gres:gpu:4"}, '--cpus-per-gpu: "4": want --cpus-per-task beside a share, for example --cpus-per-task=4'},
    {{cpus_per_tres = "gres/gpu=4"}, '--cpus-per-gpu: "4"'},
    {{mem_per_tres = "gres:gpu:1024"}, '--mem-per-gpu: "1024": want --mem beside a share, for example --mem=1024'},
    {{tres_freq = "gpu:high"}, '--gpu-freq: "high": want no frequency of a card that others use'},
  }) do
    local job = c[1]
    job.tres_per_node = "gres:vgpu:30"
    local rc, line = submit(job)
    check(rc == 2072 and string.find(line or "", c[2], 1, true), "%s: %s", c[2], tostring(line))
    job.tres_per_node = "gres:vgpu:200"
    rc, line = submit(job)
    check(rc == 0, "%s with whole cards: %s", c[2], tostring(line))
  end
  local rc, line = submit({tres_per_job = "gres:vgpu:30"})
  check(rc == 2072 and string.find(line or "", 'tres_per_job: "vgpu:30": want a share in tres_per_node, for example '
    .. "tres_per_node=gres:vgpu:30", 1, true), "tres_per_job: %s", tostring(line))
end

-- ---- changes of a job --------------------------------------------------------

local function modify(change, record)
  said = {}
  return slurm_job_modify(change, record, {}, 1000)
end

local function test_modify()
test_steps_first()
  load_script(CARDS)
  local record = {comment = "night vgpu(share=30)", tres_per_node = "gres:shard:50",
    spank_job_env = {"VGPU_MEM=50%"}}

  local change = {tres_per_node = "gres:vgpu:60"}
  check(modify(change, record) == 0 and change.tres_per_node == "gres:shard:60", "grow: %s",
    tostring(change.tres_per_node))
  check(change.comment == "night", "grow: comment %s", tostring(change.comment))

  change = {tres_per_node = "gres:vgpu:20"}
  check(modify(change, record) == 0 and change.tres_per_node == "gres:shard:50", "shrink: %s",
    tostring(change.tres_per_node))
  check(change.comment == "night vgpu(share=20)", "shrink: comment %s", tostring(change.comment))

  change = {comment = "day vgpu(share=100)"}
  check(modify(change, record) == 0 and change.comment == "day vgpu(share=30)",
    "a comment cannot raise the share: %s", tostring(change.comment))

  change = {comment = ""}
  check(modify(change, record) == 0 and change.comment == "vgpu(share=30)", "an empty comment: %s",
    tostring(change.comment))

  change = {time_limit = 5}
  check(modify(change, record) == 0 and change.comment == nil, "another change: %s", tostring(change.comment))

  change = {tres_per_node = "gres:"}
  check(modify(change, record) == 0 and change.comment == "night", "no GRES: %s", tostring(change.comment))

  -- Two whole cards become a share: slurm would keep the comment if it were "".
  change = {tres_per_node = "gres:vgpu:20"}
  check(modify(change, {comment = "vgpu(share=200)", tres_per_node = "gres:gpu:2"}) == 0
    and change.comment == " ", "cards to share: comment %q", tostring(change.comment))
  change = {tres_per_node = "gres:vgpu:20"}
  check(modify(change, {tres_per_node = "gres:shard:30"}) == 0 and change.comment == nil,
    "no comment before or after: %q", tostring(change.comment))

  check(modify({tres_per_node = "gres:vgpu:101"}, record) == 2072 and #said == 1, "101 was taken")
  check(modify({tres_per_node = "gres:gpu:vgpu:30"}, record) == 2072, "gpu:vgpu was taken")
  check(modify({comment = "vgpu(mem=x)"}, record) == 2072, "a bad token was taken")

  -- The words of a job cannot outgrow what slurmctld counts for it.
  for _, words in ipairs({"mem=90%", "mem=60G", "cores=60", "policy=exclusive"}) do
    change = {comment = "vgpu(" .. words .. ")"}
    check(modify(change, {tres_per_node = "gres:shard:10"}) == 2072 and #said == 1
      and string.find(said[1], "share of 10 is enough", 1, true), "%s: %s", words, tostring(said[1]))
  end
  check(modify({comment = "vgpu(mem=40%)"}, record) == 0, "less memory was refused")
  change = {comment = "vgpu(mem=90%)", tres_per_node = "gres:vgpu:10"}
  check(modify(change, {tres_per_node = "gres:shard:10"}) == 0 and change.tres_per_node == "gres:shard:90",
    "with the GRES: %s", tostring(change.tres_per_node))
  check(modify({comment = "good"}, {comment = "vgpu(broken"}) == 0, "a broken old comment must not last")

  -- A multi-node job has its options in the comment, for nodes that see only a step.
  change = {comment = "day"}
  check(modify(change, {tres_per_node = "gres:shard:30", comment = "vgpu(mem=8G)", spank_job_env = {"VGPU_MEM=8G"}}) == 0
    and change.comment == "day vgpu(mem=8G)", "options of a multi-node job: %s", tostring(change.comment))
end

-- A change is refused with the line of submit: whether it sets the share, or the other field.
local function test_rules_of_submit_hold_for_changes()
  load_script(CARDS)
  local parts = {excl = {name = "excl", flag_default = 0, max_share = 0}}
  for _, c in ipairs({
    {shared = 0}, {partition = "excl"}, {cpus_per_tres = "gres:gpu:4"}, {mem_per_tres = "gres:gpu:1024"}, {tres_freq = "gpu:high"},
    {tres_per_job = "gres:gpu:1"}, {tres_per_task = "gres:shard:10"}, {tres_per_job = "gres:vgpu:30", tres_per_node = ""},
  }) do
    local name, want = next(c)
    local function ask(work, ...)
      said = {}
      return work(...), said[1]
    end
    local function with(fields, gres)
      local job = {}
      for field, value in pairs(fields) do job[field] = value end
      job.tres_per_node = job.tres_per_node or gres
      return job
    end
    local rc
    rc, want = ask(slurm_job_submit, with(c, "gres:vgpu:30"), parts, 1000)
    check(rc == 2072 and want, "%s: submit takes it", name)
    local line
    rc, line = ask(slurm_job_modify, with(c, "gres:vgpu:30"), {tres_per_node = "gres:shard:20", partition = "main"}, parts, 1000)
    check(rc == 2072 and line == want, "%s, with the share: %s, want %s", name, tostring(line), tostring(want))
    if name ~= "shared" and not c.tres_per_node then
      rc = ask(slurm_job_modify, with(c), {tres_per_node = "gres:shard:30", partition = "main"}, parts, 1000)
      check(rc == 2072, "%s, to a job with a share", name)
      rc = ask(slurm_job_modify, {tres_per_node = "gres:vgpu:30"}, with(c, "gres:shard:20"), parts, 1000)
      check(rc == 2072, "a share, to a job with %s", name)
    end
  end
end

-- Lua cannot see --exclusive of a job that is there.
local function test_no_late_share()
  load_script(CARDS)
  for _, record in ipairs({{}, {tres_per_node = "gres:gpu:1"}, {tres_per_job = "gres/gpu:2"}, {tres_per_node = "gres:nic:1"}}) do
    local change = {tres_per_node = "gres:vgpu:30"}
    if record.tres_per_job then change.tres_per_job = "" end
    local rc = modify(change, record)
    check(rc == 2072 and string.find(said[1] or "", '--gres: "vgpu:30": want a share at submission', 1, true),
      "%s: %s", tostring(record.tres_per_node), tostring(said[1]))
  end
  load_script('return { placement = "gresd" }')
  check(modify({tres_per_node = "gres:vgpu:30"}, {tres_per_node = "gres:vgpu:20"}) == 0, "a share of gresd's")
  check(modify({tres_per_node = "gres:vgpu:30"}, {}) == 2072, "gresd places")
end

-- ---- the site ----------------------------------------------------------------

-- ---- partitions and counts ---------------------------------------------------

local PARTITIONS = [[return { default = 81920, cards = { h200 = 143771 }, modes = {"hard", "soft"}, engines = {"mps"}, partitions = {
  debug = { defaults = { mode = "soft", mem = "10%" }, max_share = 50, max_mem = "16G", modes = {"soft"} },
  batch = { max_cards = 2 }, short = { engines = {} }, free = { defaults = { priority = "low", mode = "turbo", cards = 2 } } } }]]
local PARTS = { debug = {name = "debug", flag_default = 0}, batch = {name = "batch", flag_default = 1} }

local function test_partitions()
  load_script(PARTITIONS)
  local function ask(partition, gres, options, comment)
    local job = {script = "#!/bin/sh", tres_per_node = gres, partition = partition, spank_job_env = spank_env(options or {}),
      comment = comment}
    said = {}
    return slurm_job_submit(job, PARTS, 1000), said[1], job
  end
  local rc, line, job = ask("debug", "gres:vgpu:30")
  check(rc == 0 and job.comment == "vgpu(mem=10%,mode=soft)", "defaults: %s %s", tostring(line), tostring(job.comment))
  rc, line, job = ask("debug", "gres:vgpu:30", {MODE = "soft:40"}, "vgpu(mem=20%)")
  check(rc == 0 and job.comment == "vgpu(mem=20%)", "said: %s %s", tostring(line), tostring(job.comment))
  rc, _, job = ask("free,debug", "gres:vgpu:30")
  check(rc == 0 and job.comment == "vgpu(mem=10%,mode=soft,priority=low)", "two: %s", tostring(job.comment))
  check(#logged == 2 and string.find(table.concat(logged), "partition free: default mode = turbo: not used", 1, true),
    "log: %s", table.concat(logged, "; "))
  rc, _, job = ask("debug", "gres:gpu:2")
  check(rc == 0 and job.comment == nil, "whole GPUs are not ours: %s", tostring(job.comment))
  rc, _, job = ask("elsewhere", "gres:vgpu:1600")
  check(rc == 0 and job.tres_per_node == "gres:gpu:16", "a partition without rules")
  for _, engine in ipairs({"time", "auto", "mps"}) do
    check(ask("elsewhere", "gres:vgpu:30", {ENGINE = engine}) == 0, "engine %s", engine)
  end
  for _, c in ipairs({
    {"debug", "gres:vgpu:60", {}, nil, '--gres=vgpu: "60": want at most 50 in partition debug, for example --gres=vgpu:50'},
    {"free,debug", "gres:vgpu:60", {}, nil, "at most 50 in partition debug"},
    {"debug", "gres:vgpu:100", {}, nil, '"100": want at most 50'},
    {"debug", "gres:vgpu:200", {CARDS = "2"}, nil, '"200": want at most 50'},
    {"debug", "gres:shard:60", {}, nil, '"60": want at most 50'},
    {"debug", "gres:vgpu:30", {CORES = "60", MODE = "soft:70"}, nil, '--vgpu-cores: "60": want at most 50'},
    {"debug", "gres:vgpu:30", {MEM = "60%"}, nil, '--vgpu-mem: "60%": want at most 50% of a card in partition debug'},
    {"debug", "gres:vgpu:30", {MEM = "17G"}, nil, '--vgpu-mem: "17G": want at most 16G in partition debug, for example --vgpu-mem=16G'},
    {"debug", "gres:vgpu:30", {}, "vgpu(mem=17G)", "at most 16G"},
    {"debug", "gres:vgpu:30", {MODE = "hard"}, nil, '--vgpu-mode: "hard": want soft in partition debug, for example --vgpu-mode=soft'},
    {"elsewhere", "gres:vgpu:30", {MODE = "off"}, nil, '--vgpu-mode: "off": want hard or soft at this site, for example --vgpu-mode=hard'},
    {"elsewhere", "gres:vgpu:300", {MODE = "off"}, nil, '--vgpu-mode: "off": want hard or soft at this site'},
    {"elsewhere", "gres:vgpu:30", {ENGINE = "concurrent"}, nil, '--vgpu-engine: "concurrent": want time or auto or mps at this site, for example --vgpu-engine=time'},
    {"short", "gres:vgpu:30", {ENGINE = "mps"}, nil, '--vgpu-engine: "mps": want time or auto in partition short'},
    {"debug", "gres:vgpu:30", {POLICY = "exclusive"}, nil, '--vgpu-policy: "exclusive": want another policy'},
    {"batch", "gres:vgpu:300", {}, nil, '"300": want at most 200 in partition batch, for example --gres=vgpu:200'},
    {nil, "gres:vgpu:300", {}, nil, "in partition batch"}, -- the default partition
  }) do
    rc, line = ask(c[1], c[2], c[3], c[4])
    check(rc == 2072 and string.find(line or "", c[5], 1, true), "%s %s: %s", tostring(c[1]), c[2], tostring(line))
  end
  -- A job that is there moves, or changes its words.
  local function change(job, record)
    said = {}
    return slurm_job_modify(job, record, PARTS, 1000), said[1]
  end
  local record = {tres_per_node = "gres:shard:60", partition = "batch", comment = "vgpu(share=40,mem=60%)"}
  rc, line = change({partition = "debug"}, record)
  check(rc == 2072 and string.find(line or "", "partition debug", 1, true), "moved: %s", tostring(line))
  check(change({partition = "batch"}, record) == 0, "stays")
  check(change({partition = "debug"}, {partition = "batch"}) == 0, "a job without cards moves")
  rc, line = change({comment = "vgpu(mode=hard)"}, {tres_per_node = "gres:shard:30", partition = "debug"})
  check(rc == 2072 and string.find(line or "", "want soft", 1, true), "changed: %s", tostring(line))
  rc, line = change({tres_per_node = "gres:vgpu:60"}, {tres_per_node = "gres:shard:30", partition = "debug"})
  check(rc == 2072 and string.find(line or "", "at most 50", 1, true), "grown: %s", tostring(line))
  -- A change keeps the defaults of the partition.
  for _, c in ipairs({
    {{comment = "night"}, {comment = "vgpu(mem=10%,mode=soft)", partition = "debug"}, "night vgpu(mem=10%,mode=soft)"},
    {{partition = "debug"}, {partition = "batch"}, "vgpu(mem=10%,mode=soft)"},
    {{tres_per_node = "gres:vgpu:40"}, {partition = "debug"}, "vgpu(mem=10%,mode=soft)"},
  }) do
    c[2].tres_per_node = "gres:shard:30"
    rc, line = change(c[1], c[2])
    check(rc == 0 and c[1].comment == c[3], "defaults: %s %s, want %s", tostring(line), tostring(c[1].comment), c[3])
  end
  rc, line = change({partition = "debug"}, {tres_per_node = "gres:shard:5", partition = "batch"})
  check(rc == 2072 and string.find(line or "", '--partition: "debug": want words for which the job\'s share of 5', 1, true),
    "a default above the share: %s", tostring(line))
end

local function test_counts()
  load_script("return { default = 81920, cards = { h200 = 143771 }, count = true }")
  for _, c in ipairs({
    {"gres:vgpu:30", {}, "gres:shard:30,gres:vgpu:30"},
    {"gres/vgpu=30", {}, "gres/shard=30,gres/vgpu=30"},
    {"cpu=2,gres:vgpu:h200:30,gres:nic:1", {MEM = "50%"}, "cpu=2,gres:shard:h200:50,gres:vgpu:50,gres:nic:1"},
    {"gres:vgpu:h200:200", {}, "gres:gpu:h200:2,gres:vgpu:200"},
    {"gres:shard:20", {}, "gres:shard:20,gres:vgpu:20"},
    {"gres:gpu:2", {}, "gres:gpu:2"},
  }) do
    local job = {tres_per_node = c[1], spank_job_env = spank_env(c[2])}
    local rc, line = submit(job)
    check(rc == 0 and job.tres_per_node == c[3], "%s: %s %s", c[1], tostring(line), tostring(job.tres_per_node))
    -- What this script wrote may come back.
    local again = {tres_per_node = job.tres_per_node}
    rc, line = submit(again)
    check(rc == 0 and (again.tres_per_node == c[3] or string.find(c[3], "gpu:")), "again %s: %s %s", c[3],
      tostring(line), tostring(again.tres_per_node))
    check(modify({partition = "x"}, {tres_per_node = job.tres_per_node, comment = job.comment}) == 0, "%s moves", c[3])
  end
  check(submit({tres_per_node = "gres:shard:30,gres:vgpu:20"}) == 2072, "two shares")
end

local function test_module()
  load_script(CARDS)
  slurm_job_submit, slurm_job_modify, vgpu_job_submit, vgpu_job_modify = nil, nil, nil, nil
  local path = package.path
  package.path = folder .. "/?.lua;" .. path
  package.loaded.job_submit = nil
  local vgpu = require("job_submit")
  package.path, package.loaded.job_submit = path, nil
  check(type(vgpu) == "table" and slurm_job_submit == nil and vgpu_job_submit == nil, "a module defines nothing")
  local job = {tres_per_node = "gres:vgpu:30", spank_job_env = {"VGPU_MEM=40G"}}
  check(vgpu.submit(job, {}, 1000) == 0 and job.tres_per_node == "gres:shard:50", "submit: %s", job.tres_per_node)
  job = {tres_per_node = "gres:vgpu:20"}
  check(vgpu.modify(job, {tres_per_node = "gres:shard:50"}, {}, 1000) == 0 and job.tres_per_node == "gres:shard:20", "modify: %s", job.tres_per_node)
end

local function test_het_job()
  load_script(CARDS)
  local job = {tres_per_node = "gres:vgpu:30", het_job_offset = 1, spank_job_env = {"VGPU_MEM=10%"}}
  submit(job)
  check(job.comment == "vgpu(mem=10%)", "component: %s", tostring(job.comment))
  job = {het_job_offset = 1, spank_job_env = {"VGPU_MEM=10%"}}
  check(submit(job) == 0 and job.comment == nil, "a component without a card: %s", tostring(job.comment))
  check(submit({het_job_offset = 0, spank_job_env = {"VGPU_MEM=10%"}}) == 2072, "the first component")
  job = {tres_per_node = "gres:vgpu:30", het_job_offset = 4294967294, spank_job_env = {"VGPU_MEM=10%"}}
  submit(job)
  check(job.comment == nil, "an ordinary job: %s", tostring(job.comment))
end

local function test_placement_by_gresd()
  load_script('return { default = 81920, placement = "gresd" }')
  local job = {tres_per_node = "gres:vgpu:60", spank_job_env = {"VGPU_CARDS=2", "VGPU_MEM=50%"}}
  check(submit(job) == 0 and job.tres_per_node == "gres:vgpu:100", "got %s", tostring(job.tres_per_node))
  check(job.comment == "vgpu(share=60)", "comment %s", tostring(job.comment))
  job = {tres_per_node = "gres:vgpu:120", spank_job_env = {"VGPU_CARDS=2"}}
  check(submit(job) == 0 and job.tres_per_node == "gres:vgpu:120" and job.comment == "vgpu(share=120)",
    "more than half of each of two cards: %s %s", tostring(job.tres_per_node), tostring(job.comment))
  local _, line = submit({tres_per_node = "gres:vgpu:120", spank_job_env = {"VGPU_CARDS=7"}})
  check(string.find(line or "", "divides the share 120, for example --vgpu-cards=2", 1, true), "%s", tostring(line))
  _, line = submit({tres_per_node = "gres:vgpu:101", spank_job_env = {"VGPU_CARDS=2"}})
  check(string.find(line or "", '--gres=vgpu: "101"', 1, true), "%s", tostring(line))
  job = {tres_per_node = "gres:vgpu:200"}
  check(submit(job) == 0 and job.tres_per_node == "gres:vgpu:200", "got %s", tostring(job.tres_per_node))
end

local function test_without_a_table_of_cards()
  load_script(nil)
  local job = {tres_per_node = "gres:vgpu:30", spank_job_env = {"VGPU_MEM=500G"}}
  check(submit(job) == 0 and job.tres_per_node == "gres:shard:30", "gresd decides: %s",
    tostring(job.tres_per_node))
  load_script("return { cards = { h200 = 143771 } }")
  check(submit({tres_per_node = "gres:vgpu:30", spank_job_env = {"VGPU_MEM=500G"}}) == 2072,
    "larger than every known card")
end

local function test_broken_table_of_cards()
  load_script("return { default = ")
  check(#logged == 1 and string.find(logged[1], "vgpu_cards.lua", 1, true), "log: %s", tostring(logged[1]))
  check(submit({tres_per_node = "gres:vgpu:30"}) == 0, "a share needs no table")
  load_script("return { units = 4 }")
  check(#logged == 1 and string.find(logged[1], "units = 4", 1, true), "log: %s", tostring(logged[1]))
end

-- An error in the script must reach the log, not stop the cluster.
local function test_internal_error()
  load_script("return { default = {} }")
  check(submit({tres_per_node = "gres:nic:1"}) == 0, "a job of others was refused")
  local rc, line = submit({tres_per_node = "gres:vgpu:30", spank_job_env = {"VGPU_MEM=8G"}})
  check(rc == 2072 and string.find(line, "log of slurmctld", 1, true), "%s %s", tostring(rc), tostring(line))
  check(#logged == 1, "%d lines in the log", #logged)
end

local function test_called_by_a_sites_own_script()
  load_script(CARDS)
  local theirs, calls = vgpu_job_submit, 0
  slurm_job_submit = function(job, parts, uid)
    calls = calls + 1
    return theirs(job, parts, uid)
  end
  local job = {tres_per_node = "gres:vgpu:30"}
  check(submit(job) == 0 and calls == 1 and job.tres_per_node == "gres:shard:30", "wrapped")
end

test_good()
test_bad()
test_spelling_names_the_flag()
test_forms()
test_exclusive()
test_exclusive_partition()
test_beside_a_share()
test_modify()
test_rules_of_submit_hold_for_changes()
test_no_late_share()
test_steps_first()
test_partitions()
test_counts()
test_module()
test_het_job()
test_placement_by_gresd()
test_without_a_table_of_cards()
test_broken_table_of_cards()
test_internal_error()
test_called_by_a_sites_own_script()

print(string.format("%d checks, %d failed", checks, failures))
os.exit(failures == 0 and 0 or 1)
