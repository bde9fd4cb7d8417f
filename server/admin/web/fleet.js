// SPDX-License-Identifier: Apache-2.0
// All members: what each is doing, its link, its program, what last went wrong, what comes next.
import { make, panel, setText, word } from "./dom.js";
import * as format from "./format.js";
import { attempt, getJson, throttled } from "./net.js";
import { Pager, Table } from "./table.js";

const rowsOfPage = 50;
const reloadMs = 2000;
const typingMs = 250;
const certificateDaysMin = 14;

export class Fleet {
  name = "fleet";
  title = "Fleet";

  constructor() {
    this.filter = make("input", { type: "search", id: "fleet-filter", autocomplete: "off" });
    this.restart = throttled(typingMs, () => attempt(() => this.pager.restart()));
    this.filter.addEventListener("input", () => this.restart());
    this.count = make("p", { class: "note" });
    this.table = new Table("Members", [
      { label: "Name", text: (row) => row.name },
      { label: "State", node: (row) => word("state", row.state) },
      { label: "Next", text: (row) => row.next + this.whenOf(row) },
      { label: "Role", text: (row) => row.role },
      { label: "Data", text: (row) => this.dataOf(row) },
      { label: "Upload", number: true, text: (row) => format.speed(row.upload_bytes_per_s) },
      { label: "Received", number: true, text: (row) => format.bytes(row.bytes_up) },
      { label: "Sent", number: true, text: (row) => format.bytes(row.bytes_down) },
      { label: "Program", text: (row) => row.software || format.unknown },
      { label: "Certificate ends", text: (row) => this.certificateOf(row) },
      { label: "Last seen", text: (row) => format.time(row.last_seen_at) },
      { label: "Last error", wide: true,
        text: (row) => (row.trouble ? `${format.time(row.trouble_at)} ${row.trouble}` : "") },
    ], { empty: "Nobody has joined by such a name.", hideCaption: true });
    this.pager = new Pager("Pages of the fleet", (key) => this.load(key));
    this.element = make("div", {},
      make("div", { class: "tools" },
        make("label", { for: "fleet-filter" }, "Name contains"), this.filter),
      panel("Members", this.count, this.table.element, this.pager.element));
    this.reload = throttled(reloadMs, () => this.isShown && attempt(() => this.pager.reload()));
  }

  // The model that it trains, its data's shape, and its number of examples where the server shows that.
  dataOf({ model, data, examples }) {
    const parts = [model === "" ? "any model" : model, data];
    if (examples) parts.push(format.plural(examples, "example"));
    return parts.filter(Boolean).join(", ") || format.unknown;
  }

  whenOf(row) {
    const at = row.paused_until ?? row.due_at;
    return at === null ? "" : ` (${row.paused_until ? "from" : "until"} ${format.time(at)})`;
  }

  certificateOf(row) {
    if (row.certificate_ends_at === null) return format.unknown;
    const days = (row.certificate_ends_at - Date.now() / 1000) / 86400;
    return format.day(row.certificate_ends_at) + (days < certificateDaysMin ? " (soon)" : "");
  }

  setRun() {}

  show() {
    this.isShown = true;
    attempt(() => this.pager.restart());
  }

  hide() {
    this.isShown = false;
  }

  async load(key) {
    const query = { after: key, text: this.filter.value, limit: rowsOfPage };
    const page = await getJson("/api/fleet", query);
    this.table.rows(page.members);
    setText(this.count, `${format.plural(page.total, "member")} in all.`);
    return page;
  }

  onStatus() {
    if (this.isShown) this.reload();
  }
}
