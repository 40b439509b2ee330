// A model's plan: every op call of a forward pass, the rung that takes it, and why no better one does.

import { h } from "../dom.js";
import { bytes, count, plural } from "../format.js";

/** @param {any} plan As GET /v1/plan describes it. */
export function planTable({ steps, batch_tokens: tokens, workspace_bytes: workspace, graph }) {
  const row = ({ op, what, dtype, rung, calls, why_not: why, ran }) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, op),
      h("td", {}, what),
      h("td", {}, dtype),
      h("td", {}, h("span", { class: `badge ${rung ?? "none"}` }, rung ?? "none")),
      h("td", { class: "number" }, count(calls)),
      h("td", { class: "number" }, ran === null ? "" : count(ran)),
      h("td", {}, why.join("; ")),
    );
  const heads = ["Op", "What", "Format", "Rung", "Calls", "Ran", "Why not better"];
  const total = steps.reduce((sum, step) => sum + step.calls, 0);
  return h(
    "div",
    {},
    h(
      "p",
      { class: "hint" },
      `${plural(total, "op call")} of one pass over ${plural(tokens, "token")}, workspace ${bytes(workspace)}. “Ran” counts all calls of the op, format and rung since loading.`,
    ),
    graph && h("p", { class: "hint" }, `${graph}, beside these ops.`),
    h(
      "div",
      { class: "wide", tabindex: "0", role: "region", "aria-label": "Plan" },
      h(
        "table",
        { class: "plan" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map((head) => h("th", { scope: "col" }, head)),
          ),
        ),
        h("tbody", {}, steps.map(row)),
      ),
    ),
  );
}
