// SPDX-License-Identifier: Apache-2.0
// Line charts in SVG. A line has at most four points for each column of pixels (the first, the
// least, the greatest, the last), so ten thousand rounds cost as much as a few hundred and no spike
// is lost. Each chart has a slider that reads the values out, and the figures as a table.
import { make, makeSvg, newId, setAttributes, setText } from "./dom.js";
import { number, unknown } from "./format.js";
import { Pager, Table } from "./table.js";

const margin = { top: 10, right: 14, bottom: 38, left: 62 };
const rowsOfTable = 25;
const colors = 6;  // --line-1 … in style.css; the dashes tell them apart without colours.
const dashes = ["", "6 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2"];

// The indices of the points to draw, of those with a value, when `column(x)` is a point's column.
export function decimate(x, y, column) {
  const kept = [];
  let at = 0;
  while (at < x.length) {
    const here = column(x[at]);
    let first = -1, least = -1, greatest = -1, last = -1;
    for (; at < x.length && column(x[at]) === here; at += 1) {
      if (y[at] === null || y[at] === undefined) continue;
      if (first < 0) first = at;
      if (least < 0 || y[at] < y[least]) least = at;
      if (greatest < 0 || y[at] > y[greatest]) greatest = at;
      last = at;
    }
    if (first < 0) continue;
    kept.push(...[...new Set([first, least, greatest, last])].sort((a, b) => a - b));
  }
  return kept;
}

// Round numbers from at or below `low` to at or above `high`, about `count` of them.
export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1)
    found.push(Number((at * step).toPrecision(12)));
  return found;
}

// The index whose x is nearest; x ascends.
function nearest(x, value) {
  let low = 0, high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] <= value) low = middle;
    else high = middle;
  }
  return high > low && x[high] - value < value - x[low] ? high : low;
}

