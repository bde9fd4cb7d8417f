// SPDX-License-Identifier: Apache-2.0
// What an operator may do. The server decides who may do what; forms that it would refuse are not
// shown.
import { make, panel } from "./dom.js";
import { field, form, options } from "./forms.js";
import * as format from "./format.js";
import { attempt, getJson, throttled } from "./net.js";
import { QueueForm } from "./queue.js";

const roles = ["operator", "admin"];
const reloadMs = 2000;

// A form that acts on one of the newest runs that are in one of these states.
class RunForm {
  constructor(action, label, states, done, question) {
    this.states = states;
    this.text = null;  // Of the runs that can be chosen.
    this.field = options("Run", "run", []);
    this.choice = this.field.querySelector("select");
    this.choice.required = true;
    this.element = form(action, label, [this.field], {
      ask: ({ run }) => question(run),
      body: ({ run }) => ({ run: Number(run) }),
      told: (answer) => answer.done,
      done,
    });
  }

  setRuns(runs) {
    const choices = runs.filter(({ state }) => this.states.includes(state))
      .map((run) => [String(run.id), `${format.runName(run)} · ${run.state}`]);
    if (choices.length === 0) choices.push(["", "there is none"]);
    const text = JSON.stringify(choices);
    if (text === this.text) return;
    this.text = text;
    const chosen = this.choice.value;
    this.choice.replaceChildren(...choices.map(([value, name]) => make("option", { value }, name)));
    if (choices.some(([value]) => value === chosen)) this.choice.value = chosen;
  }
}

function enrollForm() {
  return form("enroll", "Make a join token", [
    field("Client", "client", { required: true }),
    options("Role", "role", ["trainer", "evaluator"]),
  ], {
    ask: ({ client }) => `Make a token with which a client joins as '${client}'?`,
    body: ({ client, role }) => ({ client: client.trim(), role }),
    told: ({ token, replaces }, { client }) => ({
      text: `The token of '${client}' is good once and for an hour. It is shown only now.` +
        (replaces ? " Whoever joins with it takes the place of the client of that name." : ""),
      secret: token,
    }),
  });
}

function pardonForm() {
  return form("pardon", "Pardon the client", [field("Client", "client", { required: true })], {
    ask: ({ client }) => `Pardon '${client}'? What it missed so far counts no more.`,
    body: ({ client }) => ({ client: client.trim() }),
    told: ({ done }) => done,
  });
}

function revokeForm() {
  return form("revoke", "Revoke the client", [field("Client", "client", { required: true })], {
    ask: ({ client }) => `Revoke '${client}'? It can never come back by this name.`,
    body: ({ client }) => ({ client: client.trim() }),
    told: ({ done }) => done,
  });
}

function operatorForms() {
  return [
    form("add-operator", "Add the operator", [
      field("Name", "name", { required: true }),
      options("Role", "role", ["viewer", "operator", "admin"]),
    ], {
      ask: ({ name, role }) => `Let '${name}' log in as ${role}?`,
      body: ({ name, role }) => ({ name: name.trim(), role }),
      told: ({ token }, { name }) => ({
        text: `The token of '${name}' is shown only now.`, secret: token,
      }),
    }),
    form("revoke-operator", "Revoke the operator", [field("Name", "name", { required: true })], {
      ask: ({ name }) => `Revoke the operator '${name}'? Its token and its logins end.`,
      body: ({ name }) => ({ name: name.trim() }),
      told: ({ name }) => `The operator '${name}' is revoked.`,
    }),
  ];
}

export class Control {
  name = "control";
  title = "Control";

  // Whether the view is there for whoever has this session (/api/session).
  static isFor(session) {
    return session.is_logged_in && roles.includes(session.role);
  }

  constructor(session) {
    const done = () => attempt(() => this.load());
    this.queue = new QueueForm(done);
    this.runForms = [
      new RunForm("stop", "End the run", ["running", "waiting"], done,
        (run) => `End run ${run}: after the round under way, or at once if it has no model yet? ` +
          "It can't be taken back."),
      new RunForm("drop", "Take it out", ["waiting"], done,
        (run) => `Remove run ${run}, which has no model yet?`),
    ];
    const [end, drop] = this.runForms;
    this.element = make("div", {},
      panel("Queue a run", this.queue.element),
      panel("End a run", end.element),
      panel("Take a run out of the queue", drop.element),
      panel("Pardon a client", pardonForm()));
    this.reload = throttled(reloadMs, () => this.isShown && attempt(() => this.load()));
    if (session.role !== "admin") return;
    this.element.append(
      panel("Invite a client", enrollForm()),
      panel("Revoke a client", revokeForm()),
      panel("Operators", ...operatorForms()));
  }

  async load() {
    const [{ runs }] = await Promise.all([getJson("/api/runs"), this.queue.load()]);
    for (const each of this.runForms) each.setRuns(runs);
  }

  setRun() {}

  show() {
    this.isShown = true;
    attempt(() => this.load());
  }

  hide() {
    this.isShown = false;
  }

  onStatus(status) {
    const newest = `${status.run} ${status.newest_event}`;
    if (newest !== this.newest) this.reload();
    this.newest = newest;
  }
}
