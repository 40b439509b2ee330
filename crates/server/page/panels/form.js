// A form whose result a request makes, with its states: empty, busy, error, done, and what it cost.

import { costOf, request } from "../api.js";
import { fill, h, notice } from "../dom.js";
import { cost } from "../format.js";

/**
 * A form and the place of its result.
 * @param {object} parts
 * @param {Node[]} parts.fields
 * @param {string} parts.submit The button's text.
 * @param {string} parts.empty What to do, while there is no result.
 * @param {(send: Send) => Promise<Node | Node[]>} parts.run Makes the result.
 *
 * @typedef {(path: string, json: unknown) => Promise<any>} Send Posts JSON and returns the answer's.
 */
export function form({ fields, submit, empty, run }) {
  const button = h("button", { class: "primary" }, submit);
  const result = h("div", { class: "result", "aria-live": "polite" }, notice("empty", empty));
  const node = h("form", { on: { submit: start } }, fields, h("div", { class: "actions" }, button));

  /** @param {Event} event */
  async function start(event) {
    event.preventDefault();
    button.disabled = true;
    fill(result, notice("busy", "Waiting for the model…"));
    /** @type {string[]} */
    const costs = [];
    const send = async (path, json) => {
      const response = await request(path, { json });
      const body = await response.json();
      const spent = cost(costOf(response));
      if (spent) costs.push(spent);
      return body;
    };
    try {
      fill(
        result,
        await run(send),
        costs.map((text) => h("p", { class: "stats" }, text)),
      );
    } catch (error) {
      fill(result, notice("error", error.message));
    } finally {
      button.disabled = false;
    }
  }

  return { node, result };
}

/** A choice to cut off texts that are longer than the model reads, instead of an error. */
export function truncation() {
  const box = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox" }));
  return { node: h("label", { class: "check" }, box, "Cut off texts that are too long"), box };
}

/** The lines of a field that are not blank. @param {HTMLTextAreaElement} area */
export const lines = (area) =>
  area.value
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

/** Throws what to do if `text` is blank. @param {string} text @param {string} what */
export function need(text, what) {
  if (!text.trim()) throw new Error(`Write ${what} first.`);
  return text;
}

/**
 * A bar of a part of a whole.
 * @param {number} part From 0 to 1.
 */
export function bar(part) {
  const width = `${Math.min(Math.max(part, 0), 1) * 100}%`;
  return h("div", { class: "bar", "aria-hidden": "true" }, h("div", { style: { "--part": width } }));
}

/**
 * A list of labels with values and bars.
 * @param {{label: Node | string, value: string, part: number}[]} rows
 * @param {string} name For screen readers.
 */
export function bars(rows, name) {
  const row = ({ label, value, part }) =>
    h(
      "li",
      {},
      h("div", { class: "line" }, h("span", {}, label), h("span", { class: "value" }, value)),
      bar(part),
    );
  return h("ol", { class: "bars", "aria-label": name }, rows.map(row));
}
