// SPDX-License-Identifier: Apache-2.0
// The tables of jobs and of those that wait.

import {el, say, set, each} from './dom.js';
import {percent, shareOf, ofSize, duration, userOf, modeOf, reasonOf} from './words.js';

const throttledMuch = 25; // as in vgpuctl top

// A column has a title, what it is sorted by (numbers from the largest), and its text.
const columns = [
  {title: 'Job', by: r => r.job.job_id, up: true},
  {title: 'User', by: r => userOf(r.job), text: r => userOf(r.job)},
  {title: 'Node', by: r => r.node, text: r => r.node, many: true},
  {title: 'Card', by: r => r.card?.index ?? -1, up: true, number: true, text: r => r.card ? String(r.card.index) : '–'},
  {title: 'Share', by: r => r.card?.cores ?? -1, number: true, text: r => r.card ? shareOf(r.card) : '–'},
  {title: 'Got', by: r => r.card?.got_percent ?? -1, number: true, meter: r => [r.card.got_percent, r.card.cores], text: r => r.card ? percent(r.card.got_percent) : '–'},
  {title: 'Throttled', by: r => r.card?.throttled_percent ?? -1, number: true, text: r => r.card ? percent(r.card.throttled_percent) : '–', warn: r => r.card?.throttled_percent >= throttledMuch},
  {title: 'Limited by', by: r => r.card?.limited_by || '', text: r => r.card ? r.card.limited_by || '–' : r.job.state},
  {title: 'Memory', by: r => r.card?.memory_used_bytes ?? -1, number: true, meter: r => [100 * (r.card.memory_used_bytes || 0) / r.card.memory_limit_bytes], text: r => r.card ? ofSize(r.card.memory_used_bytes, r.card.memory_limit_bytes) : '–',
    warn: r => r.card?.memory_used_bytes > 0.95 * r.card?.memory_limit_bytes},
  {title: 'Mode', by: r => modeOf(r.job), text: r => modeOf(r.job)},
  {title: 'GPU time', by: r => r.card?.gpu_seconds ?? -1, number: true, text: r => r.card ? duration(r.card.gpu_seconds) : '–'},
  {title: 'Processes', by: r => r.card?.processes ?? -1, number: true, text: r => r.card ? String(r.card.processes ?? '?') : '–'},
];

let order = columns[0], reverse = false;

// drawHead makes the buttons that sort; changed is called after one was pressed.
export function drawHead(table, changed) {
  const head = table.querySelector('thead tr');
  for (const c of columns) {
    const button = el('button', {type: 'button'}, c.title);
    button.addEventListener('click', () => {
      reverse = order === c && !reverse;
      order = c;
      changed();
    });
    head.append(el('th', {role: 'columnheader', scope: 'col', class: [c.number && 'number', c.many && 'node'].filter(Boolean).join(' ') || null}, button));
  }
}

function sorted(rows) {
  const down = order.number && !order.up;
  const compare = (a, b) => {
    const x = order.by(a), y = order.by(b);
    const n = typeof x === 'string' ? x.localeCompare(y) : x - y;
    return (down ? -n : n) || a.job.job_id - b.job.job_id || (a.card?.index ?? 0) - (b.card?.index ?? 0);
  };
  return rows.sort((a, b) => reverse ? compare(b, a) : compare(a, b));
}

// notesOf are what the table has no column for.
function notesOf(r) {
  const notes = [];
  if (r.job.reason) notes.push(r.job.reason);
  if (r.card?.deprived_seconds >= 10) notes.push(`Its neighbors have taken much of its time for ${duration(r.card.deprived_seconds)}.`);
  if (r.card?.allocations_refused > 0) notes.push(`Memory above its limit was refused ${r.card.allocations_refused} times.`);
  return notes.concat(r.first ? r.job.messages || [] : []);
}

function makeRow(r) {
  const tr = el('tr', {role: 'row', tabindex: '-1'});
  columns.forEach((c, i) => {
    const cell = el(i === 0 ? 'th' : 'td', {role: i === 0 ? 'rowheader' : 'cell', scope: i === 0 ? 'row' : null, 'data-title': c.title,
      class: [c.number && 'number', c.many && 'node'].filter(Boolean).join(' ') || null});
    if (i === 0) cell.append(el('span', {class: 'swatch', 'aria-hidden': 'true'}));
    cell.append(el('span', {class: 'text'}, i === 0 ? String(r.job.job_id) : ''));
    if (c.meter && r.card) cell.append(el('span', {class: 'meter', 'aria-hidden': 'true'}, el('i'), el('b')));
    tr.append(cell);
  });
  return tr;
}

function drawRow(tr, r) {
  set(tr, 'id', r.first ? `job-${r.job.job_id}` : null);
  set(tr.firstElementChild.firstElementChild, 'data-hue', r.hue);
  columns.forEach((c, i) => {
    if (i === 0) return;
    const cell = tr.children[i];
    const text = c.text(r);
    say(cell.querySelector('.text'), text);
    cell.classList.toggle('nothing', text === '–');
    cell.classList.toggle('warn', Boolean(c.warn?.(r)));
    const meter = cell.querySelector('.meter');
    if (!meter) return;
    const [part, mark] = c.meter(r);
    meter.firstElementChild.style.width = `${Math.min(100, part || 0)}%`;
    meter.lastElementChild.hidden = mark == null;
    if (mark != null) meter.lastElementChild.style.left = `${Math.min(100, mark)}%`;
  });
}

// drawJobs shows rows ({key, job, card, node, hue, first}).
export function drawJobs(table, rows, many) {
  table.classList.toggle('many', many);
  table.querySelectorAll('thead th').forEach((th, i) => {
    const up = (order.number && !order.up) === reverse;
    set(th, 'aria-sort', columns[i] === order ? up ? 'ascending' : 'descending' : null);
  });
  const lines = [];
  for (const r of sorted(rows)) {
    lines.push({...r, line: r.key});
    const notes = notesOf(r);
    if (notes.length > 0) lines.push({line: `${r.key}/notes`, notes});
  }
  each(table.querySelector('tbody'), lines, l => l.line,
    l => l.notes ? el('tr', {class: 'note', role: 'row'}, el('td', {role: 'cell', colspan: columns.length})) : makeRow(l),
    (tr, l) => l.notes ? each(tr.firstElementChild, l.notes, n => n, n => el('p', {}, n), () => {}) : drawRow(tr, l));
}

const queueColumns = ['Job', 'User', 'Asks for', 'Why it waits'];

export function drawQueue(table, queue) {
  const head = table.querySelector('thead tr');
  if (!head.firstChild) head.append(...queueColumns.map(t => el('th', {role: 'columnheader', scope: 'col'}, t)));
  each(table.querySelector('tbody'), queue.slice(0, 100), q => q.job_id, q => el('tr', {role: 'row'},
    el('th', {role: 'rowheader', scope: 'row', 'data-title': 'Job'}, el('span', {class: 'text'}, q.job_id)),
    ...queueColumns.slice(1).map(t => el('td', {role: 'cell', 'data-title': t}))), (tr, q) => {
    [q.user, q.gres, reasonOf(q.reason)].forEach((text, i) => say(tr.children[i + 1], text));
  });
}
