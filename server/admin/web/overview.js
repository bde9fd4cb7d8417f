// SPDX-License-Identifier: Apache-2.0
// At a glance: where the run is, what needs a look, what clients are doing, what is on its way.
import { Chart } from "./chart.js";
import { choice, make, panel, setAttributes, setText } from "./dom.js";
import * as format from "./format.js";
import { attempt } from "./net.js";
import { axes, footOf, seriesOf } from "./series.js";
import { Table } from "./table.js";
import { ViewOfRun } from "./view.js";

export const stepNames = {
  present: "here, and in no run", idle: "idle", paused: "paused after misses",
  downloading: "downloading", training: "training",
  uploading: "uploading", interrupted: "with an interrupted upload", checking: "being checked",
  waiting: "waiting for a round", accepted: "done with the round", failed: "failed in the round",
};

// A figure with its name, in a list of such.
class Figure {
  constructor(label, name) {
    this.value = make("dd", { "data-figure": name });
    this.note = make("dd", { class: "note" });
    this.element = make("div", { class: "figure" }, make("dt", {}, label), this.value, this.note);
  }

  set(value, note = "") {
    setText(this.value, value);
    setText(this.note, note);
  }
}

// How long the run still takes, if its rounds go on as they did.
function timeLeft(status) {
  const left = status.rounds - status.round + (status.asked > 0 ? 1 : 0);
  if (!(status.round_seconds > 0 && left > 0)) return "";
  return `about ${format.seconds(left * status.round_seconds)} left`;
}

export class Overview extends ViewOfRun {
  name = "overview";
  title = "Overview";

  constructor() {
    super();
    this.figures = {
      round: new Figure("Round", "round"), updates: new Figure("Updates", "updates"),
      clients: new Figure("Clients", "clients"), metric: new Figure("Metric", "metric"),
      best: new Figure("Best", "best"),
      up: new Figure("Received", "up"), down: new Figure("Sent", "down"),
    };
    this.progress = make("progress", { "aria-label": "Rounds of the run", max: 1 });
    this.alerts = make("ul", { class: "alerts", "data-list": "alerts" });
    this.bar = make("div", { class: "activities-bar", "aria-hidden": "true" });
    this.activities = make("ul", { class: "activities" });
    this.chart = new Chart("Main metric", { height: 220 });
    this.axis = "round";
    this.transfers = new Table("Transfers under way", [
      { label: "Client", text: (row) => row.client },
      { label: "What", text: ({ direction, number }) =>
        (direction === "up" ? `update of round ${number}` : `version ${number}`) },
      { label: "Done", node: (row) => this.doneOf(row) },
      { label: "Speed", number: true, text: (row) => format.speed(row.bytes_per_s || null) },
      { label: "Ends in", number: true, text: (row) => this.untilOf(row.ends_at) },
      { label: "In time?", text: (row) => this.riskOf(row) },
    ], { empty: "No transfer is under way.", hideCaption: true });
    this.more = make("p", { class: "note" });
    this.element = make("div", {},
      make("dl", { class: "figures" }, Object.values(this.figures).map((each) => each.element)),
      this.progress,
      panel("Health", this.alerts),
      make("div", { class: "columns" },
        panel("Model", choice("Over", axes, this.axis, (axis) => this.setAxis(axis)),
          this.chart.element),
        panel("Clients here", this.bar, this.activities)),
      panel("Transfers", this.transfers.element, this.more));
  }

  doneOf(row) {
    const label = `${row.client}: ${format.percent(row.done, row.bytes)} done`;
    return make("span", { class: "done" },
      make("progress", { max: row.bytes || 1, value: row.done, "aria-label": label }),
      ` ${format.bytes(row.done)} of ${format.bytes(row.bytes)}`);
  }

  untilOf(at) {
    return at === null ? format.unknown : format.seconds(Math.max(0, at - Date.now() / 1000));
  }

  riskOf(row) {
    if (row.risk === "late") return `no: due in ${this.untilOf(row.due_at)}`;
    if (row.risk === "some") return "may be late";
    return row.risk === "none" ? "yes" : "no deadline";
  }

  setAxis(axis) {
    this.axis = axis;
    this.drawChart();
  }

  refresh() {
    const run = this.run;
    attempt(async () => {
      await seriesOf(run).load(() => this.drawChart());
      this.drawChart();
    });
  }

  drawChart() {
    const series = seriesOf(this.run);
    const last = series.columns.eval_metric?.at(-1) ?? null;
    // Without evaluators, what the clients' own held-out data say.
    if (!this.isMeasured)
      this.figures.metric.set(format.metric(series.metric, last), series.metric);
    const { best } = series;
    this.figures.best.set(format.metric(best?.metric, best?.value, best?.is_exact),
      best ? `version ${best.version}` : "");
    const shown = series.line(series.metric || "metric", this.axis, "eval_metric");
    this.chart.title = series.metric || "The metric";
    this.chart.set([shown],
      { ...footOf(this.axis), formatY: (value) => format.metric(series.metric, value) });
  }

  onStatus(status) {
    const { figures } = this;
    figures.round.set(`${format.number(status.round)} of ${format.number(status.rounds)}`,
      timeLeft(status));
    setAttributes(this.progress, { max: status.rounds || 1, value: status.version });
    const { asked, refused, lost } = status;
    figures.updates.set(`${status.accepted} of ${status.target}`,
      asked > 0 ? `${asked} asked, ${refused} refused, ${lost} lost` : "no round is open");
    const waiting = status.phase === "finished" ? "waiting for a run" : "not in the run yet";
    figures.clients.set(format.number(status.clients + status.present),
      status.present > 0 ? `${format.number(status.present)} ${waiting}`
        : format.plural(status.evaluators, "evaluator"));
    const main = status.metrics.find((each) => each.name === status.metric);
    if (main) figures.metric.set(format.metric(main.name, main.value, main.is_exact), main.name);
    this.isMeasured = main !== undefined;
    figures.up.set(format.bytes(status.bytes_up), format.speed(status.up_per_s));
    figures.down.set(format.bytes(status.bytes_down), format.speed(status.down_per_s));
    this.showAlerts(status.alerts);
    this.showActivities(status.activities);
    this.transfers.rows(status.transfers);
    const hidden = status.transfers_total - status.transfers.length;
    setText(this.more, hidden > 0 ? `and ${hidden} more` : "");
    // A version is measured some time after it was made.
    const newest = `${status.version} ${JSON.stringify(status.metrics)}`;
    if (newest !== this.newest) this.refreshIfShown();
    this.newest = newest;
  }

  showAlerts(alerts) {
    const text = JSON.stringify(alerts);
    if (text === this.alertsText) return;
    this.alertsText = text;
    this.alerts.replaceChildren(...(alerts.length === 0 ?
      [make("li", { class: "level-good" }, "All is well.")] :
      alerts.map(({ level, what, remedy }) => make("li", { class: `level-${level}` },
        make("strong", {}, what), " ", make("span", {}, remedy)))));
  }

  showActivities(counts) {
    const found = Object.entries(counts).filter(([, count]) => count > 0);
    this.bar.replaceChildren(...found.map(([step, count]) => {
      const part = make("span", { class: `step step-${step}` });
      part.style.flexGrow = String(count);
      return part;
    }));
    this.activities.replaceChildren(...(found.length === 0 ? [make("li", {}, "No client is here.")] :
      found.map(([step, count]) => make("li", { "data-step": step },
        make("span", { class: `dot-of step step-${step}`, "aria-hidden": "true" }),
        ` ${count} ${stepNames[step]}`))));
  }
}
