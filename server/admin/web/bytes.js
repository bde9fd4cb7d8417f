// SPDX-License-Identifier: Apache-2.0
// The ledger of bytes: up and down, by round and by codec, beside what fp32 would have sent.
import { Chart } from "./chart.js";
import { make, panel, setText } from "./dom.js";
import * as format from "./format.js";
import { attempt, getJson, throttled } from "./net.js";
import { seriesOf } from "./series.js";
import { Table } from "./table.js";
import { ViewOfRun } from "./view.js";

const reloadMs = 5000;

// Bytes of all traffic for each hundredth that the main metric has gained; null if it gained none.
export function bytesOfPoint(bytes, first, last) {
  if (first === null || last === null || !(Math.abs(last - first) > 0)) return null;
  return bytes / (100 * Math.abs(last - first));
}

function smallerBy({ raw_bytes: raw, update_bytes: sent }) {
  return sent > 0 ? `${format.number(raw / sent, 3)}×` : format.unknown;
}

export class Bytes extends ViewOfRun {
  name = "bytes";
  title = "Bytes";

  constructor() {
    super();
    this.total = make("p", { "data-figure": "bytes-total" });
    this.codecs = new Table("Bytes by codec", [
      { label: "Codec", text: (row) => row.codec },
      { label: "Updates", number: true, text: (row) => format.number(row.updates) },
      { label: "Sent", number: true, text: (row) => format.bytes(row.update_bytes) },
      { label: "In fp32", number: true, text: (row) => format.bytes(row.raw_bytes) },
      { label: "Smaller by", number: true, text: smallerBy },
      { label: "Coding error", number: true, text: (row) => format.number(row.nmse, 3) },
      { label: "Coding took", number: true,
        text: (row) => format.seconds(row.encode_seconds / Math.max(1, row.updates)) },
      { label: "With saving", number: true,
        text: (row) => format.seconds(row.save_seconds / Math.max(1, row.updates)) },
      { label: "Bytes for each point", number: true,
        text: (row) => format.bytes(bytesOfPoint(row.bytes, row.value_first, row.value_last)) },
    ], { empty: "No update counts yet.", hideCaption: true });
    this.chart = new Chart("Bytes of each round",
      { height: 240, formatY: format.bytes, labelX: "round" });
    this.element = make("div", {},
      panel("All traffic", this.total),
      panel("Updates by codec", this.codecs.element,
        make("p", { class: "note" }, "A point is a hundredth of the main metric. Bytes for each " +
          "point count all traffic, both ways.")),
      panel("By round", this.chart.element));
    this.reload = throttled(reloadMs, () => this.refreshIfShown());
  }

  refresh() {
    attempt(async () => {
      const { run } = this;
      const [{ codecs }] = await Promise.all([
        getJson("/api/codecs", { run }), seriesOf(run).load(() => this.draw()),
      ]);
      if (run !== this.run) return;  // Another was chosen meanwhile.
      this.codecs.rows(codecs);
      this.draw();
    });
  }

  draw() {
    const series = seriesOf(this.run);
    this.chart.set([
      series.line("up", "round", "bytes_up"), series.line("down", "round", "bytes_down"),
    ]);
    const up = series.sum("bytes_up"), down = series.sum("bytes_down");
    setText(this.total, `${format.bytes(up)} up and ${format.bytes(down)} down in ` +
      `${format.plural(series.length, "round")}: ${format.bytes(up + down)} together.`);
  }

  onStatus(status) {
    if (this.isShown && status.version !== this.version) this.reload();
    this.version = status.version;
  }
}
