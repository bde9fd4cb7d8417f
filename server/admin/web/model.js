// SPDX-License-Identifier: Apache-2.0
// The versions of the model that are kept, with their digests, to be downloaded.
import { make, panel, setText } from "./dom.js";
import * as format from "./format.js";
import { attempt, getJson, throttled } from "./net.js";
import { Pager, Table } from "./table.js";
import { ViewOfRun } from "./view.js";

const rowsOfPage = 50;
const reloadMs = 5000;

export class Model extends ViewOfRun {
  name = "model";
  title = "Model";

  constructor() {
    super();
    this.about = make("p", { "data-figure": "model" });
    this.table = new Table("Versions that are kept", [
      { label: "Version", number: true, text: (row) => String(row.version) },
      { label: "Best", text: (row) => (row.version === this.best?.version ? this.bestText() : "") },
      { label: "Made", text: (row) => format.time(row.made_at) },
      { label: "Size", number: true, text: (row) => format.bytes(row.bytes) },
      { label: "Step", number: true, text: (row) => format.bytes(row.delta_bytes || null) },
      { label: "Digest", wide: true, node: (row) => make("code", {}, row.digest) },
      { label: "Download", node: (row) => this.linkOf(row) },
    ], { empty: "The run has no version yet.", hideCaption: true });
    this.pager = new Pager("Pages of versions", (key) => this.load(key));
    this.element = make("div", {},
      panel("Versions", this.about, this.table.element, this.pager.element,
        make("p", { class: "note" }, "A digest is XXH3-128 of the values in fp32, in the order " +
          "of the layout. Step: the coded bytes from the version before. A download needs a " +
          "login: an operator's token, or that of --admin-token-file.")));
    this.reload = throttled(reloadMs, () => this.isShown && attempt(() => this.pager.reload()));
  }

  bestText() {
    const { metric, value, is_exact: isExact } = this.best;
    return `best: ${metric} ${format.metric(metric, value, isExact)}`;
  }

  linkOf(row) {
    const query = new URLSearchParams({ run: this.run, version: row.version });
    const label = `Download version ${row.version} as safetensors`;
    return make("a", { href: `/api/model/file?${query}`, download: true, "aria-label": label },
      "safetensors");
  }

  refresh() {
    attempt(() => this.pager.restart());
  }

  async load(key) {
    const page = await getJson("/api/model", { run: this.run, before: key, limit: rowsOfPage });
    this.best = page.best;
    this.table.rows(page.versions);
    if (key === null) {
      const newest = page.versions[0];
      const what = newest ? `, version ${newest.version}, digest ${newest.digest}` : "";
      setText(this.about, page.model + what);
    }
    return page;
  }

  onStatus(status) {
    // A version is measured some time after it was made, and may be the best then.
    const newest = `${status.version} ${JSON.stringify(status.metrics)}`;
    if (newest !== this.newest) this.reload();
    this.newest = newest;
  }
}
