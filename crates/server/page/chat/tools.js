// Tool calls of an answer. The page runs nothing: a person types the results.

import { field, h } from "../dom.js";

/**
 * A card of a call, with a field for its result.
 * @param {{id: string, name: string, arguments: string}} call
 */
export function callCard(call) {
  const result = /** @type {HTMLTextAreaElement} */ (h("textarea", { rows: 2, spellcheck: "false" }));
  const entry = field(`Result of ${call.name}`, result, "what the tool would answer, as text or JSON");
  const head = h("p", { class: "call-name" }, "Calls ", h("code", {}, call.name));
  const text = h(
    "pre",
    { tabindex: "0", role: "region", "aria-label": "arguments" },
    h("code", {}, pretty(call.arguments)),
  );
  return { node: h("div", { class: "call" }, head, text, entry), entry, result };
}

/** Arguments with indents, if they are complete. @param {string} text */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
