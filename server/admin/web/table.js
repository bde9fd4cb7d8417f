// SPDX-License-Identifier: Apache-2.0
// Tables of one page of rows. On a narrow screen a row becomes a card (style.css), which would take
// the table's meaning from readers of the screen: so the roles are written out.
import { button, make, setText } from "./dom.js";

// A table. Columns are {label, text(row) or node(row), number: true, wide: true}.
// rows(list) fills it; an empty list shows `empty`.
export class Table {
  constructor(caption, columns, { empty = "Nothing yet.", hideCaption = false } = {}) {
    this.columns = columns;
    this.body = make("tbody", { role: "rowgroup" });
    this.head = make("tr", { role: "row" }, columns.map(({ label, number }) =>
      make("th", { role: "columnheader", scope: "col", class: number ? "number" : null }, label)));
    this.caption = make("caption", { class: hideCaption ? "unseen" : null }, caption);
    this.empty = make("p", { class: "empty" }, empty);
    this.table = make("table", { role: "table" }, this.caption,
      make("thead", { role: "rowgroup" }, this.head), this.body);
    this.element = make("div", { class: "table" }, this.table, this.empty);
    this.rows([]);
  }

  setCaption(text) {
    setText(this.caption, text);
  }

  rows(list) {
    this.table.hidden = list.length === 0;
    this.empty.hidden = list.length > 0;
    // Rows that are there take the new texts: so a focus or a selection in them stays.
    while (this.body.rows.length > list.length) this.body.deleteRow(-1);
    list.forEach((row, at) => this.fill(this.body.rows[at] ?? this.add(), row));
  }

  add() {
    const line = make("tr", { role: "row" }, this.columns.map((column, at) =>
      make(at === 0 ? "th" : "td", {
        role: at === 0 ? "rowheader" : "cell",
        scope: at === 0 ? "row" : null,
        class: [column.number ? "number" : "", column.wide ? "wide" : ""].join(" ").trim() || null,
        "data-label": column.label,
      })));
    this.body.append(line);
    return line;
  }

  fill(line, row) {
    this.columns.forEach((column, at) => {
      const cell = line.cells[at];
      if (column.node) cell.replaceChildren(column.node(row));
      else setText(cell, column.text(row));
    });
  }
}

// Buttons that go through pages of a list, each of which begins behind a key of the one before.
// `load(key)` returns {next}; a null key is the first page.
export class Pager {
  constructor(label, load) {
    this.load = load;
    this.before = [];  // The keys of the pages before this one.
    this.key = null;
    this.next = null;
    this.turn = 0;  // The newest call of go().
    this.loading = Promise.resolve();
    this.back = button("Previous", () => this.go(this.before.pop() ?? null));
    this.forward = button("Next", () => {
      this.before.push(this.key);
      this.go(this.next);
    });
    this.text = make("span", { class: "page-text" });
    this.element = make("div", { class: "pager", role: "group", "aria-label": label },
      this.back, this.text, this.forward);
  }

  // From the first page again.
  restart() {
    this.before = [];
    return this.go(null);
  }

  // The same page again.
  reload() {
    return this.go(this.key);
  }

  // One load after the other, and only the newest of those that wait: an answer that comes late
  // never covers what was asked for after it.
  go(key) {
    this.key = key;
    const turn = this.turn += 1;
    const loaded = this.loading.then(() => (turn === this.turn ? this.show(key) : undefined));
    this.loading = loaded.catch(() => {});
    return loaded;
  }

  async show(key) {
    const { next } = await this.load(key);
    this.next = next;
    this.back.disabled = this.before.length === 0;
    this.forward.disabled = next === null;
    this.element.hidden = this.back.disabled && this.forward.disabled;
    setText(this.text, `Page ${this.before.length + 1}`);
  }
}
