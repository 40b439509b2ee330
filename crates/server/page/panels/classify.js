// The labels of a text, with their probabilities.

import { field, h } from "../dom.js";
import { percent } from "../format.js";
import { needs, picker } from "../served.js";
import { bars, form, need, truncation } from "./form.js";

/** Labels that are shown; models may have thousands. */
const SHOWN = 25;

export function panel() {
  const model = picker("classify");
  const truncate = truncation();
  const area = /** @type {HTMLTextAreaElement} */ (h("textarea", { rows: 5 }));
  area.value = "I love this film, and would see it again tomorrow.";
  const { node, result } = form({
    fields: [model.node, field("Text", area), truncate.node],
    submit: "Classify",
    empty: "Classify the text to see the model's labels for it.",
    run: async (send) => {
      const inputs = need(area.value, "a text");
      const labels = await send("/predict", {
        model: model.select.value,
        inputs,
        truncate: truncate.box.checked,
      });
      const sorted = [...labels].sort((a, b) => b.score - a.score);
      const row = ({ label, score }) => ({ label, value: percent(score), part: score });
      const more = sorted.length - SHOWN;
      return [
        h("h3", {}, "Labels"),
        bars(sorted.slice(0, SHOWN).map(row), "Labels and their probabilities"),
        more > 0 ? h("p", { class: "hint" }, `and ${more} less likely labels`) : h("span"),
      ];
    },
  });
  return needs("classify", h("div", { class: "work columns" }, node, result));
}
