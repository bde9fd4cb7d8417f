// SPDX-License-Identifier: Apache-2.0
// What an operator may do. Each form asks once more before anything happens, and says what came of
// it. The server decides who may do what; forms that it would refuse are not shown.
import { button, make, newId, panel, setText } from "./dom.js";
import { postJson } from "./net.js";

const roles = ["operator", "admin"];

// Asks in a dialog, and returns whether the answer was yes. Escape is no.
function confirmed(question) {
  const heading = newId("question");
  return new Promise((resolve) => {
    const dialog = make("dialog", { "aria-labelledby": heading },
      make("p", { id: heading }, question),
      button("Yes", () => dialog.close("yes"), { "data-answer": "yes" }), " ",
      button("No", () => dialog.close("no"), { "data-answer": "no", autofocus: true }));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

function field(label, name, attributes = {}) {
  const id = newId(name);
  return make("p", {}, make("label", { for: id }, label), " ",
    make("input", { id, name, autocomplete: "off", ...attributes }));
}

function options(label, name, values) {
  const id = newId(name);
  return make("p", {}, make("label", { for: id }, label), " ",
    make("select", { id, name }, values.map((value) => make("option", { value }, value))));
}

// A form whose answer stands below it. `ask`: the question before it is sent; `body`: what is
// sent; `told`: the answer as text, or as {text, secret}, where the secret is shown to be copied.
function form(action, label, fields, { ask, body, told }) {
  const state = make("p", { role: "status" });
  const secret = make("output", { class: "secret", hidden: true });
  const element = make("form", { "data-action": action }, ...fields,
    make("button", { type: "submit" }, label), state, secret);
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(element));
    secret.hidden = true;
    if (!await confirmed(ask(given))) {
      setText(state, "Nothing was done.");
      return;
    }
    try {
      const answer = told(await postJson(`/api/control/${action}`, body(given)), given);
      setText(state, answer.text ?? answer);
      setText(secret, answer.secret ?? "");
      secret.hidden = !answer.secret;
      state.className = "";
    } catch (error) {
      setText(state, error.message);
      state.className = "level-error";
    }
  });
  return element;
}

function queueForm() {
  return form("queue", "Queue the run", [
    field("Rounds", "rounds", { type: "number", min: 1, step: 1, required: true }),
    field("Codec (empty: the default)", "codec"),
    field("Learning rate (empty: the default)", "lr", { inputmode: "decimal" }),
  ], {
    ask: ({ rounds }) => `Queue a run of ${rounds} rounds?`,
    body: ({ rounds, codec, lr }) => ({ settings: {
      rounds: Number(rounds),
      ...(codec.trim() && { codec: codec.trim() }),
      ...(lr.trim() && { lr: Number(lr) }),
    } }),
    told: ({ run }) => `Run ${run} is queued.`,
  });
}

function runForm(action, label, run, question) {
  return form(action, label, [run], {
    ask: ({ run }) => question(run),
    body: ({ run }) => ({ run: run.trim() }),
    told: ({ done }) => done,
  });
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
    this.run = field("Run: its number or its key", "run", { required: true });
    this.element = make("div", {},
      panel("Queue a run", queueForm()),
      panel("End a run", runForm("stop", "End the run", this.run,
        (run) => `End run ${run}: after the round under way, or at once if it has no model yet? ` +
          "It can't be taken back.")),
      panel("Take a run out of the queue", runForm("drop", "Take it out",
        field("Run: its number or its key", "run", { required: true }),
        (run) => `Remove run ${run}, which has no model yet?`)));
    if (session.role !== "admin") return;
    this.element.append(
      panel("Invite a client", enrollForm()),
      panel("Revoke a client", revokeForm()),
      panel("Operators", ...operatorForms()));
  }

  // The run that the page shows is the one that is proposed.
  setRun(run) {
    const input = this.run.querySelector("input");
    if (run && input.value === "") input.value = run;
  }

  show() {}
  hide() {}
  onStatus() {}
}
