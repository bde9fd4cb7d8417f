// SPDX-License-Identifier: Apache-2.0
// The place for what an operator may do. Without one who has logged in there is nothing to see.
import { make } from "./dom.js";

const roles = ["operator", "admin"];

export class Control {
  name = "control";
  title = "Control";

  // Whether the view is there for whoever has this session (/api/session).
  static isFor(session) {
    return session.is_logged_in && roles.includes(session.role);
  }

  constructor() {
    this.element = make("div");
  }

  setRun() {}
  show() {}
  hide() {}
  onStatus() {}
}
