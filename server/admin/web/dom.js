// SPDX-License-Identifier: Apache-2.0
// Makes elements. Whatever comes from the server (names, errors) becomes text or the value of an
// attribute, never markup: nothing in the dashboard writes innerHTML.

// Attributes that would run or fetch what they say.
const forbidden = /^on|^(srcdoc|style)$/i;

// Sets attributes of an element: true means the empty string, false and null remove it.
export function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (forbidden.test(name)) throw new Error(`an element may not have '${name}' here`);
    if (value === false || value === null || value === undefined) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return element;
}

// Children are elements, or become text. Null is none.
export function append(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function make(tag, attributes = {}, ...children) {
  return append(setAttributes(document.createElement(tag), attributes), children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return append(setAttributes(element, attributes), children);
}

// Writes a text only where it changes, so that readers of the screen are not told for nothing.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function button(label, onClick, attributes = {}) {
  const element = make("button", { type: "button", ...attributes }, label);
  element.addEventListener("click", onClick);
  return element;
}

// A word with its own look: "state" with "failed" has the classes state and state-failed.
export function word(kind, value) {
  return make("span", { class: `${kind} ${kind}-${value}` }, value);
}

let ids = 0;
// An id that nothing else on the page has.
export function newId(prefix) {
  ids += 1;
  return `${prefix}-${ids}`;
}

// A part of a view with its heading.
export function panel(title, ...children) {
  const id = newId("panel");
  return make("section", { class: "panel", "aria-labelledby": id },
    make("h3", { id }, title), ...children);
}

// One of several choices, as radio buttons in a row. Calls onChange with the value.
export function choice(legend, options, chosen, onChange) {
  const name = newId("choice");
  const field = make("fieldset", { class: "choice" }, make("legend", {}, legend));
  for (const [value, label] of options) {
    const input = make("input", { type: "radio", name, value });
    input.checked = value === chosen;
    input.addEventListener("change", () => onChange(value));
    field.append(make("label", {}, input, " ", label));
  }
  return field;
}
