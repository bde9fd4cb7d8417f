// SPDX-License-Identifier: Apache-2.0
// What must hold of any page for a keyboard and a reader of the screen. dashboard_test.py runs it
// in the page; it returns what is wrong, as texts.
() => {
  const wrong = [];
  const isShown = (element) =>
    element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length > 0;
  const textOfId = (id) => document.getElementById(id)?.textContent;
  const nameOf = (element) => [
    element.getAttribute("aria-label"),
    ...(element.getAttribute("aria-labelledby") ?? "").split(" ").map(textOfId),
    ...[...(element.labels ?? [])].map((label) => label.textContent),
    element.tagName === "IMG" ? element.getAttribute("alt") : "",
    element.textContent,
  ].find((text) => text?.trim());
  const tell = (text, element) => wrong.push(`${text}: ${element.outerHTML.slice(0, 160)}`);

  // Landmarks, and one heading after the other without a gap.
  for (const landmark of ["header", "nav", "main", "footer"]) {
    const found = document.querySelectorAll(`body > ${landmark}`).length;
    if (found !== 1) wrong.push(`there must be one ${landmark}`);
  }
  if (document.documentElement.lang !== "en") wrong.push("the page has no language");
  let level = 1;
  for (const heading of [...document.querySelectorAll("h1, h2, h3, h4")].filter(isShown)) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) tell("a level of headings is left out", heading);
    level = next;
  }

  // Names of what can be used or seen.
  const named = "button, input, select, textarea, a[href], summary, progress, [role=img]";
  for (const control of document.querySelectorAll(named))
    if (isShown(control) && !nameOf(control)) tell("it has no name", control);
  for (const table of [...document.querySelectorAll("table")].filter(isShown)) {
    if (!table.caption?.textContent) tell("a table without a caption", table);
    for (const head of table.querySelectorAll("thead th"))
      if (!head.scope) tell("a head without a scope", head);
  }
  // Words that could stand in a line are not put one below the other, as on a narrow screen.
  for (const text of document.querySelectorAll("caption, h2, h3, label, legend, summary, dt, .note")) {
    const words = text.textContent.trim().split(/\s+/).length;
    if (!isShown(text) || words < 3 || text.matches(".unseen")) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top / 4)));
    if (lines.size > words / 2 + 1) tell(`${words} words in ${lines.size} lines`, text);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of ids.filter((each, at) => ids.indexOf(each) !== at))
    wrong.push(`the id ${id} is there twice`);
  for (const element of document.querySelectorAll("[tabindex]"))
    if (element.tabIndex > 0) tell("the order of the keyboard is not that of the page", element);

  // Contrast of text, 4.5 or more.
  const parts = (color) => color.match(/[\d.]+/g).map(Number);
  const light = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((each) => {
      const part = each / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const groundOf = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parts(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  for (const element of document.querySelectorAll("body *")) {
    const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
    const hasText = [...element.childNodes].some(isText);
    if (!hasText || !isShown(element) || element.matches(":disabled, option, noscript")) continue;
    const style = getComputedStyle(element);
    const color = parts(element instanceof SVGElement ? style.fill : style.color);
    const [high, low] = [light(color), light(groundOf(element))].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) tell(`the contrast is ${contrast.toFixed(2)}`, element);
  }
  return wrong;
}
