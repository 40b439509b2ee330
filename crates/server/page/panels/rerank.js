// Documents in the order of their relevance to a query.

import { field, h } from "../dom.js";
import { needs, picker } from "../served.js";
import { bars, form, lines, need } from "./form.js";

const EXAMPLE = [
  "Berlin has 3.7 million inhabitants.",
  "The capital of Germany is famous for its museums.",
  "A kilogram of flour costs about one euro.",
  "Population figures of German cities are published each year.",
];

export function panel() {
  const model = picker("rerank");
  const query = /** @type {HTMLInputElement} */ (
    h("input", { type: "text", ".value": "How many people live in Berlin?" })
  );
  const area = /** @type {HTMLTextAreaElement} */ (h("textarea", { rows: 8 }));
  area.value = EXAMPLE.join("\n");
  const { node, result } = form({
    fields: [model.node, field("Query", query), field("Documents", area, "one per line")],
    submit: "Rank",
    empty: "Rank the documents to see which of them answer the query.",
    run: async (send) => {
      const documents = lines(area);
      if (!documents.length) throw new Error("Write documents, one per line.");
      const body = { model: model.select.value, query: need(query.value, "a query"), documents };
      const { results } = await send("/v1/rerank", body);
      const row = ({ index, relevance_score: score }) => ({
        label: h("span", {}, documents[index], h("span", { class: "hint" }, ` (document ${index + 1})`)),
        value: score.toFixed(4),
        part: score,
      });
      return [h("h3", {}, "Most relevant first"), bars(results.map(row), "Ranked documents")];
    },
  });
  return needs("rerank", h("div", { class: "work columns" }, node, result));
}
