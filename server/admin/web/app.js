// SPDX-License-Identifier: Apache-2.0
// The dashboard: shows one view at a time, gives all of them the run that was chosen, and hands the
// newest status to them as it comes. The address's hash names the view, and a run that was chosen:
// "#metrics" or "#metrics/2".
import { append, make, setAttributes, setText } from "./dom.js";
import * as format from "./format.js";
import { attempt, getJson, Live } from "./net.js";
import { showAccount, showLogin } from "./login.js";
import { Bytes } from "./bytes.js";
import { Control } from "./control.js";
import { Fleet } from "./fleet.js";
import { Log } from "./log.js";
import { Metrics } from "./metrics.js";
import { Model } from "./model.js";
import { Overview } from "./overview.js";
import { RoundView } from "./round.js";
import { Runs } from "./runs.js";

const kinds = [Overview, RoundView, Fleet, Metrics, Bytes, Runs, Log, Model];
const lost = "connection lost, retrying";
const states = { live: "live", lost, refused: lost, connecting: "connecting" };

const ids = ["headline", "connection", "account", "views", "run", "main", "software"];
const place = Object.fromEntries(ids.map((id) => [id, document.getElementById(id)]));

class App {
  constructor() {
    this.runs = new Set();  // That can be chosen.
    this.views = kinds.map((Kind) => this.add(new Kind()));
    this.trouble = make("p", { class: "trouble", role: "alert", hidden: true });
    this.live = new Live((status) => this.onStatus(status), (state) => this.onState(state));
    window.addEventListener("hashchange", () => this.showView(true));
    document.addEventListener("login-needed", () => this.logIn());
    document.addEventListener("trouble", ({ detail }) => {
      setText(this.trouble, detail);
      this.trouble.hidden = detail === "";
    });
    place.run.addEventListener("change", () => {
      location.hash = `${this.current.name}/${place.run.value}`;
    });
  }

  // What the hash asks for.
  asked() {
    const [name, run] = location.hash.slice(1).split("/");
    return { name, run: /^[1-9][0-9]*$/.test(run) ? Number(run) : null };
  }

  // The view's section with its heading, and its link.
  add(view) {
    const id = `view-${view.name}`;
    view.heading = make("h2", { id, tabindex: -1 }, view.title);
    view.section = append(make("section", { "aria-labelledby": id, hidden: true }),
      [view.heading, view.element]);
    view.link = make("a", { href: `#${view.name}` }, view.title);
    place.views.append(make("li", {}, view.link));
    return view;
  }

  async start() {
    const session = await getJson("/api/session");
    showAccount(place.account, session, () => this.logIn());
    if (session.role === null) {
      this.logIn();
      return;
    }
    this.showControl(session);
    for (const view of this.views) view.section.hidden = true;
    place.main.replaceChildren(this.trouble, ...this.views.map((view) => view.section));
    this.showView(false);
    this.live.start();
  }

  // Operators have a view more.
  showControl(session) {
    const shown = this.views.findIndex((view) => view instanceof Control);
    if (shown < 0 && Control.isFor(session)) this.views.push(this.add(new Control(session)));
    if (shown < 0 || Control.isFor(session)) return;
    const [gone] = this.views.splice(shown, 1);
    gone.link.parentElement.remove();
    if (this.current === gone) this.current = this.views[0];
  }

  logIn() {
    this.live.stop();
    this.onState("connecting");
    place.account.replaceChildren();
    showLogin(place.main, () => attempt(() => this.start()));
  }

  // The view that the hash names. `isMoved`: the reader has asked for it, and goes on there.
  showView(isMoved) {
    const { name, run } = this.asked();
    const chosen = this.views.find((view) => view.name === name) ?? this.current ?? this.views[0];
    this.current = chosen;
    for (const view of this.views) {
      const isChosen = view === chosen;
      setAttributes(view.link, { "aria-current": isChosen ? "page" : null });
      if (view.section.hidden !== isChosen) continue;
      view.section.hidden = !isChosen;
      if (isChosen) view.show();
      else view.hide();
    }
    if (run !== null && run !== this.run && this.runs.has(run)) this.chooseRun(run, true);
    document.title = `${chosen.title} – Tributary`;
    if (isMoved) chosen.heading.focus();
  }

  onState(state) {
    // Perhaps the login has ended.
    if (state === "refused") attempt(() => getJson("/api/status"));
    setText(place.connection, states[state]);
    place.connection.className = `is-${state}`;
  }

  onStatus(status) {
    const rounds = `round ${format.number(status.round)} of ${format.number(status.rounds)}`;
    const run = format.runName({ id: status.run, model: status.model, settings: status });
    setText(place.headline, `${run} · ${status.phase_text} · ${rounds}`);
    setText(place.software, status.software);
    if (status.run !== this.newestRun) {
      this.newestRun = status.run;
      this.listRuns(status);
    }
    for (const view of this.views) view.onStatus(status);
  }

  // The newest runs to choose from. The one at hand is shown unless the reader has chosen another.
  listRuns(status) {
    attempt(async () => {
      const { runs, shown } = await getJson("/api/runs");
      this.runs = new Set(runs.map(({ id }) => id));
      const { run } = this.asked();
      const wanted = this.runs.has(run) ? run : this.runs.has(status.run) ? status.run : shown;
      place.run.replaceChildren(...runs.map((run) =>
        make("option", { value: run.id }, format.runName(run))));
      if (wanted !== null) this.chooseRun(wanted, wanted === run);
    });
  }

  // A run that the reader has chosen stays when another one begins.
  chooseRun(run, isChosen) {
    this.run = run;
    place.run.value = String(run);
    for (const view of this.views) {
      setAttributes(view.link, { href: isChosen ? `#${view.name}/${run}` : `#${view.name}` });
      view.setRun(run);
    }
  }
}

attempt(() => new App().start());
