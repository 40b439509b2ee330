// One message: its text, reasoning, tool calls, what it cost, and what can be done with it.

import { button, copy, fill, h } from "../dom.js";
import { duration, percent, plural, rate } from "../format.js";
import { MarkdownStream } from "../markdown/stream.js";
import { callCard } from "./tools.js";

/** @typedef {import("./tree.js").Node} Node */

/**
 * @typedef {object} Actions
 * @property {(node: Node, text: string) => void} edit
 * @property {(node: Node) => void} again
 * @property {(node: Node) => void} remove
 * @property {(node: Node) => void} show
 * @property {(node: Node, results: string[]) => void} results
 * @property {() => void} grew
 */

const FINISH = { length: "cut off at the most tokens", stopped: "stopped", tool_calls: "calls tools" };

export class MessageView {
  /**
   * @param {Node} node
   * @param {object} around
   * @param {Node[]} around.branches The message and its alternatives.
   * @param {number | null} around.context The most tokens of the model.
   * @param {boolean} around.needsResults Whether its calls wait for results.
   * @param {Actions} actions
   */
  constructor(node, around, actions) {
    this.data = node;
    this.around = around;
    this.actions = actions;
    this.text = h("div", { class: "text" });
    this.thoughts = h("div", { class: "thoughts" });
    this.summary = h("summary", {}, "Reasoning");
    this.reasoning = h(
      "details",
      { class: "reasoning", hidden: !node.reasoning },
      this.summary,
      this.thoughts,
    );
    this.calls = h("div", { class: "calls" });
    this.foot = h("footer");
    this.stream = new MarkdownStream(this.text, actions.grew);
    const who = { user: "You", tool: "Tool result", assistant: node.model || "Assistant" }[node.role];
    this.node = h(
      "article",
      { class: `message ${node.role}`, "aria-label": `Message of ${who}` },
      h("h3", { class: "who" }, who),
      this.reasoning,
      this.text,
      this.calls,
      this.foot,
    );
    this.showText();
    this.thoughts.textContent = node.reasoning ?? "";
    this.showCalls();
    this.showFoot();
  }

  showText() {
    this.text.classList.toggle("plain", this.data.role !== "assistant");
    if (this.data.role !== "assistant") this.text.textContent = this.data.content;
    else this.stream.view.set(this.data.content);
  }

  /** Where a streamed answer goes. @returns {import("./answer.js").Sink} */
  sink() {
    this.node.setAttribute("aria-busy", "true");
    const thought = document.createTextNode("");
    this.thoughts.append(thought);
    return {
      text: (text) => this.stream.append(text),
      reasoning: (text) => {
        this.reasoning.hidden = false;
        thought.appendData(text);
        this.actions.grew();
      },
      calls: () => this.showCalls(),
    };
  }

  /** The answer is complete. @param {Partial<typeof this.around>} around */
  done(around) {
    Object.assign(this.around, around);
    this.stream.flush();
    this.node.removeAttribute("aria-busy");
    this.showCalls();
    this.showFoot();
  }

  showCalls() {
    const { calls = [] } = this.data;
    const cards = calls.map(callCard);
    const send = () =>
      this.actions.results(
        this.data,
        cards.map((card) => card.result.value),
      );
    const waits = this.around.needsResults && calls.length > 0;
    for (const card of cards) card.entry.hidden = !waits;
    fill(
      this.calls,
      cards.map((card) => card.node),
      waits && button("Send results", send, { class: "primary" }),
    );
  }

  showFoot() {
    const { data, around, actions } = this;
    const copied = button("Copy", () => copy(copied, this.text), { class: "quiet" });
    const branch = around.branches.indexOf(data);
    const to = (i) => () => actions.show(around.branches[i]);
    const branches = around.branches.length > 1 && [
      button("‹", to(branch - 1), {
        class: "quiet",
        "aria-label": "Previous branch",
        disabled: branch === 0,
      }),
      h("span", { class: "branch" }, `${branch + 1} of ${around.branches.length}`),
      button("›", to(branch + 1), {
        class: "quiet",
        "aria-label": "Next branch",
        disabled: branch === around.branches.length - 1,
      }),
    ];
    fill(
      this.foot,
      data.error && h("p", { class: "bad", role: "alert" }, data.error),
      data.role === "assistant" && this.stats(),
      h(
        "div",
        { class: "actions" },
        branches,
        data.role !== "tool" && copied,
        data.role === "user" && button("Edit", () => this.edit(), { class: "quiet" }),
        data.role === "assistant" && button("Regenerate", () => actions.again(data), { class: "quiet" }),
        button("Delete", () => actions.remove(data), {
          class: "quiet",
          "aria-label": "Delete this message and what follows",
        }),
      ),
    );
  }

  /** What the answer cost. */
  stats() {
    const { stats, finish } = this.data;
    if (!stats) return null;
    const { prompt, cached, tokens, reasoning, first, total } = stats;
    const used = (prompt + tokens) / (this.around.context ?? Infinity);
    const parts = [
      plural(tokens, "token") + (reasoning ? `, ${reasoning} of them reasoning` : ""),
      stats.rate > 0 && `${rate(stats.rate)} tokens/s`,
      `prompt ${plural(prompt, "token")}${cached ? `, ${cached} from the cache` : ""}`,
      `first after ${duration(first)}`,
      `${duration(total)} in all`,
      used > 0 && Number.isFinite(used) && `context ${percent(used)} used`,
      FINISH[finish],
    ];
    return h("p", { class: "stats" }, parts.filter(Boolean).join(" · "));
  }

  /** Shows a field in the place of the text. */
  edit() {
    const area = /** @type {HTMLTextAreaElement} */ (
      h("textarea", {
        rows: Math.min(12, this.data.content.split("\n").length + 1),
        "aria-label": "Edit the message",
      })
    );
    area.value = this.data.content;
    const leave = () => {
      this.showText();
      this.showFoot();
    };
    const send = () => area.value.trim() && this.actions.edit(this.data, area.value);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
    });
    fill(this.text, area);
    fill(
      this.foot,
      h(
        "div",
        { class: "actions" },
        button("Send as a new branch", send, { class: "primary" }),
        button("Cancel", leave),
      ),
    );
    area.focus();
  }
}
