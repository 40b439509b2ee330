// Search in vector stores, and answers with citations.

import { button, field, fill, h, notice } from "../dom.js";
import { ofKind, picker, watch } from "../served.js";
import { form, need } from "./form.js";
import { answerFrom, hitCards } from "./hits.js";
import { Stores } from "./stores.js";

export function panel() {
  const stores = new Stores(() => fill(found.result, notice("empty", "Ask for something in the files.")));
  const query = /** @type {HTMLInputElement} */ (h("input", { type: "search" }));
  const ranker = /** @type {HTMLSelectElement} */ (
    h(
      "select",
      {},
      h("option", { value: "auto" }, "words and meaning"),
      h("option", { value: "none" }, "meaning alone"),
    )
  );
  const model = picker("chat");
  const updateModel = () => (model.node.hidden = !ofKind("chat").length);
  watch(updateModel);
  updateModel();
  const found = form({
    fields: [field("Query", query), h("div", { class: "pair" }, field("Rank by", ranker), model.node)],
    submit: "Search",
    empty: "Choose a vector store and ask for something in its files.",
    run: async (send) => {
      if (!stores.id) throw new Error("Create a vector store and upload files first.");
      const text = need(query.value, "a query");
      const body = { query: text, max_num_results: 8, ranking_options: { ranker: ranker.value } };
      const { data: hits } = await send(`${stores.path}/search`, body);
      if (!hits.length)
        return notice("empty", "Nothing was found. Try other words, or wait until all files are indexed.");
      const cards = hitCards(hits, text);
      return [
        ofKind("chat").length
          ? asker(text, hits, cards, model.select)
          : h(
              "p",
              { class: "hint" },
              "With a language model (sconce serve -m minilm -m smollm) this panel also answers.",
            ),
        h("h3", {}, "Passages"),
        ...cards,
      ];
    },
  });
  const place = h("div", { class: "work columns" }, stores.node, h("div", {}, found.node, found.result));
  const root = h("div", {}, notice("busy", "Reading the vector stores…"));
  const load = async () => {
    try {
      await stores.load();
      fill(root, place);
    } catch (error) {
      fill(root, unavailable(error, load));
    }
  };
  load();
  return root;
}

/** @param {import("../api.js").ApiError} error @param {() => void} again */
function unavailable(error, again) {
  if (error.status !== 404) return notice("error", h("p", {}, error.message), button("Try again", again));
  return notice(
    "empty",
    h("p", {}, "This server keeps no files and vector stores. Start it with a folder for them:"),
    h(
      "pre",
      { tabindex: "0", role: "region", "aria-label": "command" },
      h("code", {}, "sconce serve -m minilm -m smollm --data-dir data"),
    ),
    h("p", { class: "hint" }, error.message),
    button("Try again", again),
  );
}

/**
 * A button that lets a language model answer from the passages.
 * @param {string} query
 * @param {any[]} hits
 * @param {HTMLElement[]} cards
 * @param {HTMLSelectElement} model
 */
function asker(query, hits, cards, model) {
  const place = h("div", { class: "text", "aria-live": "polite" });
  /** @type {AbortController | null} */
  let running = null;
  const label = `Answer with ${model.value}`;
  const start = async () => {
    if (running) return running.abort();
    running = new AbortController();
    ask.textContent = "Stop";
    fill(place);
    try {
      await answerFrom({ model: model.value, query, hits, cards, place, signal: running.signal });
    } catch (error) {
      if (error.name !== "AbortError") fill(place, notice("error", error.message));
    } finally {
      running = null;
      ask.textContent = label;
    }
  };
  const ask = button(label, start);
  return h("div", { class: "asker" }, h("div", { class: "actions" }, ask), place);
}
