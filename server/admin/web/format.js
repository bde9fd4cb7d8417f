// SPDX-License-Identifier: Apache-2.0
// Figures as people read them. What is not known is "–".

export const unknown = "–";

const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);

// Units of 1000, as `fl-server history` has them.
export function bytes(value) {
  if (!isKnown(value)) return unknown;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toPrecision(3)} ${units[unit]}`;
}

export function speed(value) {
  return isKnown(value) ? `${bytes(Math.round(value))}/s` : unknown;
}

export function seconds(value) {
  if (!isKnown(value)) return unknown;
  if (value < 0) return `-${seconds(-value)}`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 99.5) return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86400).toFixed(1)} days`;
}

export function number(value, digits = 4) {
  if (!isKnown(value)) return unknown;
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 2);
  return String(Number(value.toPrecision(digits)));
}

// An accuracy is shown in percent, as everywhere else.
export function metric(name, value, isExact = true) {
  if (!isKnown(value)) return unknown;
  const text = /accuracy$/i.test(name) ? `${(100 * value).toFixed(2)} %` : number(value);
  return isExact ? text : `~${text}`;
}

export function percent(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : unknown;
}

const two = (value) => String(value).padStart(2, "0");

// Unix seconds as the browser's time of day, with the date if it is another day.
export function time(at) {
  if (!isKnown(at)) return unknown;
  const date = new Date(at * 1000);
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return date.toDateString() === new Date().toDateString() ? clock : `${day(at)} ${clock}`;
}

export function day(at) {
  if (!isKnown(at)) return unknown;
  const date = new Date(at * 1000);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

export function isoTime(at) {
  return isKnown(at) ? new Date(at * 1000).toISOString() : "";
}

// A run as it is called everywhere: its number, model, method and codec. `run`: a row of /api/runs.
export function runName({ id, model, settings }) {
  const parts = [`run ${id}`, model, settings.strategy, settings.codec];
  return parts.map((part) => part || unknown).join(" · ");
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}
