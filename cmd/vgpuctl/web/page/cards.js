// SPDX-License-Identifier: Apache-2.0
// A card: bars of what its jobs have of it, and a chart of the last minutes.

import {el, say, set, show, each} from './dom.js';
import {percent, ofSize, size, count, userOf} from './words.js';
import {Chart, linesOf, summary} from './charts.js';

// segments are the parts of a bar: {key, hue, part (0 to 1), text, title, inner (0 to 1)}.
function drawBar(list, segments) {
  each(list, segments, s => s.key, s => {
    const li = el('li', {}, el('span', {class: 'fill', 'aria-hidden': 'true'}));
    const label = s.job ? el('a', {href: `#job-${s.job}`}) : el('span', {});
    label.append(el('span', {class: 'tag', 'aria-hidden': 'true'}), el('span', {class: 'sr'}));
    li.append(label);
    return li;
  }, (li, s) => {
    set(li, 'data-hue', s.hue);
    li.style.flexBasis = `${100 * s.part}%`;
    li.querySelector('.fill').style.width = `${100 * (s.inner ?? 1)}%`;
    say(li.querySelector('.tag'), s.tag || '');
    say(li.querySelector('.sr'), s.title);
    set(li, 'title', s.title);
    li.classList.toggle('outline', s.inner != null);
  });
}

function bar(name, label) {
  const row = el('div', {class: `row ${name}`});
  row.append(el('span', {class: 'what'}, label), el('ol', {class: 'bar', 'aria-label': label}), el('span', {class: 'value'}));
  return row;
}

export function makeCard() {
  const card = el('article', {class: 'card'});
  card.append(
    el('h3', {}, el('span', {class: 'name'}), el('span', {class: 'badge'})),
    el('p', {class: 'why', hidden: ''}),
    bar('given', 'Share'), bar('compute', 'Compute'), bar('memory', 'Memory'),
    el('p', {class: 'notes'}),
  );
  const picture = el('div', {class: 'chart', role: 'img'});
  const table = el('table', {}, el('caption', {class: 'sr'}), el('thead', {}, el('tr', {},
    ...['Job', 'Share', 'Now', 'Mean', 'Least', 'Most'].map(t => el('th', {scope: 'col'}, t)))), el('tbody'));
  const figures = el('details', {class: 'figures-of'}, el('summary', {}, 'The chart in figures'), el('div', {class: 'scroll'}, table));
  card.append(el('figure', {}, el('figcaption', {}), picture, figures));
  const chart = new Chart(picture);
  card.chart = chart;
  card.addEventListener('gone', () => chart.end());
  figures.addEventListener('toggle', () => card.drawFigures?.());
  return card;
}

// drawCard shows a card and its rows ({key, job, card, hue}); past is what they got.
export function drawCard(e, {card, node, many, rows, past, time}) {
  say(e.querySelector('.name'), `${many ? `${node}, card` : 'Card'} ${card.index}, ${card.name || card.type}`);
  const badge = e.querySelector('.badge');
  say(badge, card.healthy ? 'in use' : 'out of use');
  if (card.healthy && card.jobs === 0) say(badge, 'free');
  set(badge, 'data-state', card.healthy ? 'good' : 'bad');
  const why = e.querySelector('.why');
  show(why, !card.healthy && Boolean(card.why));
  say(why, card.why || '');

  // Jobs of others are one part, as they are told to nobody else.
  const sum = of => rows.reduce((n, r) => n + (of(r) || 0), 0);
  const others = card.jobs - new Set(rows.map(r => r.job.job_id)).size;
  const parts = (kind, of, rest, title, inner) => {
    const list = rows.filter(r => of(r) > 0).map(r => ({
      key: r.key, job: r.job.job_id, hue: r.hue, part: of(r), inner: inner?.(r),
      tag: String(r.job.job_id), title: `job ${r.job.job_id} of ${userOf(r.job)}: ${title(r)}`,
    }));
    const left = rest - sum(of);
    if (others > 0 && left > 0.005) {
      list.push({key: 'others', hue: 'others', part: left, tag: count(others, 'other'), title: `${count(others, 'job')} of others: ${kind(left)}`});
    }
    return list;
  };
  const ratio = v => percent(100 * v);
  drawBar(e.querySelector('.given ol'), parts(ratio, r => r.card.share / 100, card.share / 100,
    r => percent(r.card.share) + (r.card.cores === r.card.share ? '' : `, ${percent(r.card.cores)} of its compute`)));
  say(e.querySelector('.given .value'), `${percent(card.share)} given`);

  const busy = card.compute_percent;
  // Of several processes samples may add up to a little more than the card.
  const scale = Math.max(100, busy || 0, sum(r => r.card.got_percent)) / 100;
  drawBar(e.querySelector('.compute ol'), parts(v => percent(100 * v * scale), r => (r.card.got_percent || 0) / 100 / scale, (busy || 0) / 100 / scale,
    r => `got ${percent(r.card.got_percent)}, share ${percent(r.card.cores)}`));
  say(e.querySelector('.compute .value'), busy == null ? 'not known' : `${percent(busy)} busy`);

  const all = card.memory_bytes || 1;
  drawBar(e.querySelector('.memory ol'), parts(v => size(v * all), r => r.card.memory_limit_bytes / all, card.memory_granted_bytes / all,
    r => ofSize(r.card.memory_used_bytes, r.card.memory_limit_bytes),
    r => (r.card.memory_used_bytes || 0) / r.card.memory_limit_bytes));
  say(e.querySelector('.memory .value'), `${ofSize(card.memory_granted_bytes, card.memory_bytes)} given`);

  const notes = [];
  if (card.memory_used_bytes != null) notes.push(`${size(card.memory_used_bytes)} of memory in use by all processes.`);
  if (card.jobs_throttled > 0) notes.push(`${count(card.jobs_throttled, 'job is', 'jobs are')} throttled now.`);
  if (card.memory_physical_bytes && card.memory_physical_bytes < card.memory_bytes) {
    notes.push(`${size(card.memory_bytes)} are shared out, of which the card has ${size(card.memory_physical_bytes)}.`);
  }
  say(e.querySelector('.notes'), notes.join(' '));

  const figure = e.querySelector('figure');
  show(figure, rows.length > 0);
  if (rows.length === 0) return;
  const lines = linesOf(rows);
  const few = lines.length < rows.length ? ` The ${lines.length} largest of ${rows.length} jobs.` : '';
  say(figure.querySelector('figcaption'), `Got (line) and share (dashed), the last ${Math.round(time.keep / 60000)} minutes.${few}`);
  set(figure.querySelector('.chart'), 'aria-label', lines.map(r => {
    const s = summary(past, r.key);
    return `job ${r.job.job_id}: share ${percent(r.card.cores)}, got ${percent(s.now)} now, ${percent(s.mean)} on average`;
  }).join('; '));
  e.chart.draw(past, lines, time);
  e.drawFigures = () => drawFigures(figure, rows, past, card.index);
  e.drawFigures();
}

function drawFigures(figure, rows, past, index) {
  const details = figure.querySelector('details');
  if (!details.open) return;
  say(details.querySelector('caption'), `What jobs got of card ${index} in the last minutes`);
  each(details.querySelector('tbody'), rows, r => r.key, r => el('tr', {},
    el('th', {scope: 'row'}, String(r.job.job_id)), ...Array.from({length: 5}, () => el('td'))), (tr, r) => {
    const s = summary(past, r.key);
    [r.card.cores, s.now, s.mean, s.least, s.most].forEach((v, i) => say(tr.children[i + 1], percent(v)));
  });
}
