// Numbers as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** @param {number} n */
export function bytes(n) {
  let unit = 0;
  while (n >= 1024 && unit < UNITS.length - 1) [n, unit] = [n / 1024, unit + 1];
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${UNITS[unit]}`;
}

/** @param {number} n */
export const count = (n) => Math.round(n).toLocaleString("en-US");

/** @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** @param {number} ms */
export function duration(ms) {
  if (ms < 1) return "under 1 ms";
  if (ms < 10 && !Number.isInteger(ms)) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : seconds(ms / 1000);
}

/** @param {number} s */
export function seconds(s) {
  if (s < 60) return `${s < 10 ? s.toFixed(2) : s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** A rate with three digits. @param {number} n */
export const rate = (n) => (n >= 100 ? count(n) : n >= 10 ? n.toFixed(1) : n.toFixed(2));

/** With a space that does not break. @param {number} part From 0 to 1. */
export const percent = (part) => `${(part * 100).toFixed(part < 0.1 && part > 0 ? 1 : 0)}\u00a0%`;

/** What a request cost, in a sentence. @param {ReturnType<import("./api.js").costOf>} cost */
export function cost({ tokens, tokenization, queue, inference, total }) {
  const parts = [
    tokens > 0 && plural(tokens, "token"),
    total !== null && `${duration(total)} in all`,
    queue !== null && `queue ${duration(queue)}`,
    tokenization !== null && `tokenization ${duration(tokenization)}`,
    inference !== null && `inference ${duration(inference)}`,
  ];
  return parts.filter(Boolean).join(" · ");
}
