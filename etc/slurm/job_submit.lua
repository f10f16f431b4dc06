-- SPDX-License-Identifier: Apache-2.0
--
-- job_submit.lua: runs inside slurmctld, once for each submitted or changed job.
--
-- Install as /etc/slurm/job_submit.lua beside slurm.conf, with
-- JobSubmitPlugins=lua. It turns --gres=vgpu:N into what slurmctld can place
-- (gres/shard, or gres/gpu for several whole cards), counts memory and compute
-- as shares of a card, and refuses what no card could ever serve, with one line
-- to the user. Card sizes come from vgpu_cards.lua in the same folder, else
-- from /etc/slurm/vgpu_cards.lua.
--
-- A site with a job_submit.lua of its own keeps it, links this file under another
-- name (a copy would go stale at the next upgrade), and calls it. As a module it
-- defines nothing outside of itself:
--
--   ln -s /usr/share/slurm-vgpu/job_submit.lua /etc/slurm/vgpu_job_submit.lua
--
--   package.path = "/etc/slurm/?.lua;" .. package.path
--   local vgpu = require("vgpu_job_submit")
--   function slurm_job_submit(job, parts, uid)
--     local rc = vgpu.submit(job, parts, uid)
--     if rc ~= slurm.SUCCESS then return rc end
--     ...
--   end
--   function slurm_job_modify(job, record, parts, uid)
--     return vgpu.modify(job, record, parts, uid)
--   end
--   return slurm.SUCCESS
--
-- For Lua 5.1 to 5.4 and Slurm 22.05 to 26.05.

-- The lists of a job that can name a GRES, and the flag that asks for GPUs in each.
local FIELDS = {"tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task"}
local FLAGS = {
  tres_per_node = "--gpus-per-node", tres_per_job = "--gpus",
  tres_per_socket = "--gpus-per-socket", tres_per_task = "--gpus-per-task",
}
-- The lists that ask for something for each GPU.
local PER_GPU = {"cpus_per_tres", "mem_per_tres", "tres_freq"}
local OPTIONS = {"mem", "cores", "cards", "mode", "priority", "policy", "engine"}
local WORDS = {"share", "mem", "cores", "cards", "mode", "priority", "policy", "engine"}
local UNITS = 100 -- shards that slurmctld counts for one card
local MAX_CARDS = 16
local NO_VAL = 4294967294
local EXCLUSIVE = 0 -- job.shared of --exclusive
local ALONE = 0 -- max_share of a partition with OverSubscribe=EXCLUSIVE
local MIB = 1024 * 1024
local UNIT_BYTES = {[""] = 1, K = 1024, M = MIB, G = 1024 * MIB, T = MIB * MIB}

local REFUSED = slurm.ESLURM_INVALID_GRES or 2072 -- "Invalid generic resource (gres) specification"

-- ---- the site's cards ------------------------------------------------------

-- cards: memory of each type of card in MiB. default: of a card of no named
-- type, so the smallest of the cluster. placement: "slurm" backs vgpu by shard,
-- "gresd" leaves the name vgpu and counts it (nodes with Gres=vgpu:400). count:
-- shards are counted as gres/vgpu as well, for quotas. partitions: what a
-- partition gives and forbids. modes, engines: allowed values of a request (vgpu_cards.lua).
local site
local FOLDER = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "./"

-- For each job anew: slurmctld keeps this script until its own file changes,
-- whatever is reconfigured.
local function load_site()
  site = {units = UNITS, default = nil, cards = {}, placement = "slurm", count = false, partitions = {}}
  for _, path in ipairs({FOLDER .. "vgpu_cards.lua", "/etc/slurm/vgpu_cards.lua"}) do
    local file = io.open(path)
    if file then
      file:close()
      local ok, given = pcall(dofile, path)
      if ok and type(given) == "table" then
        for name, value in pairs(given) do site[name] = value end
        if site.units ~= UNITS then
          slurm.log_error("vgpu: %s: units = %s: want %d", path, tostring(site.units), UNITS)
        end
      else
        slurm.log_error("vgpu: %s: not used: %s", path, tostring(given))
      end
      return
    end
  end
end
load_site() -- a fault in the file is logged when slurmctld starts, too

