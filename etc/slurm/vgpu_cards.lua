-- SPDX-License-Identifier: Apache-2.0
--
-- vgpu_cards.lua: what job_submit.lua must know of the cards, to turn
-- --vgpu-mem=40G into shares of a card. Put it beside job_submit.lua or into
-- /etc/slurm on the host of slurmctld, then: scontrol reconfigure
--
-- MiB as `nvidia-smi --query-gpu=memory.total --format=csv` shows them. cards:
-- by Type= of gres.conf. default: for jobs that name no type, so the smallest
-- card of the cluster. placement: "slurm" (vgpu is backed by gres/shard), or
-- "gresd" where nodes have Gres=vgpu:N and gresd chooses the card.

return {
  units = 100, -- shards that slurmctld counts for one card
  default = 81559,
  cards = {
    h200 = 143771,
    h100 = 81559,
    a100 = 81920,
  },
  placement = "slurm",
}