export class Chart {
  // `formatX`, `formatY`: of a value. `height` in pixels.
  constructor(title, { formatX = number, formatY = number, labelX = "", height = 240 } = {}) {
    Object.assign(this, { title, formatX, formatY, labelX, height, lines: [], at: null });
    this.svg = makeSvg("svg", { role: "img", class: "chart", height, "aria-label": title });
    this.readout = make("p", { class: "readout" });
    const id = newId("cursor");
    this.slider = make("input", { type: "range", id, min: 0, max: 0, step: 1, class: "cursor" });
    this.slider.addEventListener("input", () => this.point(Number(this.slider.value)));
    this.legend = make("ul", { class: "legend" });
    this.details = make("details", {}, make("summary", {}, "Figures as a table"));
    this.details.addEventListener("toggle", () => this.fillTable());
    this.empty = make("p", { class: "empty" }, "No figures yet.");
    this.element = make("figure", { class: "plot" },
      make("figcaption", {}, title), this.legend, this.svg, this.empty,
      make("label", { class: "unseen", for: id }, `Read a point of: ${title}`), this.slider,
      this.readout, this.details);
    this.svg.addEventListener("pointermove", (event) => this.follow(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  // Lines are {name, x, y}: x ascends, y may have null. The first is the one that the slider reads.
  set(lines, { formatX = this.formatX, formatY = this.formatY, labelX = this.labelX } = {}) {
    Object.assign(this, { lines, formatX, formatY, labelX });
    this.legend.replaceChildren(...(lines.length < 2 ? [] : lines.map((line, at) =>
      make("li", {}, this.sample(at), " ", line.name))));
    this.draw();
    this.fillTable();
  }

  sample(at) {
    return makeSvg("svg", { width: 24, height: 8, "aria-hidden": "true" },
      makeSvg("line", { x1: 0, x2: 24, y1: 4, y2: 4, ...this.strokeOf(at) }));
  }

  strokeOf(at) {
    const dash = dashes[at % colors] || null;
    return { class: `line line-${(at % colors) + 1}`, "stroke-dasharray": dash };
  }

  // Scales from values to pixels; null without figures.
  scales() {
    let lowX = Infinity, highX = -Infinity, lowY = Infinity, highY = -Infinity, points = 0;
    for (const { x, y } of this.lines) {
      for (let at = 0; at < x.length; at += 1) {
        if (y[at] === null || y[at] === undefined) continue;
        points += 1;
        lowX = Math.min(lowX, x[at]);
        highX = Math.max(highX, x[at]);
        lowY = Math.min(lowY, y[at]);
        highY = Math.max(highY, y[at]);
      }
    }
    if (points === 0) return null;
    if (highX === lowX) highX = lowX + 1;
    const room = (highY - lowY) * 0.06 || Math.abs(lowY) * 0.1 || 1;
    lowY -= room;
    highY += room;
    const width = Math.max(240, this.element.clientWidth);
    const right = width - margin.right, bottom = this.height - margin.bottom;
    return {
      width, right, bottom, lowX, highX, lowY, highY,
      toX: (x) => margin.left + ((x - lowX) / (highX - lowX)) * (right - margin.left),
      toY: (y) => bottom - ((y - lowY) / (highY - lowY)) * (bottom - margin.top),
      fromX: (px) => lowX + ((px - margin.left) / (right - margin.left)) * (highX - lowX),
    };
  }

  draw() {
    const scale = this.scales();
    this.scale = scale;
    this.empty.hidden = scale !== null;
    for (const part of [this.svg, this.slider, this.readout, this.details])
      part.toggleAttribute("hidden", scale === null);
    if (scale === null) return;
    const viewBox = `0 0 ${scale.width} ${this.height}`;
    setAttributes(this.svg, { viewBox, "aria-label": this.summary() });
    this.svg.replaceChildren(...this.axes(scale),
      ...this.lines.map((line, at) => this.pathOf(line, at, scale)));
    this.mark = makeSvg("g", { class: "mark" });
    this.svg.append(this.mark);
    const length = this.lines[0].x.length;
    this.slider.max = String(Math.max(0, length - 1));
    this.point(this.at === null ? length - 1 : Math.min(this.at, length - 1), this.at === null);
  }

  axes(scale) {
    const { right, bottom } = scale;
    const line = (kind, x1, x2, y1, y2) => makeSvg("line", { class: kind, x1, x2, y1, y2 });
    const text = (x, y, anchor, words) =>
      makeSvg("text", { class: "tick", x, y, "text-anchor": anchor }, words);
    const parts = [];
    for (const y of ticks(scale.lowY, scale.highY, 4)) {
      const at = scale.toY(y);
      parts.push(line("grid", margin.left, right, at, at),
        text(margin.left - 8, at + 4, "end", this.formatY(y)));
    }
    for (const x of ticks(scale.lowX, scale.highX, scale.width / 110)) {
      const at = scale.toX(x);
      parts.push(line("axis", at, at, bottom, bottom + 5),
        text(at, bottom + 19, "middle", this.formatX(x)));
    }
    parts.push(line("axis", margin.left, right, bottom, bottom),
      text(right, bottom + 34, "end", this.labelX));
    return parts;
  }

  pathOf({ x, y }, at, scale) {
    const kept = decimate(x, y, (value) => Math.round(scale.toX(value)));
    if (kept.length === 1) return this.dot(scale.toX(x[kept[0]]), scale.toY(y[kept[0]]), at);
    const d = kept.map((each, i) => {
      const px = scale.toX(x[each]).toFixed(1), py = scale.toY(y[each]).toFixed(1);
      return `${i === 0 ? "M" : "L"}${px} ${py}`;
    }).join("");
    return makeSvg("path", { d, ...this.strokeOf(at) });
  }

  dot(cx, cy, at) {
    return makeSvg("circle", { cx, cy, r: 4, class: `dot line-${(at % colors) + 1}` });
  }

  follow(event) {
    const box = this.svg.getBoundingClientRect();
    if (!this.scale || box.width === 0) return;
    const px = ((event.clientX - box.left) * this.scale.width) / box.width;
    this.point(nearest(this.lines[0].x, this.scale.fromX(px)));
  }

  // Reads the values at this point of the first line. `isNewest`: it stays the last one.
  point(at, isNewest = false) {
    if (!this.scale || at < 0) return;
    this.at = isNewest ? null : at;
    this.slider.value = String(at);
    const x = this.lines[0].x[at];
    const texts = [], marks = [];
    this.lines.forEach((line, index) => {
      const here = index === 0 ? at : nearest(line.x, x);
      const value = line.y[here];
      const text = value === null || value === undefined ? unknown : this.formatY(value);
      texts.push(this.lines.length > 1 ? `${line.name} ${text}` : text);
      if (text !== unknown)
        marks.push(this.dot(this.scale.toX(line.x[here]), this.scale.toY(value), index));
    });
    const px = this.scale.toX(x);
    const y2 = this.scale.bottom;
    this.mark.replaceChildren(
      makeSvg("line", { class: "cross", x1: px, x2: px, y1: margin.top, y2 }), ...marks);
    const text = `${this.labelX} ${this.formatX(x)}: ${texts.join(" · ")}`;
    this.slider.setAttribute("aria-valuetext", text);
    setText(this.readout, text);
  }

  summary() {
    const parts = this.lines.map(({ name, y }) => {
      const values = y.filter((value) => value !== null && value !== undefined);
      if (values.length === 0) return `${name}: no figures`;
      const [from, to] = [values[0], values.at(-1)].map((value) => this.formatY(value));
      return `${name}: ${values.length} points, from ${from} to ${to}`;
    });
    return `${this.title}. ${parts.join(". ")}. The table below has all figures.`;
  }

  // Made when it is opened: most never are.
  fillTable() {
    if (!this.details.open) return;
    if (!this.table) {
      this.table = new Table(this.title, [
        { label: "Line", text: (row) => row.name },
        { label: "At", number: true, text: (row) => this.formatX(row.x) },
        { label: "Value", number: true,
          text: (row) => (row.y === null ? unknown : this.formatY(row.y)) },
      ], { hideCaption: true });
      this.pager = new Pager(`Pages of: ${this.title}`, (key) => this.loadRows(key ?? 0));
      this.details.append(this.table.element, this.pager.element);
      this.pager.restart();
    } else {
      this.pager.reload();
    }
  }

  async loadRows(from) {
    const rows = [];
    let passed = 0, total = 0;
    for (const { name, x, y } of this.lines) {
      total += x.length;
      // The newest first.
      for (let at = x.length - 1; at >= 0; at -= 1, passed += 1) {
        if (passed < from || rows.length >= rowsOfTable) continue;
        rows.push({ name, x: x[at], y: y[at] ?? null });
      }
    }
    this.table.rows(rows);
    return { next: from + rowsOfTable < total ? from + rowsOfTable : null };
  }
}
