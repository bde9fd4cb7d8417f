// SPDX-License-Identifier: Apache-2.0
// A round as a timeline by client: when each was asked, what its time went into, and the verdict.
import { button, make, panel, setText, word } from "./dom.js";
import * as format from "./format.js";
import { attempt, getJson, throttled } from "./net.js";
import { Pager, Table } from "./table.js";

const rowsOfPage = 50;
const reloadMs = 2000;
const parts = [
  ["download", "download and preparing"], ["train", "training"], ["encode", "coding"],
  ["save", "saving"], ["upload", "upload"], ["wait", "waiting and checking"], ["open", "not decided yet"],
];

// Where the time from the offer on went, in seconds. What the client has not reported is not there.
// "Download" is all that came before the upload and was neither training, coding nor saving.
export function spansOf(update, now) {
  const whole = (update.decided_at ?? now) - update.offered_at;
  const work = update.train_seconds + update.save_seconds;
  const spans = {
    download: Math.max(0, update.ready_seconds - work), train: update.train_seconds,
    encode: update.encode_seconds, save: Math.max(0, update.save_seconds - update.encode_seconds),
    upload: update.upload_seconds,
  };
  const known = Object.values(spans).reduce((sum, each) => sum + each, 0);
  const rest = Math.max(0, whole - known);
  return update.decided_at === null && known === 0 ? { open: rest } : { ...spans, wait: rest };
}

const describe = (spans) => parts.filter(([name]) => spans[name] > 0.0005)
  .map(([name, label]) => `${label} ${format.seconds(spans[name])}`).join(", ");

export class RoundView {
  name = "round";
  title = "Round";

  constructor() {
    this.number = make("input",
      { type: "number", id: "round-number", min: 1, inputmode: "numeric" });
    this.number.addEventListener("change", () => this.go(Number(this.number.value) || null));
    this.about = make("p", { class: "note" });
    this.tablePlace = make("div");
    this.makeTable(false);
    this.pager = new Pager("Pages of the timeline", (key) => this.load(key));
    this.spread = new Table("Spread between clients", [
      { label: "Figure", text: (row) => row.name },
      { label: "Clients", number: true, text: (row) => format.number(row.clients) },
      { label: "From the lowest to the highest group", wide: true,
        text: (row) => this.groupsOf(row) },
    ], { empty: "No update of this round counts yet.", hideCaption: true });
    this.spreadNote = make("p", { class: "note" });
    this.element = make("div", {},
      make("div", { class: "tools" },
        button("Previous round", () => this.step(-1)),
        make("label", { for: "round-number" }, "Round"), this.number,
        button("Next round", () => this.step(1)), button("Newest", () => this.go(null))),
      panel("Timeline", this.about, this.legend(), this.tablePlace, this.pager.element),
      panel("Spread between clients", this.spreadNote, this.spread.element));
    this.reload = throttled(reloadMs, () => this.isShown && attempt(() => this.pager.reload()));
  }

  // With the figures of single clients' data where the server shows them (--admin-show-clients).
  makeTable(showsClients) {
    this.showsClients = showsClients;
    this.table = new Table("Clients of the round", [
      { label: "Client", text: (row) => row.client },
      { label: "Time", wide: true, node: (row) => this.barOf(row) },
      { label: "Verdict", node: (row) => word("verdict", row.state) },
      { label: "Took", number: true, text: (row) => format.seconds(row.seconds || null) },
      { label: "Sent", number: true, text: (row) => format.bytes(row.update_bytes || null) },
      ...(showsClients ? [
        { label: "Examples", number: true, text: (row) => format.number(row.examples) },
        { label: "Loss", number: true, text: (row) => format.number(row.loss) },
        { label: "Norm", number: true, text: (row) => format.number(row.norm) },
        { label: "Cosine", number: true, text: (row) => format.number(row.cosine) },
      ] : []),
      { label: "Codec", text: (row) => row.codec || format.unknown },
      { label: "Why", wide: true, text: (row) => row.reason || row.codec_reason || "" },
    ], { empty: "No client was asked in this round." });
    this.tablePlace.replaceChildren(this.table.element);
  }

  legend() {
    return make("ul", { class: "legend" }, parts.map(([name, label]) =>
      make("li", {},
        make("span", { class: `dot-of span-${name}`, "aria-hidden": "true" }), ` ${label}`)));
  }

  barOf(row) {
    const spans = spansOf(row, Date.now() / 1000);
    const title = describe(spans);
    const bar = make("div", { class: "spans", role: "img", "aria-label": title, title });
    const start = Math.max(0, row.offered_at - this.start) / this.length;
    const from = make("span", { class: "span-before" });
    from.style.width = `${100 * Math.min(1, start)}%`;
    bar.append(from);
    for (const [name] of parts) {
      if (!(spans[name] > 0)) continue;
      const part = make("span", { class: `span span-${name}` });
      part.style.width = `${(100 * spans[name]) / this.length}%`;
      bar.append(part);
    }
    return bar;
  }

  setRun(run) {
    this.run = run;
    this.go(null);
  }

  show() {
    this.isShown = true;
    this.go(this.asked ?? null);
  }

  hide() {
    this.isShown = false;
  }

  // Null: the newest round, and the one after it once that begins.
  go(round) {
    this.asked = round;
    if (this.isShown && this.run) attempt(() => this.pager.restart());
  }

  step(by) {
    if (this.round) this.go(Math.max(1, this.round.round + by));
  }

  async load(key) {
    const query = { run: this.run, round: this.asked };
    const page = await getJson("/api/updates", { ...query, after: key, limit: rowsOfPage });
    this.round = page.round;
    if (page.shows_clients !== this.showsClients) this.makeTable(page.shows_clients);
    if (page.round === null) {
      setText(this.about, "The run has no round yet.");
      return { next: null };
    }
    const { round, started_at: start, ended_at: end, target } = page.round;
    this.number.value = String(round);
    this.start = start;
    this.length = Math.max(0.001, (end ?? Date.now() / 1000) - start);
    setText(this.about, `Round ${round} began at ${format.time(start)} ` +
      (end === null ? "and is open" : `and took ${format.seconds(end - start)}`) +
      `; it closes with ${format.plural(target, "update")}.`);
    this.table.setCaption(`Clients of round ${round}`);
    this.table.rows(page.updates);
    this.showSpread(await getJson("/api/spread", { ...query, round }));
    return page;
  }

  showSpread({ figures, group_min: least }) {
    this.spread.rows(figures.filter((each) => each.clients > 0));
    setText(this.spreadNote, `Each figure is the mean of ${least} clients or more, so that none ` +
      "of them shows by itself.");
  }

  groupsOf({ name, group_means: means }) {
    if (means.length === 0) return "too few clients to show";
    const formats = {
      "training time": format.seconds, "upload speed": format.speed,
      "bytes of the update": format.bytes,
    };
    const show = formats[name] ?? ((value) => format.metric(name, value));
    return means.map(show).join("  ·  ");
  }

  onStatus(status) {
    // A round that is closed does not change any more.
    const mayChange = this.asked === null || this.round?.ended_at === null;
    if (this.isShown && mayChange && status.run === this.run) this.reload();
  }
}
