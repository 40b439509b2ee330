// Shows Markdown. A streamed text is parsed again from its last finished block on, and only the
// nodes whose source changed are replaced, so that a long answer costs no more per token than a
// short one.

import { button, copy, fill, h } from "../dom.js";
import { parseBlocks } from "./blocks.js";
import { parseInline } from "./inline.js";

/** @typedef {import("./blocks.js").Block} Block */

/** A text that is shown as Markdown and may grow. */
export class MarkdownView {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.clear();
  }

  clear() {
    this.root.replaceChildren();
    /** The text of blocks that can still change. */
    this.tail = "";
    /** What those blocks show. @type {Shown[]} */
    this.shown = [];
  }

  /** Shows a whole text. @param {string} text */
  set(text) {
    this.clear();
    this.append(text);
  }

  /** Shows more text. @param {string} text */
  append(text) {
    this.tail += text;
    const lines = this.tail.split("\n");
    const blocks = parseBlocks(lines);
    this.shown = patch(this.root, this.shown, blocks);
    // The last line may be incomplete and look like a block of its own, so the last two blocks can
    // still change. All before them are finished.
    const finished = blocks.length - 2;
    if (finished > 0) {
      this.tail = lines.slice(blocks[finished - 1].end).join("\n");
      this.shown = this.shown.slice(finished);
    }
  }
}

/** @typedef {{block: Block, node: HTMLElement, inner?: unknown}} Shown */

/**
 * Makes `root` show `blocks`, where its last nodes show `shown`.
 * @param {HTMLElement} root
 * @param {Shown[]} shown
 * @param {Block[]} blocks
 * @returns {Shown[]}
 */
function patch(root, shown, blocks) {
  let same = 0;
  while (same < shown.length && same < blocks.length && shown[same].block.raw === blocks[same].raw) same++;
  const result = shown.slice(0, same);
  let next = same;
  if (next < shown.length && next < blocks.length && grow(shown[next], blocks[next]))
    result.push(shown[next++]);
  for (const { node } of shown.slice(next)) node.remove();
  for (const block of blocks.slice(next)) {
    const made = make(block);
    root.append(made.node);
    result.push(made);
  }
  return result;
}

/**
 * Changes a node instead of replacing it, where that is cheaper: code and lists grow to any length.
 * @param {Shown} shown
 * @param {Block} block
 */
function grow(shown, block) {
  const before = shown.block;
  if (before.type !== block.type) return false;
  if (block.type === "code" && before.language === block.language && block.text.startsWith(before.text)) {
    /** @type {Text} */ (shown.inner).appendData(block.text.slice(before.text.length));
  } else if (block.type === "paragraph") {
    fill(shown.node, inlineNodes(parseInline(block.text)));
  } else if (block.type === "list" && before.ordered === block.ordered) {
    growList(shown, block);
  } else if (block.type === "quote") {
    shown.inner = patch(shown.node, /** @type {Shown[]} */ (shown.inner), block.children);
  } else {
    return false;
  }
  shown.block = block;
  return true;
}

/** @param {Shown} shown @param {Block} block */
function growList(shown, block) {
  const made = /** @type {{node: HTMLElement, body: HTMLElement, shown: Shown[]}[]} */ (shown.inner);
  const before = shown.block.items;
  block.items.forEach((item, i) => {
    if (i >= made.length) {
      made.push(makeItem(item));
      shown.node.append(made[i].node);
    } else if (before[i].raw !== item.raw) {
      if (before[i].checked === item.checked) {
        made[i].shown = patch(made[i].body, made[i].shown, item.children);
      } else {
        const fresh = makeItem(item);
        made[i].node.replaceWith(fresh.node);
        made[i] = fresh;
      }
    }
  });
  for (const { node } of made.splice(block.items.length)) node.remove();
}

/** @param {Block} block @returns {Shown} */
function make(block) {
  switch (block.type) {
    case "heading":
      // The page itself has the first two levels.
      return { block, node: h(`h${Math.min(block.level + 2, 6)}`, {}, inlineNodes(parseInline(block.text))) };
    case "rule":
      return { block, node: h("hr") };
    case "code":
      return makeCode(block);
    case "quote": {
      const node = h("blockquote");
      return { block, node, inner: patch(node, [], block.children) };
    }
    case "list": {
      const items = block.items.map(makeItem);
      const node = h(
        block.ordered ? "ol" : "ul",
        { start: block.start > 1 && block.start },
        items.map((item) => item.node),
      );
      return { block, node, inner: items };
    }
    case "table":
      return { block, node: makeTable(block) };
    default:
      return { block, node: h("p", {}, inlineNodes(parseInline(block.text))) };
  }
}

/** @param {import("./blocks.js").Item} item */
function makeItem(item) {
  const body = item.checked === null ? h("li") : h("div");
  const shown = patch(body, [], item.children);
  if (item.checked === null) return { node: body, body, shown };
  const box = h("input", {
    type: "checkbox",
    disabled: true,
    checked: item.checked,
    "aria-label": item.checked ? "done" : "to do",
  });
  return { node: h("li", { class: "task" }, box, body), body, shown };
}

/** @param {Block} block @returns {Shown} */
function makeCode(block) {
  const inner = document.createTextNode(block.text);
  const code = h("code", {}, inner);
  const copied = button("Copy", () => copy(copied, code), { class: "quiet" });
  const head = h("div", { class: "code-head" }, h("span", {}, block.language || "text"), copied);
  const body = h(
    "pre",
    { tabindex: "0", "aria-label": `code, ${block.language || "text"}`, role: "region" },
    code,
  );
  return { block, node: h("div", { class: "code" }, head, body), inner };
}

/** @param {Block} block */
function makeTable({ rows, align }) {
  const row = (tag) => (cells) =>
    h(
      "tr",
      {},
      cells.map((cell, i) =>
        h(tag, { class: align[i] && `align-${align[i]}` }, inlineNodes(parseInline(cell))),
      ),
    );
  const table = h(
    "table",
    {},
    h("thead", {}, row("th")(rows[0])),
    h("tbody", {}, rows.slice(1).map(row("td"))),
  );
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "table" }, table);
}

const TAGS = { em: "em", strong: "strong", del: "del" };

/** @param {import("./inline.js").Inline[]} nodes @returns {Node[]} */
export function inlineNodes(nodes) {
  return nodes.map((node) => {
    if (typeof node === "string") return document.createTextNode(node);
    if (node.type === "break") return h("br");
    if (node.type === "code") return h("code", {}, node.text);
    if (node.type !== "link") return h(TAGS[node.type], {}, inlineNodes(node.children));
    const safe = { href: node.href, target: "_blank", rel: "noopener noreferrer nofollow", title: node.href };
    return h("a", safe, inlineNodes(node.children));
  });
}
