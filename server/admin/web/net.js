// SPDX-License-Identifier: Apache-2.0
// The way to the server: JSON pages, and the stream of events.

export class AnswerError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok)
    throw new AnswerError(response.status, body.error ?? `the server answered ${response.status}`);
  return body;
}

// Fetches a page of /api. Values of `query` that are null are left out.
export async function getJson(path, query = {}) {
  const isGiven = ([, value]) => value !== null && value !== undefined && value !== "";
  const text = new URLSearchParams(Object.entries(query).filter(isGiven)).toString();
  return answer(await fetch(text ? `${path}?${text}` : path));
}

export async function postJson(path, body) {
  return answer(await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  }));
}

// The stream of events. It ends while the page is hidden, as browsers have few connections to one
// server, and begins again by itself after it has broken.
export class Live {
  static pauseMs = 2000;

  constructor(onStatus, onState) {
    this.onStatus = onStatus;
    this.onState = onState;
    document.addEventListener("visibilitychange", () => this.look());
  }

  start() {
    this.isWanted = true;
    this.look();
  }

  stop() {
    this.isWanted = false;
    this.look();
  }

  look() {
    const isNeeded = this.isWanted && document.visibilityState !== "hidden";
    if (isNeeded && !this.source) this.open();
    if (!isNeeded && this.source) this.close();
  }

  open() {
    clearTimeout(this.timer);
    this.source = new EventSource("/api/events");
    this.source.addEventListener("open", () => this.onState("live"));
    this.source.addEventListener("status", (event) => this.onStatus(JSON.parse(event.data)));
    this.source.addEventListener("error", () => {
      // A browser tries again by itself after a break, but not after an answer that is no stream.
      const isRefused = this.source?.readyState === EventSource.CLOSED;
      this.onState(isRefused ? "refused" : "lost");
      if (!isRefused) return;
      this.close();
      this.timer = setTimeout(() => this.look(), Live.pauseMs);
    });
  }

  close() {
    this.source?.close();
    this.source = null;
  }
}

// Calls `work` now, or as soon as it has not run for `pauseMs`: however often it is asked for, it
// runs once for all of them.
export function throttled(pauseMs, work) {
  let timer = null;
  let last = -Infinity;
  return () => {
    if (timer !== null) return;
    const wait = Math.max(0, last + pauseMs - performance.now());
    timer = setTimeout(() => {
      timer = null;
      last = performance.now();
      work();
    }, wait);
  };
}

// Runs asynchronous work. An error becomes an event of the document: "login-needed", or "trouble"
// with the error's text, which app.js shows. A later success takes the text away.
export async function attempt(work) {
  try {
    await work();
    document.dispatchEvent(new CustomEvent("trouble", { detail: "" }));
  } catch (error) {
    const isLogin = error instanceof AnswerError && error.status === 401;
    const name = isLogin ? "login-needed" : "trouble";
    document.dispatchEvent(new CustomEvent(name, { detail: error.message }));
  }
}
