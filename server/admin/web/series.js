// SPDX-License-Identifier: Apache-2.0
// The rounds of runs, as columns. They are fetched page by page, once, and then only what is new:
// rounds after the last one, and the last ones again that nobody had measured yet.
import * as format from "./format.js";
import { getJson } from "./net.js";

const keptMax = 8;  // Runs whose rounds are kept.
const unmeasuredMax = 20;  // Rounds that are fetched again.

export class Series {
  constructor(run) {
    this.run = run;
    this.metric = "";
    this.best = null;  // The best version: {version, value, ...}.
    this.columns = {};
  }

  get length() {
    return this.columns.round?.length ?? 0;
  }

  // Fetches what is new. Calls onPage after each page of a long run.
  async load(onPage = () => {}) {
    // One at a time: who comes later waits for the same.
    this.loading ??= this.fetchAll(onPage).finally(() => { this.loading = null; });
    return this.loading;
  }

  async fetchAll(onPage) {
    for (let next = this.dropUnmeasured(); next !== null;) {
      const page = await getJson("/api/series", { run: this.run, after: next });
      this.best = page.best;
      if (page.rows.length > 0) {
        this.add(page);
        onPage();
      }
      next = page.next;
    }
  }

  // Takes away the last rounds without a figure of evaluators, and returns the last that is left.
  dropUnmeasured() {
    let left = this.length;
    for (let dropped = 0; dropped < unmeasuredMax && left > 0; dropped += 1) {
      if (this.columns.eval_metric[left - 1] !== null) break;
      left -= 1;
    }
    for (const column of Object.values(this.columns)) column.length = left;
    return left > 0 ? this.columns.round[left - 1] : 0;
  }

  add({ columns, rows, metric }) {
    this.metric = metric;
    for (const [at, name] of columns.entries())
      (this.columns[name] ??= []).push(...rows.map((row) => row[at]));
    const made = this.columns;
    made.hours ??= [];
    made.bytes ??= [];
    // Time is summed up over rounds: so a night in which the server was down is no gap.
    for (let at = made.hours.length; at < made.round.length; at += 1) {
      made.hours.push((made.hours[at - 1] ?? 0) + made.seconds[at] / 3600);
      made.bytes.push((made.bytes[at - 1] ?? 0) + made.bytes_up[at] + made.bytes_down[at]);
    }
  }

  // A line of a chart: one column over another, without the rounds that have no value.
  line(name, x, y) {
    const xs = [], ys = [];
    for (let at = 0; at < this.length; at += 1) {
      if (this.columns[y][at] === null) continue;
      xs.push(this.columns[x][at]);
      ys.push(this.columns[y][at]);
    }
    return { name, x: xs, y: ys };
  }

  sum(name) {
    return (this.columns[name] ?? []).reduce((total, value) => total + value, 0);
  }
}

const kept = new Map();

// The series of a run, from the last use if there was one.
export function seriesOf(run) {
  if (!kept.has(run)) kept.set(run, new Series(run));
  const found = kept.get(run);
  // The one that was used longest ago goes first.
  kept.delete(run);
  kept.set(run, found);
  if (kept.size > keptMax) kept.delete(kept.keys().next().value);
  return found;
}

// What a chart may have at its foot: choices, and how each is written.
export const axes = [["round", "rounds"], ["hours", "hours"], ["bytes", "bytes"]];
const feet = {
  round: { formatX: format.number, labelX: "round" },
  hours: { formatX: (value) => `${format.number(value, 3)} h`, labelX: "hours of rounds" },
  bytes: { formatX: format.bytes, labelX: "bytes up and down" },
};
export const footOf = (axis) => feet[axis];
