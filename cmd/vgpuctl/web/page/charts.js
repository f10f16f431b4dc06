// SPDX-License-Identifier: Apache-2.0
// Charts of the last minutes, drawn by uPlot: a line for what each job got, a dashed one at
// what it asked for.

/* global uPlot */

const dark = matchMedia('(prefers-color-scheme: dark)');
const mostLines = 6;

const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// linesOf are the jobs that a chart of a card has room for: those with the largest part.
export function linesOf(rows) {
  const some = [...rows].sort((a, b) => b.card.cores - a.card.cores || a.job.job_id - b.job.job_id).slice(0, mostLines);
  return some.sort((a, b) => a.job.job_id - b.job.job_id);
}

// columns are uPlot's data. Where nobody looked for a while, lines have a gap.
function columns(past, rows, every) {
  const times = [], gots = rows.map(() => []);
  past.times.forEach((t, i) => {
    if (i > 0 && t - past.times[i - 1] > Math.max(4 * every, 10000)) {
      times.push(t / 1000 - 0.001);
      gots.forEach(g => g.push(null));
    }
    times.push(t / 1000);
    rows.forEach((r, k) => gots[k].push(past.got[r.key]?.[i] ?? null));
  });
  return [times, ...gots];
}

// Chart is one in an element, which it fills in width.
export class Chart {
  constructor(into) {
    this.into = into;
    this.seen = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.seen.observe(into);
    this.again = () => { this.drop(); if (this.last) this.draw(...this.last); };
    dark.addEventListener('change', this.again);
  }

  size() { return {width: Math.max(200, this.into.clientWidth), height: 150}; }

  drop() {
    this.plot?.destroy();
    this.plot = null;
  }

  end() {
    this.drop();
    this.seen.disconnect();
    dark.removeEventListener('change', this.again);
  }

  // draw shows rows ({key, job, card, hue}) over the last keep ms, until now.
  draw(past, rows, {every, keep, now}) {
    this.last = [past, rows, {every, keep, now}];
    const key = rows.map(r => `${r.key}:${r.hue}`).join();
    this.asked = rows.map(r => r.card.cores);
    this.range = [(now - keep) / 1000, now / 1000];
    const data = columns(past, rows, every);
    if (this.plot && this.key === key) {
      this.plot.setData(data, false);
      this.plot.setScale('x', {min: this.range[0], max: this.range[1]});
      return;
    }
    this.drop();
    this.key = key;
    this.plot = new uPlot(this.options(rows), data, this.into);
  }

  options(rows) {
    const muted = color('--muted'), line = color('--line');
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = {stroke: muted, font, grid: {stroke: line, width: 1}, ticks: {show: false}};
    return {
      ...this.size(),
      padding: [8, 12, 0, 0],
      legend: {show: false},
      cursor: {show: false},
      scales: {
        x: {range: () => this.range},
        y: {range: (_, __, most) => [0, Math.ceil(Math.max(20, ...this.asked, most || 0) / 20) * 20]},
      },
      axes: [
        {...axis, grid: {show: false}, size: 24, values: (_, at) => at.map(t => {
          const minutes = Math.round((this.range[1] - t) / 60);
          return minutes === 0 ? 'now' : `−${minutes} min`;
        }), splits: () => [4, 3, 2, 1, 0].map(m => this.range[1] - 60 * m).filter(t => t >= this.range[0] - 1)},
        {...axis, size: 48, space: 32, values: (_, at) => at.map(v => `${v} %`)},
      ],
      series: [{}, ...rows.map(r => ({stroke: color(`--job-${r.hue}`), width: 2, points: {show: false}, spanGaps: false}))],
      hooks: {drawSeries: [(u, i) => {
        const y = u.valToPos(this.asked[i - 1], 'y', true);
        u.ctx.save();
        u.ctx.strokeStyle = color(`--job-${rows[i - 1].hue}`);
        u.ctx.lineWidth = devicePixelRatio;
        u.ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
        u.ctx.beginPath();
        u.ctx.moveTo(u.bbox.left, y);
        u.ctx.lineTo(u.bbox.left + u.bbox.width, y);
        u.ctx.stroke();
        u.ctx.restore();
      }]},
    };
  }
}

// summary is a job's part of a chart in numbers: what it got now, on average, least, most.
export function summary(past, key) {
  const got = (past.got[key] || []).filter(v => v != null);
  if (got.length === 0) return {now: null, mean: null, least: null, most: null};
  return {now: past.got[key].at(-1), mean: got.reduce((a, b) => a + b) / got.length, least: Math.min(...got), most: Math.max(...got)};
}
