// Markdown blocks: the part of CommonMark and GitHub's tables that language models write. Raw HTML
// is text.

/**
 * @typedef {object} Block
 * @property {"paragraph" | "heading" | "code" | "quote" | "list" | "table" | "rule"} type
 * @property {string} raw The source, by which an unchanged block is recognized.
 * @property {number} end The line behind the block, within the lines that were parsed.
 * @property {string} [text]
 * @property {number} [level] Of a heading.
 * @property {string} [language] Of code.
 * @property {boolean} [ordered] Of a list.
 * @property {number} [start] Of an ordered list.
 * @property {Item[]} [items] Of a list.
 * @property {Block[]} [children] Of a quote.
 * @property {string[][]} [rows] Of a table; the first is its head.
 * @property {("left" | "center" | "right" | null)[]} [align] Of a table's columns.
 *
 * @typedef {{raw: string, checked: boolean | null, children: Block[]}} Item
 */

/** Deepest nesting of lists and quotes; what is deeper is a paragraph. */
const MAX_DEPTH = 12;
// No two parts of a pattern that may be next to each other match the same character: a line of a
// model with thousands of blanks would hold up the page.
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(\s[^]*)?$/;
/** The marks that may close a heading. */
const CLOSING = /(?:^|\s)#+$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const TASK = /^\[([ xX])\] +/;
const DELIMITER = /^ {0,3}\|?\s*:?-+:?(?:\s*\|\s*:?-+:?)*\s*(?:\|\s*)?$/;

/** @param {string} line */
const isBlank = (line) => line.trim() === "";

/**
 * The blocks of lines.
 * @param {string[]} lines
 * @param {number} [depth]
 * @returns {Block[]}
 */
export function parseBlocks(lines, depth = 0) {
  /** @type {Block[]} */
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at++;
      continue;
    }
    const block = parseBlock(lines, at, depth);
    block.raw = lines.slice(at, block.end).join("\n");
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {any}
 */
function parseBlock(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return parseCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const text = (heading[2] ?? "").trim().replace(CLOSING, "").trimEnd();
    return { type: "heading", level: heading[1].length, text, end: at + 1 };
  }
  if (RULE.test(line)) return { type: "rule", end: at + 1 };
  if (depth < MAX_DEPTH) {
    if (QUOTE.test(line)) return parseQuote(lines, at, depth);
    if (ITEM.test(line)) return parseList(lines, at, depth);
  }
  if (line.includes("|") && DELIMITER.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) {
    const table = parseTable(lines, at);
    if (table) return table;
  }
  return parseParagraph(lines, at, depth);
}

/**
 * Code goes on to the closing fence, or to the end while it is still being written.
 * @param {string[]} lines
 * @param {number} at
 * @param {RegExpExecArray} fence
 */
function parseCode(lines, at, [opening, mark, info]) {
  const indent = opening.length - opening.trimStart().length;
  let end = at + 1;
  const isClose = (line) => {
    const trimmed = line.trim();
    return trimmed.length >= mark.length && trimmed === mark[0].repeat(trimmed.length);
  };
  while (end < lines.length && !isClose(lines[end])) end++;
  const code = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, line.search(/\S|$/))));
  return {
    type: "code",
    language: info.trim().split(/\s+/)[0] ?? "",
    text: code.join("\n"),
    end: Math.min(end + 1, lines.length),
  };
}

/** @param {string[]} lines @param {number} at @param {number} depth */
function parseQuote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return { type: "quote", children: parseBlocks(inner, depth + 1), end };
}

/** @param {string[]} lines @param {number} at @param {number} depth */
function parseList(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  /** @type {Item[]} */
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = RULE.test(lines[end]) ? null : ITEM.exec(lines[end]);
    if (!item || /\d/.test(item[2]) !== ordered) break;
    const from = end;
    // Text stands under the first character behind the marker; models often indent less.
    const indent = item[1].length + item[2].length + Math.min(Math.max(item[3].length, 1), 4);
    const inner = [item[4]];
    end++;
    for (; end < lines.length; end++) {
      const line = lines[end];
      const shift = line.search(/\S|$/);
      if (isBlank(line)) {
        // A blank line belongs to the item only if the item goes on behind it.
        const next = lines.slice(end + 1, end + 3).find((l) => !isBlank(l));
        if (next === undefined || next.search(/\S/) < Math.min(indent, 2)) break;
        inner.push("");
      } else if (shift >= Math.min(indent, 2)) {
        inner.push(line.slice(Math.min(shift, indent)));
      } else if (ITEM.test(line) || startsBlock(line) || isBlank(lines[end - 1])) {
        break;
      } else {
        inner.push(line);
      }
    }
    const task = TASK.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(task[0].length);
    items.push({
      raw: lines.slice(from, end).join("\n"),
      checked: task ? task[1] !== " " : null,
      children: parseBlocks(inner, depth + 1),
    });
    // The list goes on behind blank lines if the next line is an item.
    let next = end;
    while (next < lines.length && isBlank(lines[next])) next++;
    if (next > end && next < lines.length && ITEM.test(lines[next])) end = next;
  }
  return { type: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items, end };
}

/** @param {string} line */
const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);

/** @param {string} line */
function cells(line) {
  const inner = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** @param {string[]} lines @param {number} at */
function parseTable(lines, at) {
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((mark) => {
    if (mark.startsWith(":")) return mark.endsWith(":") ? "center" : "left";
    return mark.endsWith(":") ? "right" : null;
  });
  if (head.length !== align.length) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && !isBlank(lines[end])) end++;
  const rows = [head, ...lines.slice(at + 2, end).map((line) => cells(line).slice(0, head.length))];
  return { type: "table", align, rows, end };
}

/** @param {string[]} lines @param {number} at @param {number} depth */
function parseParagraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !startsBlock(lines[end])) {
    // A number may stand at the beginning of a line of text; 1 begins a list.
    const item = depth < MAX_DEPTH && ITEM.exec(lines[end]);
    if (item && item[4] && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1)) break;
    if (lines[end].includes("|") && DELIMITER.test(lines[end + 1] ?? "")) break;
    end++;
  }
  return {
    type: "paragraph",
    text: lines
      .slice(at, end)
      .map((line) => line.trimStart())
      .join("\n"),
    end,
  };
}
