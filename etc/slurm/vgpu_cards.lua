-- SPDX-License-Identifier: Apache-2.0
--
-- vgpu_cards.lua: what job_submit.lua must know of the cards, to turn
-- --vgpu-mem=40G into shares of a card. Put it beside job_submit.lua or into
-- /etc/slurm on the host of slurmctld. Changes count from the next job on.
--
-- MiB as `nvidia-smi --query-gpu=memory.total --format=csv` shows them. cards:
-- by Type= of gres.conf. default: for jobs that name no type, so the smallest
-- card of the cluster. placement: "slurm" (vgpu is backed by gres/shard), or
-- "gresd" where nodes have Gres=vgpu:N and gresd chooses the card.
--
-- count: true makes a job also hold as much gres/vgpu as shards, and 100 for each
-- whole card that it asked for as vgpu, so that one quota and one column of sacct
-- cover both (docs/accounting.md). All nodes then need vgpu in their Gres=, as
-- gresd gres-conf --count prints it.
--
-- modes and engines: as in vgpu.toml ([limits] modes, [mps] engines), of all nodes
-- together. sbatch then refuses the others; nil: only the nodes refuse them.
--
-- partitions: by name of partition. defaults: options that count where the user
-- gave none, written as behind --vgpu-. max_share: in hundredths of a card, also
-- for memory and compute; below 100 it leaves no whole cards. max_cards: whole
-- cards of one job. max_mem: per card. modes and engines: those that may be asked
-- for, of those above.

return {
  units = 100, -- shards that slurmctld counts for one card
  default = 81559,
  cards = {
    h200 = 143771,
    h100 = 81559,
    a100 = 81920,
  },
  placement = "slurm",
  count = false,
  modes = {"hard", "soft"},
  engines = {},
  partitions = {
    -- debug = {
    --   defaults = {mode = "soft", priority = "high"},
    --   max_share = 50, max_mem = "40G", modes = {"soft"},
    -- },
    -- batch = {max_cards = 2},
  },
}
