// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them. What is not known is "?", never 0.

export const percent = v => v == null ? '?' : `${Math.round(v)} %`;

// shareOf is the share of a card, and of its compute if this differs.
export const shareOf = card => card.share === card.cores ? percent(card.share) : `${percent(card.share)} / ${percent(card.cores)}`;

// size is a number of bytes in powers of 1024.
export function size(n) {
  if (n == null) return '?';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${n >= 100 || Number.isInteger(n) ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

// ofSize is "3.2 of 8 GiB", with the unit once where both have the same.
export function ofSize(part, all) {
  const [number, unit] = size(part).split(' ');
  return `${unit === size(all).split(' ')[1] ? number : size(part)} of ${size(all)}`;
}

export function duration(seconds) {
  if (seconds == null) return '?';
  const s = Math.round(seconds);
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const i = parts.findIndex(([n]) => s >= n);
  if (i < 0) return '0 s';
  const [n, unit] = parts[i];
  const rest = i + 1 < parts.length ? Math.floor(s % n / parts[i + 1][0]) : 0;
  return `${Math.floor(s / n)} ${unit}${rest ? ` ${rest} ${parts[i + 1][1]}` : ''}`;
}

export const clock = t => new Date(t).toLocaleTimeString([], {hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23'});

export const count = (n, one, more = `${one}s`) => `${n} ${n === 1 ? one : more}`;

export const userOf = job => job.user || String(job.uid);

export const modeOf = job => (job.mode || 'hard') + (job.ceiling ? `, to ${job.ceiling} %` : '') + (job.engine ? `, ${job.engine}` : '');

// reasons are Slurm's words for why a job waits, for people. Others are shown as they are.
const reasons = {
  Resources: 'no card has room for it now',
  Priority: 'jobs before it come first',
  Dependency: 'it waits for another job',
  BeginTime: 'its time has not come, or it was sent back',
  JobHeldUser: 'its user holds it',
  JobHeldAdmin: 'an administrator holds it',
  JobArrayTaskLimit: 'its array runs as many at once as it may',
  ReqNodeNotAvail: 'the node that it wants is not there',
  Reservation: 'it waits for its reservation',
  Licenses: 'no licence is free',
  PartitionDown: 'its partition is down',
  None: 'Slurm has not looked yet',
};

export function reasonOf(word) {
  const key = word.replace(/[ ,(].*/, '');
  if (reasons[key]) return `${reasons[key]} (${word})`;
  if (/^(Assoc|QOS)/.test(key)) return `a limit of its account or QOS (${word})`;
  return word;
}
