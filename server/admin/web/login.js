// SPDX-License-Identifier: Apache-2.0
// The form to log in with a token. The server answers with a cookie that scripts can't read.
import { button, make, setText } from "./dom.js";
import { postJson } from "./net.js";

// Shows the form in `place`, and calls onDone once the token was right.
export function showLogin(place, onDone) {
  const token = make("input", {
    type: "password", id: "token", autocomplete: "current-password", required: true,
  });
  const problem = make("p", { role: "alert", class: "level-error" });
  const form = make("form", { class: "login" },
    make("h2", {}, "Log in"),
    make("p", {}, "The token of an operator (fl-server operator add), or the one in the file that " +
      "fl-server was given by --admin-token-file."),
    make("label", { for: "token" }, "Token"), token,
    make("button", { type: "submit" }, "Log in"), problem);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await postJson("/api/login", { token: token.value.trim() });
      onDone();
    } catch (error) {
      setText(problem, error.message);
      token.focus();
    }
  });
  place.replaceChildren(form);
  token.focus();
}

// Who is logged in, and the way out.
export function showAccount(place, session, onOut) {
  if (!session.is_logged_in) {
    place.replaceChildren(button("Log in", onOut));
    return;
  }
  const who = session.name ? `${session.name} (${session.role})` : session.role;
  place.replaceChildren(make("span", {}, who), " ", button("Log out", async () => {
    await postJson("/api/logout", {});
    onOut();
  }));
}
