// SPDX-License-Identifier: Apache-2.0
// What the model learnt, by rounds, by hours and by bytes.
import { Chart } from "./chart.js";
import { choice, make, panel } from "./dom.js";
import * as format from "./format.js";
import { attempt } from "./net.js";
import { axes, footOf, seriesOf } from "./series.js";
import { ViewOfRun } from "./view.js";

export class Metrics extends ViewOfRun {
  name = "metrics";
  title = "Metrics";

  constructor() {
    super();
    this.axis = "bytes";
    this.metric = new Chart("Main metric", { height: 280 });
    this.loss = new Chart("Loss", { height: 240 });
    this.updates = new Chart("Updates of each round", { height: 200 });
    this.seconds = new Chart("Seconds of each round", { height: 200, formatY: format.seconds });
    this.element = make("div", {},
      make("div", { class: "tools" },
        choice("Over", axes, this.axis, (axis) => this.setAxis(axis))),
      panel("Main metric", this.metric.element),
      panel("Loss", this.loss.element,
        make("p", { class: "note" }, "A mean over fewer than three clients is not shown, unless " +
          "the server was started with --admin-show-clients. What evaluators measure is.")),
      panel("Updates", this.updates.element),
      panel("Time", this.seconds.element));
  }

  setAxis(axis) {
    this.axis = axis;
    this.draw();
  }

  refresh() {
    attempt(async () => {
      await seriesOf(this.run).load(() => this.draw());
      this.draw();
    });
  }

  draw() {
    const series = seriesOf(this.run);
    const foot = footOf(this.axis);
    this.metric.title = series.metric || "Main metric";
    this.metric.set([series.line(series.metric || "metric", this.axis, "eval_metric")],
      { ...foot, formatY: (value) => format.metric(series.metric, value) });
    this.loss.set([
      series.line("training", this.axis, "train_loss"),
      series.line("evaluation", this.axis, "eval_loss"),
    ].filter((line) => line.x.length > 0), foot);
    this.updates.set([
      series.line("asked", this.axis, "clients_offered"),
      series.line("accepted", this.axis, "clients_accepted"),
    ], foot);
    this.seconds.set([series.line("seconds", this.axis, "seconds")], foot);
  }

  onStatus(status) {
    // A version is measured some time after it was made.
    const newest = `${status.version} ${JSON.stringify(status.metrics)}`;
    if (newest !== this.newest) this.refreshIfShown();
    this.newest = newest;
  }
}