-- The memory of a card in MiB; nil when the site has not said.
local function card_mib(card_type)
  return card_type and site.cards[card_type] or site.default
end

local function largest_card()
  local mib, card_type = site.default, nil
  for name, size in pairs(site.cards) do
    if not mib or size > mib then mib, card_type = size, name end
  end
  return mib, card_type
end

-- ---- values ----------------------------------------------------------------
-- The same forms as gresd/request and the SPANK plugin; one table of values
-- tests all three (spank/plugin/testdata/options.txt).

local function whole(text, max)
  if not string.match(text, "^[1-9]%d*$") then return nil end
  local n = tonumber(text)
  if n > max then return nil end
  return n
end

-- Bytes, nil for a size; nil, percent for a percentage; nil, nil otherwise.
local function memory(text)
  local number = string.match(text, "^(.*)%%$")
  if number then return nil, whole(number, 100) end
  local digits, unit = string.match(text, "^([1-9]%d*)(%a*)$")
  if not digits then return nil, nil end
  unit = string.gsub(string.upper(unit), "^([KMGT])IB$", "%1")
  if not UNIT_BYTES[unit] then return nil, nil end
  local bytes = tonumber(digits .. ".0") * UNIT_BYTES[unit] -- no integer can overflow
  if bytes >= 2 ^ 64 then return nil, nil end
  return bytes, nil
end

local function one_of(...)
  local words = {}
  for _, word in ipairs({...}) do words[word] = true end
  return function(text) return words[text] end
end

local function is_mode(text)
  local ceiling = string.match(text, "^soft:(.*)$")
  if ceiling then return whole(ceiling, 100) end
  return text == "hard" or text == "soft" or text == "off"
end

local CHECKS = {
  mem = {
    function(text) local bytes, percent = memory(text) return bytes or percent end,
    "a whole number with K, M, G or T (powers of 1024), or 1% to 100% of the card", "8G"},
  cores = {function(text) return whole(text, 100) end, "a whole number from 1 to 100", "30"},
  cards = {function(text) return whole(text, MAX_CARDS) end, "a whole number from 1 to 16", "2"},
  mode = {is_mode, "hard, soft, soft:CEILING (1 to 100) or off", "soft:80"},
  priority = {one_of("high", "normal", "low"), "high, normal or low", "normal"},
  policy = {one_of("binpack", "spread", "topology", "exclusive"),
    "binpack, spread, topology or exclusive", "binpack"},
  engine = {one_of("time", "mps", "concurrent", "auto"), "time, mps, concurrent or auto", "time"},
}

-- ---- messages --------------------------------------------------------------

-- What a user wrote, so that a line can hold it.
local function shown(text)
  return (string.gsub(string.sub(text, 1, 64), "%c", "?"))
end

-- Ends the work on a job; caught by guarded(). One line: what was asked, what
-- is possible (a format and its values), an example.
local function refuse(asked, value, want, ...)
  error({line = string.format('vgpu: %s: "%s": want ' .. want, shown(asked), shown(value), ...)}, 0)
end

local function gib_or_mib(mib)
  return mib >= 1024 and string.format("%dG", math.floor(mib / 1024)) or string.format("%dM", mib)
end

-- ---- the comment token vgpu(name=value,...) --------------------------------

local TOKEN_FORM = "for example --comment='vgpu(mem=8G,cores=30)'"

-- A word that comes twice, also in two tokens, would lose one of its limits. The share
-- may: cli_filter.lua adds a token of its own for it.
local function read_words(body, words)
  if string.match(body, "^%s*$") then return end
  local seen = {}
  for word in string.gmatch(body .. ",", "([^,]*),") do
    local name, value = string.match(word, "^%s*(.-)%s*=%s*(.-)%s*$")
    if name ~= "share" and not CHECKS[name or ""] then
      refuse("--comment", word, "mem, cores, cards, mode, priority, policy or engine, " .. TOKEN_FORM)
    elseif seen[name] or name ~= "share" and words[name] then
      refuse("--comment", body, "%s once, " .. TOKEN_FORM, name)
    end
    seen[name], words[name] = true, value
  end
end

