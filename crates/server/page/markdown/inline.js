// Inline Markdown: emphasis, code, links. Linear in the length of the text, whatever it holds: a
// model writes it, so it may be anything.

/**
 * @typedef {string | {type: "code", text: string} | {type: "break"} |
 *   {type: "em" | "strong" | "del" | "link", href?: string, children: Inline[]}} Inline
 */

/** Deepest nesting of emphasis and links; deeper openers are plain text. */
const MAX_DEPTH = 48;
/** Longest address of a link. */
const MAX_URL = 2000;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const SPECIAL = /[\\`[\]!<*_~\nh]/g;
// Few blanks, which several parts match.
const DESTINATION =
  /\(\s{0,9}<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s{1,9}(?:"[^"]*"|'[^']*'))?\s{0,9}\)/y;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const BARE = /https?:\/\/[^\s<>"`]+/y;

/**
 * The address, if a person may follow it: pages and mail only, no scripts, no data, no path of this
 * server.
 * @param {string} text
 */
export function safeUrl(text) {
  if (text.length > MAX_URL) return null;
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** Where the blanks at the end of a text begin. @param {string} text */
function textEnd(text) {
  let end = text.length;
  while (text[end - 1] === " ") end--;
  return end;
}

/** Matches `pattern`, which is sticky, at `at`. @param {RegExp} pattern @param {string} text @param {number} at */
function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

/**
 * @param {string} text
 * @returns {Inline[]}
 */
export function parseInline(text) {
  return new Parser(text).parse();
}

/** An opener that may find its closer, and what follows it. */
class Frame {
  /** @param {string} mark @param {string} literal */
  constructor(mark, literal) {
    this.mark = mark;
    this.literal = literal;
    /** @type {Inline[]} */
    this.nodes = [];
  }
}

class Parser {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
    this.frames = [new Frame("", "")];
    /** Lengths of backtick runs that have no closer further on. */
    this.unclosed = new Set();
  }

  get top() {
    return this.frames[this.frames.length - 1];
  }

  /** @param {string} text */
  literal(text) {
    const nodes = this.top.nodes;
    if (text === "") return;
    if (typeof nodes[nodes.length - 1] === "string") nodes[nodes.length - 1] += text;
    else nodes.push(text);
  }

  parse() {
    const { text } = this;
    let at = 0;
    while (at < text.length) {
      SPECIAL.lastIndex = at;
      const next = SPECIAL.exec(text)?.index ?? text.length;
      this.literal(text.slice(at, next));
      at = next < text.length ? this.special(next) : next;
    }
    this.collapse(1);
    return this.frames[0].nodes;
  }

  /** Reads what begins at a special character, and returns where it ends. @param {number} at */
  special(at) {
    const { text } = this;
    const c = text[at];
    if (c === "\\" && PUNCTUATION.test(text[at + 1] ?? "")) return this.take(text[at + 1], at + 2);
    if (c === "`") return this.code(at);
    if (c === "\n" || (c === "\\" && text[at + 1] === "\n")) return this.lineEnd(at);
    if (c === "!" && text[at + 1] === "[") return this.open("![", at);
    if (c === "[") return this.open("[", at);
    if (c === "]") return this.closeLink(at);
    if (c === "<") return this.address(match(ANGLE, text, at), at);
    if (c === "h") return this.bareAddress(at);
    if (c === "*" || c === "_" || c === "~") return this.emphasis(at);
    return this.take(c, at + 1);
  }

  /** @param {string} literal @param {number} end */
  take(literal, end) {
    this.literal(literal);
    return end;
  }

  /** @param {number} at */
  code(at) {
    const { text } = this;
    let end = at;
    while (text[end] === "`") end++;
    const run = text.slice(at, end);
    if (this.unclosed.has(run.length)) return this.take(run, end);
    let close = text.indexOf(run, end);
    while (close >= 0 && (text[close + run.length] === "`" || text[close - 1] === "`")) {
      // A longer run; go on behind it.
      while (text[close] === "`") close++;
      close = text.indexOf(run, close);
    }
    if (close < 0) {
      this.unclosed.add(run.length);
      return this.take(run, end);
    }
    const inner = text.slice(end, close).replace(/\n/g, " ");
    const trimmed = /^ .* $/.test(inner) && inner.trim() ? inner.slice(1, -1) : inner;
    this.top.nodes.push({ type: "code", text: trimmed });
    return close + run.length;
  }

  /** Two spaces or a backslash before the end of a line break it. @param {number} at */
  lineEnd(at) {
    const nodes = this.top.nodes;
    const last = nodes[nodes.length - 1];
    const isHard = this.text[at] === "\\" || (typeof last === "string" && last.endsWith("  "));
    if (typeof last === "string" && last.endsWith(" ")) nodes[nodes.length - 1] = last.slice(0, textEnd(last));
    if (isHard) nodes.push({ type: "break" });
    else this.literal("\n");
    return at + (this.text[at] === "\\" ? 2 : 1);
  }

  /** @param {string} mark @param {number} at */
  open(mark, at) {
    if (this.frames.length > MAX_DEPTH) return this.take(mark, at + mark.length);
    this.frames.push(new Frame(mark, mark));
    return at + mark.length;
  }

  /** @param {number} at */
  closeLink(at) {
    const opener = this.frames.findLastIndex((frame) => frame.mark.endsWith("["));
    if (opener < 0) return this.take("]", at + 1);
    this.collapse(opener + 1);
    const frame = this.frames.pop();
    const target = match(DESTINATION, this.text, at + 1);
    const href = target && safeUrl(target[1]);
    if (!href) {
      // Not a link that can be followed: what was written is shown.
      this.literal(frame.literal);
      this.top.nodes.push(...frame.nodes);
      return this.take("]", at + 1);
    }
    // An image is a link to it: the page loads nothing from elsewhere.
    const children = frame.nodes.length ? frame.nodes : [frame.mark === "![" ? "image" : href];
    this.top.nodes.push({ type: "link", href, children });
    return at + 1 + target[0].length;
  }

  /** @param {RegExpExecArray | null} found @param {number} at */
  address(found, at) {
    const href = found && safeUrl(found[1]);
    if (!href) return this.take(this.text[at], at + 1);
    this.top.nodes.push({ type: "link", href, children: [found[1]] });
    return at + found[0].length;
  }

  /** @param {number} at */
  bareAddress(at) {
    const isInside =
      /\w/.test(this.text[at - 1] ?? "") || this.frames.some((frame) => frame.mark.endsWith("["));
    const found = isInside ? null : match(BARE, this.text, at);
    if (!found) return this.take("h", at + 1);
    // Punctuation behind an address belongs to the sentence, and so does emphasis around it.
    const shown = found[0].slice(0, MAX_URL).replace(/[.,;:!?'*_~)\]]+$/, "");
    return this.address(/** @type {any} */ ([shown, shown]), at);
  }

  /** @param {number} at */
  emphasis(at) {
    const { text } = this;
    const c = text[at];
    let end = at;
    while (text[end] === c) end++;
    const [before, after] = [text[at - 1] ?? " ", text[end] ?? " "];
    const isWord = (x) => !/\s/.test(x) && !PUNCTUATION.test(x);
    let canOpen = !/\s/.test(after) && (isWord(after) || !isWord(before));
    let canClose = !/\s/.test(before) && (isWord(before) || !isWord(after));
    if (c === "_") [canOpen, canClose] = [canOpen && !isWord(before), canClose && !isWord(after)];
    let left = end - at;
    if (c === "~" && left !== 2) return this.take(text.slice(at, end), end);
    while (canClose && left > 0) {
      const opener = this.frames.findLastIndex((frame) => frame.mark[0] === c && frame.mark.length <= left);
      // Emphasis does not reach out of a link's text.
      const link = this.frames.findLastIndex((frame) => frame.mark.endsWith("["));
      if (opener < 0 || opener < link) break;
      this.collapse(opener + 1);
      const frame = this.frames.pop();
      const type = c === "~" ? "del" : frame.mark.length === 2 ? "strong" : "em";
      this.top.nodes.push({ type, children: frame.nodes });
      left -= frame.mark.length;
    }
    while (canOpen && left > 0 && this.frames.length <= MAX_DEPTH) {
      const mark = c.repeat(left >= 2 ? 2 : 1);
      this.frames.push(new Frame(mark, mark));
      left -= mark.length;
    }
    return this.take(c.repeat(left), end);
  }

  /** Frames from `first` on have no closer: they become plain text. @param {number} first */
  collapse(first) {
    const open = this.frames.splice(first);
    for (const frame of open) {
      this.literal(frame.literal);
      for (const node of frame.nodes) {
        if (typeof node === "string") this.literal(node);
        else this.top.nodes.push(node);
      }
    }
  }
}
