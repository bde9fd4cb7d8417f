// SPDX-License-Identifier: Apache-2.0
// Runs side by side: what each came to, in what their settings differ, and their metric by bytes.
import { Chart } from "./chart.js";
import { choice, make, panel } from "./dom.js";
import * as format from "./format.js";
import { attempt, getJson, throttled } from "./net.js";
import { axes, footOf, seriesOf } from "./series.js";
import { Pager, Table } from "./table.js";

const rowsOfPage = 20;
const comparedMax = 6;
const reloadMs = 5000;

function textOf(value) {
  if (value === undefined) return format.unknown;
  return typeof value === "string" ? value || "(none)" : JSON.stringify(value);
}

// The settings in which runs differ, or all of them: [{name, values}] with a value for each run.
export function differences(runs, isAll = false) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].sort();
  return names.map((name) => ({ name, values: runs.map((run) => textOf(run.settings[name])) }))
    .filter(({ values }) => isAll || new Set(values).size > 1);
}

export class Runs {
  name = "runs";
  title = "Runs";

  constructor() {
    this.compared = new Set();
    this.runs = new Map();
    this.axis = "bytes";
    this.table = new Table("Runs, newest first", [
      { label: "Run", text: (row) => `run ${row.id}` },
      { label: "Compare", node: (row) => this.boxOf(row) },
      { label: "Model", text: (row) => row.model },
      { label: "Method", text: (row) => row.settings.strategy ?? format.unknown },
      { label: "Codec", wide: true, text: (row) => row.settings.codec ?? format.unknown },
      { label: "State", text: (row) => row.state + (row.early_end ? ` (${row.early_end})` : "") },
      { label: "Rounds", number: true, text: (row) =>
        `${format.number(row.rounds_closed)} of ${format.number(row.rounds_total)}` },
      { label: "Took", number: true, text: (row) => format.seconds(row.seconds) },
      { label: "Bytes", number: true, text: (row) => format.bytes(row.bytes_up + row.bytes_down) },
      { label: "Metric", number: true, text: (row) =>
        `${row.metric} ${format.metric(row.metric, row.value_last)}` },
      { label: "Began", text: (row) => format.time(row.started_at) },
      { label: "Key", node: (row) => make("code", {}, row.key) },
    ], { hideCaption: true });
    this.pager = new Pager("Pages of runs", (key) => this.load(key));
    this.chart = new Chart("Metric of the compared runs", { height: 280 });
    this.all = make("input", { type: "checkbox", id: "all-settings" });
    this.all.addEventListener("change", () => this.showDifferences());
    this.settings = make("div");
    this.element = make("div", {},
      panel("All runs", this.table.element, this.pager.element),
      panel("Metric", choice("Over", axes, this.axis, (axis) => this.setAxis(axis)),
        this.chart.element),
      panel("Settings", make("label", { for: "all-settings" }, this.all,
        " Show those that are the same too"), this.settings));
    this.reload = throttled(reloadMs, () => this.isShown && attempt(() => this.pager.reload()));
  }

  boxOf(row) {
    const box = make("input", { type: "checkbox", "aria-label": `Compare ${format.runName(row)}` });
    box.checked = this.compared.has(row.id);
    box.addEventListener("change", () => {
      if (box.checked) this.compared.add(row.id);
      else this.compared.delete(row.id);
      // The one that was chosen first gives way.
      const [first] = this.compared;
      if (this.compared.size > comparedMax) this.compared.delete(first);
      attempt(() => this.compare());
    });
    return box;
  }

  setAxis(axis) {
    this.axis = axis;
    this.draw();
  }

  setRun() {}

  show() {
    this.isShown = true;
    attempt(async () => {
      await this.pager.restart();
      await this.compare();
    });
  }

  hide() {
    this.isShown = false;
  }

  async load(key) {
    const page = await getJson("/api/runs", { before: key, limit: rowsOfPage });
    for (const run of page.runs) this.runs.set(run.id, run);
    if (this.compared.size === 0)
      for (const run of page.runs.slice(0, 2)) this.compared.add(run.id);
    this.table.rows(page.runs);
    return page;
  }

  chosen() {
    return [...this.compared].map((id) => this.runs.get(id)).filter(Boolean);
  }

  async compare() {
    this.showDifferences();
    await Promise.all(this.chosen().map((run) => seriesOf(run.id).load(() => this.draw())));
    this.draw();
  }

  draw() {
    const lines = this.chosen()
      .map((run) => seriesOf(run.id).line(format.runName(run), this.axis, "eval_metric"))
      .filter((line) => line.x.length > 0);
    const name = this.chosen()[0]?.metric ?? "";
    this.chart.set(lines,
      { ...footOf(this.axis), formatY: (value) => format.metric(name, value) });
  }

  showDifferences() {
    const runs = this.chosen();
    const table = new Table("Settings of the compared runs", [
      { label: "Setting", text: (row) => row.name },
      ...runs.map((run, at) => ({ label: format.runName(run), text: (row) => row.values[at] })),
    ], { empty: runs.length < 2 ? "Choose two runs to compare." : "Their settings are the same.",
      hideCaption: true });
    table.rows(differences(runs, this.all.checked));
    this.settings.replaceChildren(table.element);
  }

  onStatus(status) {
    if (this.isShown && status.version !== this.version) this.reload();
    this.version = status.version;
  }
}