-- Where the next token begins at or after from; "my_vgpu(" is not one.
local function find_token(comment, from)
  local first = string.find(comment, "vgpu(", from, true)
  while first and first > 1 and string.match(string.sub(comment, first - 1, first - 1), "[%w_-]") do
    first = string.find(comment, "vgpu(", first + 1, true)
  end
  return first
end

-- Splits a comment into the text around its tokens and their words.
local function read_token(comment)
  local words, text, from = {}, "", 1
  comment = comment or ""
  local first = find_token(comment, from)
  while first do
    local last = string.find(comment, ")", first, true)
    if not last then
      refuse("--comment", string.sub(comment, first), "a closing bracket, " .. TOKEN_FORM)
    end
    text = text .. string.sub(comment, from, first - 1)
    read_words(string.sub(comment, first + 5, last - 1), words)
    from = last + 1
    first = find_token(comment, from)
  end
  return text .. string.sub(comment, from), words
end

local function format_token(text, words)
  local parts = {}
  for _, name in ipairs(WORDS) do
    if words[name] then parts[#parts + 1] = name .. "=" .. words[name] end
  end
  text = string.gsub(text, "%s+$", "")
  if #parts == 0 then return text end
  local token = "vgpu(" .. table.concat(parts, ",") .. ")"
  if text == "" then return token end
  return text .. " " .. token
end

-- ---- options ---------------------------------------------------------------

-- What the SPANK plugin sent; "" where it sent nothing.
local function spank_options(job)
  local options = {}
  for _, pair in pairs(job.spank_job_env or {}) do
    local name, value = string.match(pair, "^VGPU_(%u+)=(.*)$")
    if name and CHECKS[string.lower(name)] then options[string.lower(name)] = value end
  end
  return options
end

local function check_options(options)
  for _, name in ipairs(OPTIONS) do
    local value, check = options[name], CHECKS[name]
    if value and not check[1](value) then
      refuse("--vgpu-" .. name, value, "%s, for example --vgpu-%s=%s", check[2], name, check[3])
    end
  end
end

-- ---- shares ----------------------------------------------------------------

-- Memory in hundredths of the card, rounded up; 0 when it cannot be known.
local function memory_share(options, card_type, share)
  if not options.mem then return 0 end
  local bytes, percent = memory(options.mem)
  if percent then return percent end
  if bytes < MIB then -- Slurm's own --mem=8192 is MiB
    local mib = string.match(options.mem, "^%d+$")
    refuse("--vgpu-mem", options.mem, "at least 1M, and a number without K, M, G or T counts bytes, "
      .. "for example --vgpu-mem=%s", mib and shown(mib .. "M") or "8G")
  end
  local mib, most, most_type = card_mib(card_type), largest_card()
  local need = mib and math.ceil(bytes * UNITS / (mib * MIB)) or 0
  if need > UNITS and card_type then
    refuse("--vgpu-mem", options.mem, "at most %d MiB, the memory of one %s card, "
      .. "for example --vgpu-mem=%s", mib, shown(card_type), gib_or_mib(mib))
  elseif most and bytes > most * MIB then
    refuse("--vgpu-mem", options.mem, "at most %d MiB, the memory of the largest card%s, "
      .. "for example --vgpu-mem=%s", most, most_type and " (" .. most_type .. ")" or "",
      gib_or_mib(most))
  elseif need > UNITS then
    refuse("--vgpu-mem", options.mem, "at most %d MiB on a card of any type, or a type that has "
      .. "more, for example --gres=vgpu:%s:%d", mib, most_type,
      math.max(share, math.ceil(bytes * UNITS / (most * MIB))))
  end
  return need
end

-- The least number of cards that a share can be split over, each a whole number of
-- hundredths; nil where there is none, as for 101.
local function fewest_cards(share)
  for cards = 1, MAX_CARDS do
    if share % cards == 0 and share / cards <= UNITS then return cards end
  end
end

-- The number of cards that a share is split over.
local function cards_of(share, options)
  if not options.cards then return math.max(1, math.floor(share / UNITS)) end
  local cards, fits = whole(options.cards, MAX_CARDS), fewest_cards(share)
  local divides, each = share % cards == 0, share / cards
  local parts = share > UNITS and share % UNITS ~= 0 or divides and cards > 1 and each < UNITS
  if parts and site.placement == "slurm" then
    refuse("--vgpu-cards", options.cards, "whole cards, because here a share of less than a card "
      .. "is always on one card, for example --gres=vgpu:%d", math.max(cards, math.ceil(share / UNITS)) * UNITS)
  elseif not divides then
    refuse("--vgpu-cards", options.cards, "a number of cards that divides the share %d, "
      .. "for example --vgpu-cards=%d", share, fits)
  elseif each > UNITS then
    refuse("--vgpu-cards", options.cards, "%d cards for the share %d, for example --vgpu-cards=%d",
      fits, share, fits)
  end
  return cards
end

-- ---- partitions ------------------------------------------------------------

-- The names of a job's partitions: several may be given, and where none is it
-- is the default one.
local function partition_names(job, parts)
  local names = {}
  for name in string.gmatch(job.partition or "", "[^,]+") do names[#names + 1] = name end
  if #names > 0 then return names end
  for name, part in pairs(parts or {}) do
    if type(part) == "table" or type(part) == "userdata" then
      if part.flag_default == 1 then return {part.name or name} end
    end
  end
  return names
end

-- The rules of each of the job's partitions that has some, in its order.
local function rules_of(job, parts)
  local rules = {}
  if not next(site.partitions) then return rules end
  for _, name in ipairs(partition_names(job, parts)) do
    local rule = site.partitions[name]
    if rule then rules[#rules + 1] = {name = name, rule = rule} end
  end
  return rules
end

-- What the user did not say, the first partition that has a word for it does.
local function partition_defaults(rules, options)
  local added = {}
  for _, r in ipairs(rules) do
    for name, value in pairs(r.rule.defaults or {}) do
      value = tostring(value)
      if name == "cards" or not CHECKS[name] or not CHECKS[name][1](value) then
        slurm.log_error("vgpu: vgpu_cards.lua: partition %s: default %s = %s: not used", r.name, name, value)
      elseif not options[name] and not added[name] then
        added[name] = value
      end
    end
  end
  return added
end

local function contains(list, word)
  for _, one in ipairs(list) do
    if one == word then return true end
  end
  return false
end

-- Refuses a mode or an engine that a rule does not list. The engines time and auto need no list:
-- auto falls back to time.
local function check_words(rule, options, where)
  local mode = string.match(options.mode or "", "^%l+")
  if mode and rule.modes and not contains(rule.modes, mode) then
    refuse("--vgpu-mode", options.mode, "%s %s, for example --vgpu-mode=%s",
      table.concat(rule.modes, " or "), where, rule.modes[1])
  end
  local engine = options.engine
  if (engine == "mps" or engine == "concurrent") and rule.engines and not contains(rule.engines, engine) then
    refuse("--vgpu-engine", engine, "%s %s, for example --vgpu-engine=time",
      table.concat({"time", "auto", rule.engines[1]}, " or "), where)
  end
end

-- need: hundredths of each card, by what asks for them.
local function check_ceilings(rules, asked, cards, options, need, bytes)
  for _, r in ipairs(rules) do
    local most, most_cards = r.rule.max_share or UNITS, r.rule.max_cards or MAX_CARDS
    if need.share > most then
      refuse("--gres=vgpu", asked, "at most %d in partition %s, for example --gres=vgpu:%d", most, r.name, most)
    elseif cards > most_cards then
      refuse("--gres=vgpu", asked, "at most %d in partition %s, for example --gres=vgpu:%d",
        most_cards * UNITS, r.name, most_cards * UNITS)
    elseif need.cores > most then
      refuse("--vgpu-cores", options.cores, "at most %d in partition %s, for example --vgpu-cores=%d",
        most, r.name, most)
    elseif need.mem > most then
      refuse("--vgpu-mem", options.mem, "at most %d%% of a card in partition %s, for example --vgpu-mem=%d%%",
        most, r.name, most)
    elseif need.alone > most then
      refuse("--vgpu-policy", options.policy, "another policy in partition %s, where a job has at most %d%% "
        .. "of a card, for example --vgpu-policy=binpack", r.name, most)
    end
    local max_bytes = memory(tostring(r.rule.max_mem or ""))
    if max_bytes and bytes and bytes > max_bytes then
      refuse("--vgpu-mem", options.mem, "at most %s in partition %s, for example --vgpu-mem=%s",
        r.rule.max_mem, r.name, r.rule.max_mem)
    end
    check_words(r.rule, options, "in partition " .. r.name)
  end
  check_words(site, options, "at this site")
end

-- What slurmctld must count for a share: the largest of share, memory and
-- compute on each card.
local function dominant(share, options, card_type, rules)
  local cards = cards_of(share, options)
  local each = share / cards
  local cores = options.cores and whole(options.cores, 100)
  local ceiling = tonumber(string.match(options.mode or "", "^soft:(%d+)$"))
  if ceiling and ceiling < (cores or each) then
    refuse("--vgpu-mode", options.mode, "a ceiling of at least the compute share %d, "
      .. "for example --vgpu-mode=soft:%d", cores or each, cores or each)
  end
  local need = {share = each, cores = cores or 0, mem = memory_share(options, card_type, each),
    alone = options.policy == "exclusive" and UNITS or 0}
  check_ceilings(rules, string.format("%d", share), cards, options, need, memory(options.mem or ""))
  return math.max(need.share, need.cores, need.mem, need.alone) * cards
end

-- ---- GRES ------------------------------------------------------------------

-- One word of a TRES list: "gres:vgpu:h200:30", "gres/shard=20", "cpu=2".
-- count is text: nil when there is none.
local function parse_item(item)
  local prefix, rest = string.match(item, "^(gres[:/])(.*)$")
  if not prefix then prefix, rest = "", item end
  local name, tail = string.match(rest, "^([^:=]*)(.*)$")
  local card_type, sign, count = string.match(tail, "^:(.+)([:=])([^:=]*)$")
  if not card_type then sign, count = string.match(tail, "^([:=])(.*)$") end
  return {prefix = prefix, name = name, card_type = card_type, sign = sign or ":", count = count}
end

-- A plain --gres=shard means one shard, as everywhere in slurm. More than a card that
-- is no whole cards is for several, whose number must be said.
local function parse_share(item, options)
  local count = item.count or (item.name == "shard" and "1" or "")
  local share = whole(count, MAX_CARDS * UNITS)
  local split = share and share > UNITS and share % UNITS ~= 0
  if not share or split and not (options.cards and fewest_cards(share)) then
    local card_type = item.card_type and ":" .. item.card_type or ""
    refuse("--gres=" .. item.name .. card_type, count, "1 to 100 (hundredths of a card), "
      .. "100 for each whole card, or with --vgpu-cards a share of several cards, "
      .. "for example --gres=vgpu:30 or --gres=vgpu:200")
  end
  return share
end

-- gpu:vgpu:N comes from --gpus=vgpu:N and its like, where vgpu would be a type
-- of card, as in vgpu:vgpu:N.
local function refuse_spelling(field, item)
  local right = whole(item.count or "", MAX_CARDS * UNITS) or 30
  local flag = item.name == "gpu" and FLAGS[field] or "--gres"
  refuse(flag, "vgpu:" .. (item.count or ""),
    "--gres=vgpu:%d: a share is a GRES, not a type of GPU", right)
end

-- Where shares are counted twice (count = true), what this script wrote comes back
-- in a job that is changed: "shard:30,vgpu:30", "gpu:2,vgpu:200".
local function repeats(before, item, field)
  if not site.count or not before or before.field ~= field or item.name ~= "vgpu" then return false end
  local held = before.item
  local each = held.name == "gpu" and UNITS or 1
  return (tonumber(held.count or "") or 1) * each == tonumber(item.count or "")
end

-- Splits the job's TRES lists. Returns the lists, and which item is the share.
local function find_share(job)
  local lists, found, others = {}, nil, nil
  for _, field in ipairs(FIELDS) do
    local text = job[field]
    if text and text ~= "" then
      local list = {}
      for word in string.gmatch(text, "[^,]+") do
        local item = parse_item(word)
        item.word, item.text = word, string.gsub(word, "^gres[:/]", "")
        list[#list + 1] = item
        if item.card_type == "vgpu" and (item.name == "gpu" or item.name == "vgpu" or item.name == "shard") then
          refuse_spelling(field, item)
        end
        if item.name == "gpu" and not item.card_type and item.count == "vgpu" then
          item.count = nil
          refuse_spelling(field, item)
        end
        if repeats(found or others, item, field) then
          list[#list] = nil
        elseif item.name == "vgpu" or item.name == "shard" then
          if found then
            refuse("--gres", item.text, "one share of a card, for example --gres=vgpu:30")
          end
          found = {item = item, field = field}
        elseif item.name == "gpu" or item.name == "mps" then
          others = {item = item, field = field}
        end
      end
      lists[field] = list
    end
  end
  if found and others then
    refuse("--gres", others.item.text,
      "either shares or whole GPUs in one job, for example --gres=vgpu:200 for two whole cards")
  end
  return lists, found, others
end

-- Several whole cards: slurmctld never starts a job whose shards are on more
-- than one card, so it must see gpu:k. A single whole card stays a share, which
-- takes no card out of the pool that is shared.
local function rewrite(item, share, count)
  if site.placement ~= "slurm" then
    item.name = "vgpu"
  elseif share > UNITS then
    item.name, count = "gpu", share / UNITS
  else
    item.name = "shard"
  end
  item.word = item.prefix .. item.name .. (item.card_type and ":" .. item.card_type or "")
    .. item.sign .. string.format("%d", count)
  if site.count and site.placement == "slurm" then
    local counted = item.name == "gpu" and count * UNITS or count
    item.word = string.format("%s,%svgpu%s%d", item.word, item.prefix, item.sign, counted)
  end
end


local function join(list)
  local words = {}
  for _, item in ipairs(list) do words[#words + 1] = item.word end
  return table.concat(words, ",")
end

-- ---- one job ---------------------------------------------------------------

local function first_option(options)
  for _, name in ipairs(OPTIONS) do
    if options[name] then return "--vgpu-" .. name, options[name] end
  end
end

-- Whole GPUs that also carry options: limits on cards that the job has alone.
local function whole_gpus(others, options, rules)
  local item = others and others.item
  if not item or item.name ~= "gpu" or item.count == "0" then return nil end
  -- "gpu" and "gpu:h200" are one card: there the type is where a count could be.
  local gpus, card_type = whole(item.count or "", MAX_CARDS), item.card_type
  if not gpus then gpus, card_type = 1, item.count end
  dominant(gpus * UNITS, options, card_type, rules)
  return gpus * UNITS
end

-- The share behind a plain shard:N: what vgpu-srun wrote into the comment when
-- N was raised for memory or cores. Nobody gains by writing less than N there.
-- Several whole cards were never raised.
local function marked_share(item, count, marked)
  local share = item.name == "shard" and count <= UNITS and whole(marked or "", UNITS)
  return share and math.min(share, count) or count
end

-- Decides for one job: puts new names and counts into the lists, and returns
-- the share where gresd cannot see it from them. marked: the share that the
-- comment names, as cli_filter.lua writes it for several whole cards.
local function decide(found, others, options, marked, rules)
  if not found then
    local flag, value = first_option(options)
    if not flag and not marked then return nil end
    local share = whole_gpus(others, options, rules)
    if flag and not share then
      refuse(flag, value, "also a share of a card: add for example --gres=vgpu:30, or %s=none", flag)
    end
    return share
  end
  local item = found.item
  local asked = parse_share(item, options)
  local share = marked_share(item, asked, marked)
  local count = math.max(asked, dominant(share, options, item.card_type, rules))
  rewrite(item, share, count)
  if share ~= count or item.name ~= "shard" then return share end
end

-- What the plugin sent wins over the comment; a mistake in either is told.
local function all_options(typed, words)
  local all = {}
  for _, options in ipairs({words, typed}) do
    check_options(options)
    for name, value in pairs(options) do all[name] = value end
  end
  return all
end

-- --exclusive gives a job all shards of its node, and shards of one job are on
-- one card: where a node has more cards slurmctld does not start the job, and
-- may hold back those behind it.
local function refuse_exclusive(job, item)
  if job.shared ~= EXCLUSIVE then return end
  refuse("--exclusive", item.text, "a share, or a node alone with all its cards, "
    .. "for example --gres=vgpu:30, or --exclusive --gres=gpu:1")
end

-- The same in a partition that gives each job a node alone. Where it gives a user the
-- node alone (ExclusiveUser), the user's jobs share it as elsewhere.
local function refuse_partition(job, parts)
  for _, name in ipairs(partition_names(job, parts)) do
    local part = (parts or {})[name]
    if part and part.max_share == ALONE then
      refuse("--partition", name, "a partition whose nodes jobs share, or whole cards, for example --gres=gpu:1: "
        .. "each job there has its node alone (OverSubscribe=EXCLUSIVE)")
    end
  end
end

-- "4" of "gres:gpu:4"; nil where nothing is asked for each GPU.
local function per_gpu(list)
  if list and list ~= "" then return (string.gsub(list, "^.*gpu[:=]", "")) end
end

-- What Slurm knows of whole GPUs alone: it refuses it beside shards without a word of
-- why, or takes no notice.
local function refuse_beside(job, found)
  if found.item.name == "gpu" then return end
  local cpus, mem, freq = per_gpu(job.cpus_per_tres), per_gpu(job.mem_per_tres), per_gpu(job.tres_freq)
  if cpus then
    refuse("--cpus-per-gpu", cpus, "--cpus-per-task beside a share, for example --cpus-per-task=%s", shown(cpus))
  elseif mem then
    refuse("--mem-per-gpu", mem, "--mem beside a share, for example --mem=%s", shown(mem))
  elseif freq then
    refuse("--gpu-freq", freq, "no frequency of a card that others use, or whole GPUs, for example --gres=gpu:1")
  end
  if found.field == "tres_per_job" then
    refuse("tres_per_job", found.item.text, "a share in tres_per_node, for example tres_per_node=gres:%s",
      shown(found.item.text))
  end
end

-- The rules for a job with a share. job is the request, or the job after a change.
local function check_request(job, parts, found)
  refuse_exclusive(job, found.item)
  refuse_partition(job, parts)
  refuse_beside(job, found)
end

-- Adds the defaults of the partitions to the options and to the words of the comment.
-- Reports whether there was one to add.
local function add_defaults(rules, options, words)
  local added = partition_defaults(rules, options)
  for name, value in pairs(added) do options[name], words[name] = value, value end
  return next(added) ~= nil
end

local function several(n) return n and n > 1 and n < NO_VAL end

-- slurmd gives Prolog the options of what comes to its node first. Where that may not be the
-- batch script it is a step, and not each step has the options of its job.
local function begins_with_a_step(job)
  return not job.script or job.max_nodes ~= 1 and (several(job.min_nodes) or several(job.num_tasks))
end

local function submit(job, parts)
  local text, words = read_token(job.comment)
  local options = all_options(spank_options(job), words)
  local lists, found, others = find_share(job)
  -- In a het job, SPANK options carry over to the next components, also to those
  -- without a card; on a node all see the options of the first one.
  local het = (job.het_job_offset or NO_VAL) < NO_VAL
  if het and job.het_job_offset > 0 and not found and not others then options = {} end
  local rules = rules_of(job, parts)
  if found then add_defaults(rules, options, words) end
  local share = decide(found, others, options, words.share, rules)
  if found then
    check_request(job, parts, found)
    job[found.field] = join(lists[found.field])
  end
  if (het or begins_with_a_step(job)) and (found or share) then words = options end
  words.share = share and string.format("%d", share) or nil
  local comment = format_token(text, words)
  if comment ~= (job.comment or "") then job.comment = comment end
end

-- Slurm takes an empty comment for no change, and an old share would go on
-- counting: a blank is what takes it away.
local function change_comment(job, record, comment)
  if comment == "" and (record.comment or "") ~= "" then comment = " " end
  if comment ~= (record.comment or "") or job.comment then job.comment = comment end
end

-- Whether a change sets one of these fields. An empty list takes the GRES away.
local function touches(job, fields)
  for _, field in ipairs(fields) do
    if job[field] then return true end
  end
  return false
end

-- The job after a change, in the fields that have rules.
local function changed(job, record)
  local new = {shared = job.shared, partition = job.partition or record.partition}
  for _, fields in ipairs({FIELDS, PER_GPU}) do
    for _, field in ipairs(fields) do new[field] = job[field] or record[field] end
  end
  return new
end

-- Lua cannot see whether a job has --exclusive. A job with a share has not: it was
-- refused at submit. A job without a share can have it, so it gets no share later.
local function refuse_late_share(record, old, item)
  if old.share then return end
  for _, field in ipairs(FIELDS) do
    local list = record[field] or ""
    if string.find(list, "shard") or string.find(list, "vgpu") then return end
  end
  refuse("--gres", item.text, "a share at submission, for example sbatch --gres=%s: "
    .. "a change cannot see whether the job has --exclusive", shown(item.text))
end

-- A change that leaves the share as it is must keep the rules with it. The lists of the
-- job stay as they are.
local function check_change(job, parts, found, options, words, share, rules)
  check_request(job, job.partition and parts, found)
  local added = (job.comment or job.partition) and add_defaults(rules, options, words)
  -- A count that was raised, over several cards too, is not always one to ask for.
  local count = whole(found.item.count or "", MAX_CARDS * UNITS) or parse_share(found.item, options)
  share = whole(share or "", MAX_CARDS * UNITS) or count
  local need = dominant(math.min(share, count), options, found.item.card_type, rules)
  -- With more than is counted for it the job would wait its turn, and then be refused.
  if (job.comment or added) and need > count then
    refuse(job.comment and "--comment" or "--partition", job.comment or job.partition or "",
      "words for which the job's share of %d is enough, or a larger share in the same "
      .. "change, for example Gres=vgpu:%d", count, need)
  end
end

-- A change that leaves the GRES alone must keep the share of the job; one that
-- leaves the comment alone must keep its text.
local function modify(job, record, parts)
  if not touches(job, FIELDS) and not touches(job, PER_GPU) and not job.comment and not job.partition then return end
  local ok, _, old = pcall(read_token, record.comment)
  if not ok then old = {} end
  local text, words = read_token(job.comment or record.comment)
  -- Options that submit copied into the comment stay there.
  for name, value in pairs(spank_options(record)) do
    if old[name] == value then words[name] = words[name] or value end
  end
  local options = all_options(spank_options(record), words)
  local share, new = old.share, changed(job, record)
  local rules = rules_of(new, parts)
  if touches(job, FIELDS) or touches(job, PER_GPU) or job.partition or next(words) or next(rules) then
    local lists, found, others = find_share(new)
    if found and job[found.field] then
      refuse_late_share(record, old, found.item)
      add_defaults(rules, options, words)
      share = decide(found, others, options, job.comment and words.share, rules)
      check_request(new, parts, found)
      job[found.field] = join(lists[found.field])
    elseif found then
      check_change(job, parts, found, options, words, share, rules)
    elseif touches(job, FIELDS) then
      share = decide(nil, others, {}, job.comment and words.share, rules)
    elseif others then
      decide(nil, others, options, share, rules)
    end
  end
  words.share = type(share) == "number" and string.format("%d", share) or share
  change_comment(job, record, format_token(text, words))
end

-- ---- entry points ----------------------------------------------------------

local function names_a_share(job)
  local all = ""
  for _, field in ipairs(FIELDS) do all = all .. (job[field] or "") end
  return string.find(all, "vgpu") or string.find(all, "shard")
end

-- A mistake of the user is one line to the user. A mistake in this file must
-- not stop the cluster from taking jobs: it is logged, and only a job that
-- would run without its limits is refused.
local function guarded(job, work)
  load_site()
  local ok, problem = pcall(work)
  if ok then return slurm.SUCCESS end
  if type(problem) == "table" then
    slurm.log_user("%s", problem.line)
    return REFUSED
  end
  slurm.log_error("vgpu: job_submit.lua: %s", tostring(problem))
  if not names_a_share(job) then return slurm.SUCCESS end
  slurm.log_user("%s", "vgpu: the cluster cannot take vgpu jobs now: job_submit.lua fails, "
    .. "see the log of slurmctld")
  return REFUSED
end

local function job_submit(job, parts, _)
  return guarded(job, function() submit(job, parts) end)
end

local function job_modify(job, record, parts, _)
  return guarded(job, function() modify(job, record, parts) end)
end

-- require names the module; slurmctld, and dofile, give no word.
if ... then return {submit = job_submit, modify = job_modify} end

vgpu_job_submit, vgpu_job_modify = job_submit, job_modify
slurm_job_submit, slurm_job_modify = job_submit, job_modify

return slurm.SUCCESS
