// SPDX-License-Identifier: Apache-2.0
// What happened, with its cause and what to do; and apart from it, who came in or was kept out.
import { make, panel, word } from "./dom.js";
import * as format from "./format.js";
import { attempt, getJson, throttled } from "./net.js";
import { Pager, Table } from "./table.js";

const rowsOfPage = 50;
const reloadMs = 2000;
const typingMs = 250;

// A list of choices with its label.
function select(id, label, options, onChange) {
  const field = make("select", { id },
    options.map(([value, text = value]) => make("option", { value }, text)));
  field.addEventListener("change", onChange);
  return [make("label", { for: id }, label), field];
}

export class Log {
  name = "log";
  title = "Log";

  constructor() {
    const again = throttled(typingMs, () => this.restart());
    const [levelLabel, level] = select("log-level", "At least",
      [["info"], ["notice"], ["warning"], ["error"]], again);
    const [kindLabel, kind] = select("log-kind", "Kind",
      [["", "all"], ["enrolment"], ["takeover"], ["refusal"], ["displacement"], ["renewal"],
        ["revocation"], ["repeats"], ["operators"], ["control"], ["login"]], again);
    this.level = level;
    this.kind = kind;
    this.text = make("input", { type: "search", id: "log-text", autocomplete: "off" });
    this.text.addEventListener("input", again);
    this.eventTable = new Table("Events, newest first", [
      { label: "At", node: (row) => this.timeOf(row) },
      { label: "Level", node: (row) => word("level", row.level) },
      { label: "Run", number: true, text: (row) => String(row.run_id ?? "") },
      { label: "What", wide: true, text: (row) => row.text },
      { label: "Cause", wide: true, text: (row) => row.cause ?? "" },
      { label: "What to do", wide: true, text: (row) => row.remedy ?? "" },
    ], { empty: "No event is like that.", hideCaption: true });
    this.auditTable = new Table("Security, newest first", [
      { label: "At", node: (row) => this.timeOf(row) },
      { label: "Kind", text: (row) => row.kind },
      { label: "Who", text: (row) => row.who || format.unknown },
      { label: "Client", text: (row) => (row.client === row.who ? "" : row.client) },
      { label: "What", wide: true, text: (row) => row.text },
    ], { empty: "Nothing is like that.", hideCaption: true });
    this.events = new Pager("Pages of events", async (key) => {
      const page = await getJson("/api/log", { ...this.query(key), level: this.level.value });
      this.eventTable.rows(page.events);
      return page;
    });
    this.audit = new Pager("Pages of security events", async (key) => {
      const page = await getJson("/api/audit", { ...this.query(key), kind: this.kind.value });
      this.auditTable.rows(page.audit);
      return page;
    });
    this.element = make("div", {},
      make("div", { class: "tools" },
        make("label", { for: "log-text" }, "Text contains"), this.text),
      panel("Events", make("div", { class: "tools" }, levelLabel, level),
        this.eventTable.element, this.events.element),
      panel("Security", make("div", { class: "tools" }, kindLabel, kind),
        this.auditTable.element, this.audit.element));
    this.reload = throttled(reloadMs, () => {
      if (!this.isShown) return;
      attempt(() => Promise.all([this.events.reload(), this.audit.reload()]));
    });
  }

  query(key) {
    return { before: key, limit: rowsOfPage, text: this.text.value };
  }

  restart() {
    attempt(() => Promise.all([this.events.restart(), this.audit.restart()]));
  }

  timeOf(row) {
    return make("time", { datetime: format.isoTime(row.at) }, format.time(row.at));
  }

  setRun() {}

  show() {
    this.isShown = true;
    this.restart();
  }

  hide() {
    this.isShown = false;
  }

  onStatus(status) {
    const newest = `${status.newest_event} ${status.newest_audit}`;
    if (newest !== this.newest) this.reload();
    this.newest = newest;
  }
}
