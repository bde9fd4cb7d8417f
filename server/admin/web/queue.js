// SPDX-License-Identifier: Apache-2.0
// The form that queues a run: every setting that the server offers (/api/settings), the usual ones
// first. The server checks them, as it checks the flags of the command line.
import { make, newId } from "./dom.js";
import { form } from "./forms.js";
import { getJson } from "./net.js";

const modes = { whole: "numeric", real: "decimal", text: null };

// The input of a setting with its help, and what stands in its place if nothing is given.
function settingField({ name, flag, kind, help, limits, default: usual }) {
  const id = newId(name), note = newId("help");
  const about = [help, limits && `A number: ${limits}`, `Default: ${usual || "none"}`];
  return make("div", { class: "setting" },
    make("label", { for: id }, make("code", {}, flag)),
    make("input", { id, name, placeholder: usual, autocomplete: "off", spellcheck: "false",
      inputmode: modes[kind], "aria-describedby": note }),
    make("p", { class: "note", id: note }, `${about.filter(Boolean).join(". ")}.`));
}

function group(title, settings) {
  return make("fieldset", { class: "settings" }, make("legend", {}, title),
    make("div", { class: "fields" }, settings.map(settingField)));
}

// The values that are given, by the names of their settings.
function given(values) {
  return Object.entries(values).map(([name, value]) => [name, value.trim()])
    .filter(([, value]) => value !== "");
}

export class QueueForm {
  constructor(done) {
    this.flags = new Map();  // By the names of settings.
    this.place = make("div", {});
    this.element = form("queue", "Queue the run", [this.place], {
      ask: (values) => `Queue a run${this.wordsOf(values)}?`,
      body: (values) => ({ settings: Object.fromEntries(given(values)) }),
      told: ({ run }) => `Run ${run} is queued.`,
      done,
    });
    // Numbers are the server's to check: its errors are those of the command line.
    this.element.noValidate = true;
  }

  wordsOf(values) {
    const words = given(values).map(([name, value]) => `${this.flags.get(name)} ${value}`);
    return words.length > 0 ? ` with ${words.join(" ")}` : "";
  }

  async load() {
    if (this.flags.size > 0) return;
    const { settings } = await getJson("/api/settings");
    if (this.flags.size > 0) return;
    for (const { name, flag } of settings) this.flags.set(name, flag);
    const others = settings.filter((each) => !each.is_usual);
    const titles = [...new Set(others.map((each) => each.group))];
    this.place.replaceChildren(
      group("Usual settings", settings.filter((each) => each.is_usual)),
      make("details", {},
        make("summary", {}, `${others.length} more settings`),
        titles.map((title) => group(title, others.filter((each) => each.group === title)))));
  }
}
