// SPDX-License-Identifier: Apache-2.0
// Takes events of vgpuctl web and shows them. While the page is hidden it takes none, and
// gresd is not asked.

import {el, say, set, show, each} from './dom.js';
import {percent, clock, count, userOf, duration} from './words.js';
import {makeCard, drawCard} from './cards.js';
import {drawHead, drawJobs, drawQueue} from './tables.js';

const $ = id => document.getElementById(id);
const hues = 7;

let source, every = 2000, keep = 300000, sample = null, past = {times: [], got: {}}, lastNews = 0;

// hueOf gives a job a colour for as long as it lives: the first that no job on its cards has.
const hueByJob = new Map();
function giveHues(jobs) {
  const live = new Set(jobs.map(j => j.job_id));
  for (const id of hueByJob.keys()) if (!live.has(id)) hueByJob.delete(id);
  const taken = new Map();
  const of = uuid => taken.get(uuid) || taken.set(uuid, new Set()).get(uuid);
  for (const j of jobs) if (hueByJob.has(j.job_id)) for (const c of j.cards || []) of(c.gpu_uuid).add(hueByJob.get(j.job_id));
  for (const j of jobs) {
    if (hueByJob.has(j.job_id)) continue;
    const cards = j.cards || [];
    let hue = 0;
    while (hue < hues && cards.some(c => of(c.gpu_uuid).has(hue))) hue++;
    hue = hue < hues ? hue : j.job_id % hues;
    hueByJob.set(j.job_id, hue);
    cards.forEach(c => of(c.gpu_uuid).add(hue));
  }
}

// remember adds a sample to the past, as vgpuctl web does for those who come later.
function remember(s) {
  const t = Date.parse(s.time);
  const now = {};
  for (const n of s.nodes) for (const j of n.jobs) for (const c of j.cards || []) now[`${j.job_id}/${c.gpu_uuid}`] = c.got_percent ?? null;
  const drop = past.times.findIndex(x => t - x <= keep);
  const from = drop < 0 ? past.times.length : drop;
  const got = {};
  for (const [key, v] of Object.entries(now)) {
    got[key] = [...(past.got[key]?.slice(from) || new Array(past.times.length - from).fill(null)), v];
  }
  past = {times: [...past.times.slice(from), t], got};
}

function drawFigures(cards, jobs) {
  const healthy = cards.filter(c => c.healthy).length;
  const known = cards.filter(c => c.compute_percent != null);
  const mean = (list, of) => list.length ? list.reduce((n, c) => n + of(c), 0) / list.length : null;
  const all = cards.reduce((n, c) => n + c.jobs, 0);
  const throttled = cards.reduce((n, c) => n + c.jobs_throttled, 0);
  const facts = [
    ['Cards', `${cards.length}`, healthy < cards.length ? `${cards.length - healthy} out of use` : 'all in use', healthy < cards.length],
    ['Share given', percent(mean(cards, c => c.share)), 'of all cards'],
    ['Busy', percent(mean(known, c => c.compute_percent)), 'of all cards, now'],
    ['Jobs', `${jobs.length}`, all > jobs.length ? 'yours' : 'with a share'],
    ['Throttled', `${throttled}`, throttled ? count(throttled, 'job waits for its share', 'jobs wait for their share') : 'no job waits for its share'],
    ['In the queue', sample.queue ? `${sample.queue.length}` : '?', sample.queue ? 'wait for a share' : 'Slurm was not asked or is silent'],
  ];
  each($('figures'), facts, f => f[0], f => el('div', {}, el('dt', {}, f[0]), el('dd', {}, el('strong'), el('span'))), (e, f) => {
    say(e.querySelector('strong'), f[1]);
    say(e.querySelector('span'), f[2]);
    e.classList.toggle('bad', Boolean(f[3]));
  });
}

function drawProblems() {
  const problems = sample.nodes.flatMap(n => (n.status.problems || [])
    .map(text => sample.nodes.length > 1 ? `${n.status.node}: ${text}` : text));
  show($('problems'), problems.length > 0);
  each($('problems').querySelector('ul'), problems, p => p, p => el('li', {}, p), () => {});
}

