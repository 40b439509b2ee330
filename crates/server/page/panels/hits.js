// Passages that were found, with the words of the query highlighted, and an answer that cites them.

import { button, h } from "../dom.js";
import { MarkdownStream } from "../markdown/stream.js";
import { stream } from "../sse.js";

/** Characters of each passage that a model reads. */
const MAX_PASSAGE = 2000;
const RULES =
  "Answer the question from the numbered passages alone. After each statement name its passage, like [1]. If the passages do not have the answer, say so.";

/** @typedef {{filename: string, score: number, content: {text: string}[]}} Hit */

/** @param {Hit} hit */
const textOf = (hit) => hit.content.map(({ text }) => text).join("\n");

/** Whether a word says something: short ones of European languages rarely do. @param {string} word */
const isTelling = (word) => word.length > 3 || !/^[a-z]*$/.test(word);

/**
 * The text, with the words of the query marked.
 * @param {string} text
 * @param {string} query
 */
function highlighted(text, query) {
  const words = [...new Set(query.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [])].filter(isTelling);
  if (!words.length) return [text];
  // Words have letters and digits alone, so nothing of the query is read as a pattern.
  const pattern = new RegExp(
    `(?<![\\p{L}\\p{N}])((?:${words.join("|")})[\\p{L}\\p{N}]{0,3})(?![\\p{L}\\p{N}])`,
    "giu",
  );
  return text.split(pattern).map((part, i) => (i % 2 ? h("mark", {}, part) : part));
}

/**
 * The hits as a list of cards.
 * @param {Hit[]} hits
 * @param {string} query
 */
export function hitCards(hits, query) {
  return hits.map((hit, i) =>
    h(
      "article",
      { class: "hit", tabindex: "-1", "aria-label": `Passage ${i + 1}` },
      h(
        "header",
        {},
        h("span", {}, `[${i + 1}]`),
        h("b", {}, hit.filename),
        h("span", {}, `score ${hit.score.toFixed(3)}`),
      ),
      h("p", { class: "passage", tabindex: "0" }, highlighted(textOf(hit), query)),
    ),
  );
}

/**
 * Lets a model answer the query from the hits, into `place`.
 * @param {object} parts
 * @param {string} parts.model
 * @param {string} parts.query
 * @param {Hit[]} parts.hits
 * @param {HTMLElement[]} parts.cards What the citations lead to.
 * @param {HTMLElement} parts.place
 * @param {AbortSignal} parts.signal
 */
export async function answerFrom({ model, query, hits, cards, place, signal }) {
  const passages = hits.map((hit, i) => `[${i + 1}] ${hit.filename}\n${textOf(hit).slice(0, MAX_PASSAGE)}`);
  const messages = [
    { role: "system", content: RULES },
    { role: "user", content: `${passages.join("\n\n")}\n\nQuestion: ${query}` },
  ];
  const view = new MarkdownStream(place);
  const request = { model, messages, temperature: 0, max_tokens: 400, stream: true };
  for await (const chunk of stream("/v1/chat/completions", { json: request, signal })) {
    view.append(chunk.choices?.[0]?.delta?.content ?? "");
  }
  view.flush();
  linkCitations(place, cards);
}

/** Makes each [1] in the answer lead to its passage. @param {HTMLElement} place @param {HTMLElement[]} cards */
function linkCitations(place, cards) {
  const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
  /** @type {Text[]} */
  const texts = [];
  while (walker.nextNode())
    if (!walker.currentNode.parentElement.closest("pre, button"))
      texts.push(/** @type {Text} */ (walker.currentNode));
  for (const text of texts) {
    const parts = text.data.split(/\[(\d{1,3})\]/);
    if (parts.length === 1) continue;
    text.replaceWith(
      ...parts.map((part, i) => {
        const card = i % 2 ? cards[Number(part) - 1] : null;
        if (!card) return i % 2 ? `[${part}]` : part;
        const go = () => {
          card.scrollIntoView({ block: "center" });
          card.focus();
        };
        return button(`[${part}]`, go, { class: "quiet cite", "aria-label": `Go to passage ${part}` });
      }),
    );
  }
}
