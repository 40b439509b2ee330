// One model: where it runs and why, its memory, what really ran, its plan op by op, unloading.

import { json } from "../api.js";
import { button, fill, h, notice } from "../dom.js";
import { bytes, count, percent, plural } from "../format.js";
import { refresh } from "../served.js";
import { planTable } from "./plan.js";

const STATES = { resting: "unloaded" };
const FILLS = { Weights: "#b45309", "KV cache": "#0e7490", Workspace: "#4d7c0f" };

export class ModelCard {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    this.body = h("div");
    this.plan = h("div");
    this.more = h(
      "details",
      { class: "more", on: { toggle: () => this.showPlan() } },
      h("summary", {}, "Plan, op by op"),
      this.plan,
    );
    this.state = h("span", { class: "badge" });
    this.result = h("p", { class: "bad", role: "alert", hidden: true });
    this.unload = button("Unload", () => this.remove(), { "aria-label": `Unload ${id}` });
    this.node = h(
      "article",
      { class: "card", "aria-label": id },
      h("header", {}, h("h4", {}, id), this.state, this.unload),
      this.result,
      this.body,
      this.more,
    );
  }

  /** @param {any} model As GET /v1/status describes it. */
  update(model) {
    // What has not changed stays as it is, for who reads or selects it.
    const known = JSON.stringify(model);
    if (known === this.known) return;
    this.known = known;
    this.state.className = `badge ${model.state}`;
    this.state.textContent = STATES[model.state] ?? model.state;
    this.more.hidden = model.state !== "ready";
    fill(this.body, model.state === "ready" ? this.ready(model) : this.waiting(model));
  }

  /** @param {any} model */
  waiting({ state, progress, error }) {
    if (state === "loading") {
      const { stage = "starting", percent: part = null } = progress ?? {};
      return [
        h("p", {}, `${stage}${part === null ? "…" : `, ${Math.round(part)} %`}`),
        h("progress", { max: 100, value: part ?? undefined, "aria-label": "Loading" }),
      ];
    }
    if (error) return [h("p", { class: "bad" }, error)];
    return [h("p", { class: "hint" }, "Not in memory; the next request loads it.")];
  }

  /** @param {any} model */
  ready(model) {
    const {
      task,
      device,
      engine,
      dtype,
      dtype_reason: reason,
      source,
      max_tokens: tokens,
      dimension,
      queue,
      generation,
      ran,
      leases,
    } = model;
    const facts = [
      ["Task", task],
      ["Runs on", engine === "native" ? device : `${device}, ${engine}`],
      ["Format", `${dtype} (${reason})`],
      [
        "Reads",
        `${plural(tokens, "token")} at most${dimension && task !== "generate" ? `, ${count(dimension)} dimensions` : ""}`,
      ],
      ["From", source],
      [
        "Queue",
        `${plural(queue.requests, "request")}; last batch ${plural(queue.batch_sequences, "sequence")}, ${plural(queue.batch_tokens, "token")}; ${plural(leases, "request")} in progress`,
      ],
      generation && [
        "Generation",
        `${count(generation.running)} running, ${count(generation.waiting)} waiting; KV cache ${percent(generation.cache_used)} in use; ${count(generation.prompt_tokens)} tokens read, ${count(generation.generated_tokens)} written; prefix cache found ${percent(generation.prefix_queries ? generation.prefix_hits / generation.prefix_queries : 0)}`,
      ],
    ];
    return [
      h(
        "dl",
        { class: "facts" },
        facts.filter(Boolean).flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)]),
      ),
      memory(model.memory),
      rungs(ran),
    ];
  }

  async showPlan() {
    if (!this.more.open) return;
    fill(this.plan, notice("busy", "Reading the plan…"));
    try {
      fill(this.plan, planTable(await json(`/v1/plan?model=${encodeURIComponent(this.id)}`)));
    } catch (error) {
      fill(this.plan, notice("error", error.message));
    }
  }

  async remove() {
    if (!confirm(`Unload ${this.id}? Requests that run now finish.`)) return;
    this.unload.disabled = true;
    this.result.hidden = true;
    try {
      await json("/v1/models/unload", { json: { model: this.id } });
      await refresh();
    } catch (error) {
      this.result.textContent = error.message;
      this.result.hidden = false;
    } finally {
      this.unload.disabled = false;
    }
  }
}

/** Planned memory by its parts, and the peak. @param {any} memory */
function memory({
  weights_bytes: weights,
  cache_bytes: cache,
  workspace_bytes: workspace,
  peak_bytes: peak,
}) {
  const parts = Object.entries({ Weights: weights, "KV cache": cache, Workspace: workspace }).filter(
    ([, n]) => n > 0,
  );
  const all = parts.reduce((sum, [, n]) => sum + n, 0) || 1;
  const styled = (name, n) => ({ style: { "--fill": FILLS[name], "--part": `${(n / all) * 100}%` } });
  return h(
    "div",
    {},
    h("p", { class: "hint" }, `Memory: ${bytes(all)} planned, ${bytes(peak)} at most held so far`),
    h(
      "div",
      { class: "stack", "aria-hidden": "true" },
      parts.map(([name, n]) => h("div", styled(name, n))),
    ),
    h(
      "ul",
      { class: "legend" },
      parts.map(([name, n]) => h("li", styled(name, n), `${name} ${bytes(n)}`)),
    ),
  );
}

/** Op calls that really ran, by device and rung. @param {{device: string, rung: string, calls: number}[]} ran */
function rungs(ran) {
  const sums = new Map();
  for (const { device, rung, calls } of ran)
    sums.set(`${device} ${rung}`, {
      device,
      rung,
      calls: (sums.get(`${device} ${rung}`)?.calls ?? 0) + calls,
    });
  const each = [...sums.values()].flatMap(({ device, rung, calls }, i) => [
    i > 0 && ", ",
    `${plural(calls, "op call")} on ${device} `,
    h("span", { class: `badge ${rung}` }, rung),
  ]);
  return h("p", {}, "Really ran: ", sums.size ? each : "nothing yet");
}
