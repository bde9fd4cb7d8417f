// SPDX-License-Identifier: Apache-2.0
// Forms that act on the server. Each asks once more before anything happens, and says what came of
// it.
import { button, make, newId, setText } from "./dom.js";
import { postJson } from "./net.js";

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

export function field(label, name, attributes = {}) {
  const id = newId(name);
  return make("p", {}, make("label", { for: id }, label), " ",
    make("input", { id, name, autocomplete: "off", ...attributes }));
}

export function options(label, name, values) {
  const id = newId(name);
  return make("p", {}, make("label", { for: id }, label), " ",
    make("select", { id, name }, values.map((value) => make("option", { value }, value))));
}

// A form whose answer stands below it. `ask`: the question before it is sent; `body`: what is
// sent; `told`: the answer as text, or as {text, secret}, where the secret is shown to be copied.
// `done` is called after each act.
export function form(action, label, fields, { ask, body, told, done = () => {} }) {
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
      done();
    } catch (error) {
      setText(state, error.message);
      state.className = "level-error";
    }
  });
  return element;
}