function draw() {
  if (!sample) return;
  const many = sample.nodes.length > 1;
  const jobs = sample.nodes.flatMap(n => n.jobs);
  giveHues(jobs);
  const rows = sample.nodes.flatMap(n => n.jobs.flatMap(job => (job.cards?.length ? job.cards : [null]).map((card, i) => ({
    key: card ? `${job.job_id}/${card.gpu_uuid}` : `${job.job_id}`, job, card, node: n.status.node || 'this node', hue: hueByJob.get(job.job_id), first: i === 0,
  }))));
  const cards = sample.nodes.flatMap(n => (n.status.cards || []).map(card => ({card, node: n.status.node || 'this node'})));
  const time = {every, keep, now: Date.parse(sample.time)};

  const where = many ? count(sample.nodes.length, 'node') : sample.nodes[0]?.status.node || 'this node';
  say($('where'), where);
  document.title = `GPU shares, ${where}`;
  say($('at'), clock(sample.time));
  set($('at'), 'datetime', sample.time);
  say($('version'), sample.nodes.filter(n => n.status.version).map(n => `gresd ${n.status.version}, up ${duration((Date.parse(sample.time) - Date.parse(n.status.started)) / 1000)}, cards chosen by ${n.status.placement}.`)[0] || '');
  drawProblems();
  drawFigures(cards.map(c => c.card), jobs.filter(j => j.cards?.length)); // others were refused

  each($('cards').querySelector('.cards'), cards, c => c.card.gpu_uuid, makeCard, (e, c) => drawCard(e, {
    ...c, many, rows: rows.filter(r => r.card?.gpu_uuid === c.card.gpu_uuid).sort((a, b) => a.job.job_id - b.job.job_id), past, time,
  }));
  show($('cards').querySelector('.none'), cards.length === 0);
  drawTables(rows, many);
  set($('main'), 'aria-busy', 'false');
  if (!performance.getEntriesByName('drawn').length) performance.mark('drawn');
}

function drawTables(rows, many) {
  const word = $('find').value.trim().toLowerCase();
  const found = rows.filter(r => !word || [r.job.job_id, userOf(r.job), r.job.account, r.node, r.card?.gpu_uuid, r.card && `card ${r.card.index}`]
    .some(v => v != null && String(v).toLowerCase().includes(word)));
  const none = $('jobs').querySelector('.none');
  show($('jobs-table'), found.length > 0);
  show(none, found.length === 0);
  say(none, rows.length === 0 ? 'No job has a share here, or none of yours.' : `None of ${count(rows.length, 'row')} has “${$('find').value.trim()}”.`);
  drawJobs($('jobs-table'), found, many);

  const queue = sample.queue || [];
  show($('queue'), queue.length > 0);
  drawQueue($('queue-table'), queue);
  const more = $('queue').querySelector('.none');
  show(more, queue.length > 100);
  say(more, `And ${queue.length - 100} more.`);
}

// tell says in a word how the page stands. It is read aloud when it changes.
function tell(state, text) {
  set($('state'), 'data-state', state);
  say($('state'), text);
}

function connect() {
  source?.close();
  source = new EventSource('events');
  const on = (name, f) => source.addEventListener(name, e => { lastNews = Date.now(); f(JSON.parse(e.data)); });
  on('hello', h => { every = h.every_ms; keep = h.keep_ms; });
  on('all', a => { ({past, sample} = a); draw(); });
  on('sample', s => {
    sample = s;
    remember(s);
    tell('good', 'live');
    draw();
  });
  on('problem', p => tell('bad', `no answer: ${p.problem}`));
  source.onerror = () => tell('bad', source.readyState === EventSource.CLOSED
    ? 'vgpuctl web was started anew: open the address that it printed' : 'no connection to vgpuctl web');
}

setInterval(() => {
  if (!document.hidden && source && $('state').dataset.state === 'good' && Date.now() - lastNews > 3 * every + 5000) tell('wait', 'no news');
}, 1000);

document.addEventListener('visibilitychange', () => {
  if (document.hidden) {
    source?.close();
    source = null;
  } else if (!source) connect();
});
$('find').addEventListener('input', draw);
drawHead($('jobs-table'), draw);
connect();
