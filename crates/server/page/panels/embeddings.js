// Texts to embeddings: how similar each pair is, and where they lie.

import { field, h } from "../dom.js";
import { percent } from "../format.js";
import { needs, picker } from "../served.js";
import { form, lines, truncation } from "./form.js";
import { heatmap } from "./heatmap.js";
import { map } from "./map.js";
import { principalComponents, similarities, vectorsOf } from "./vectors.js";

const EXAMPLE = [
  "A man is eating food.",
  "Someone is having a meal.",
  "The stock market fell today.",
  "Shares lost a tenth of their value.",
  "A cat sleeps in the sun.",
  "The kitten naps on the warm sofa.",
];

export function panel() {
  const model = picker("embed");
  const truncate = truncation();
  const area = /** @type {HTMLTextAreaElement} */ (h("textarea", { rows: 8 }));
  area.value = EXAMPLE.join("\n");
  const { node, result } = form({
    fields: [model.node, field("Texts", area, "one per line, at least two"), truncate.node],
    submit: "Compare",
    empty: "Compare the texts to see which of them mean the same.",
    run: async (send) => {
      const texts = lines(area);
      if (texts.length < 2) throw new Error("Write at least two texts, one per line.");
      const vectors = vectorsOf(
        await send("/v1/embeddings", {
          model: model.select.value,
          input: texts,
          truncate: truncate.box.checked,
        }),
      );
      const { points, explained } = principalComponents(vectors);
      return [
        h("h3", {}, "Cosine similarity"),
        heatmap(texts, similarities(vectors), "Cosine similarity of each pair of texts"),
        h("h3", {}, "Map"),
        map(texts, points, "The texts by their two principal components; similar texts lie close together"),
        h(
          "p",
          { class: "stats" },
          `The two axes show ${percent(explained[0] + explained[1])} of the variance of ${vectors[0].length} dimensions (principal components).`,
        ),
      ];
    },
  });
  return needs("embed", h("div", { class: "work columns" }, node, result));
}
