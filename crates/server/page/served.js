// The models that the server has, shared by all panels.

import { json } from "./api.js";
import { button, freshId, h, notice } from "./dom.js";

/**
 * @typedef {object} Model As GET /v1/status describes it.
 * @property {string} id
 * @property {"loading" | "ready" | "failed" | "resting"} state
 * @property {string | null} task
 * @property {string | null} error
 * @property {{stage: string, percent: number | null} | null} progress
 * @property {string | null} device
 * @property {string | null} dtype
 * @property {number | null} max_tokens
 * @property {Record<string, any>} [rest]
 */

/** What a panel needs, in the words of `sconce serve`. */
export const KINDS = {
  chat: {
    tasks: ["generate", "seq2seq"],
    what: "a language model",
    command: "sconce serve -m smollm",
  },
  embed: { tasks: ["embed", "m3", "clip"], what: "an embedding model", command: "sconce serve -m minilm" },
  rerank: {
    tasks: ["rerank"],
    what: "a reranker",
    command: "sconce serve -m cross-encoder/ms-marco-MiniLM-L6-v2",
  },
  classify: {
    tasks: ["classify"],
    what: "a classifier",
    command: "sconce serve -m distilbert/distilbert-base-uncased-finetuned-sst-2-english",
  },
  tag: {
    tasks: ["tag", "gliner"],
    what: "a token classifier",
    command: "sconce serve -m dslim/bert-base-NER",
  },
  clip: {
    tasks: ["clip"],
    what: "an image–text model",
    command: "sconce serve -m openai/clip-vit-base-patch32",
  },
};

/** @typedef {keyof typeof KINDS} Kind */

/** The last status; null before the first. @type {any} */
let status = null;
/** Why the last request for it failed. @type {Error | null} */
let failure = null;
/** @type {Set<() => void>} */
const watchers = new Set();

/** The last answer of GET /v1/status. */
export const lastStatus = () => status;
/** @returns {Model[]} */
export const models = () => status?.models ?? [];

/**
 * Reads the status again, and tells the panels if the models changed.
 * @param {{quiet?: boolean}} [options]
 */
export async function refresh(options = {}) {
  const before = summary();
  failure = null;
  try {
    status = await json("/v1/status", options);
  } catch (error) {
    failure = error;
    throw error;
  } finally {
    if (summary() !== before) for (const watcher of watchers) watcher();
  }
  return status;
}

/** What the panels depend on. */
function summary() {
  const each = models().map(({ id, state, task, error, max_tokens }) => [id, state, task, error, max_tokens]);
  return JSON.stringify([status !== null, failure?.message, each]);
}

/** Calls `watcher` whenever the models change. @param {() => void} watcher */
export function watch(watcher) {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

/**
 * The models of a kind that accept requests.
 * @param {Kind} kind
 */
export const ofKind = (kind) =>
  models().filter((model) => model.state === "ready" && KINDS[kind].tasks.includes(model.task));

/**
 * A labelled choice among the models of a kind. The choice is kept while the list changes.
 * @param {Kind} kind
 */
export function picker(kind) {
  const id = freshId("model");
  const select = /** @type {HTMLSelectElement} */ (h("select", { id, name: "model" }));
  const update = () => {
    const chosen = select.value;
    const ids = ofKind(kind).map((model) => model.id);
    select.replaceChildren(
      ...ids.map((name) => h("option", { value: name, selected: name === chosen }, name)),
    );
  };
  update();
  watch(update);
  return { select, node: h("div", { class: "field picker" }, h("label", { for: id }, "Model"), select) };
}

/**
 * Shows `panel` when the server has a model of the kind; otherwise what is missing and what to do.
 * @param {Kind} kind
 * @param {HTMLElement} panel
 */
export function needs(kind, panel) {
  const place = h("div", { class: "needs" });
  const update = () => place.replaceChildren(ofKind(kind).length ? panel : missing(kind));
  update();
  watch(update);
  return place;
}

/** @param {Kind} kind */
function missing(kind) {
  const { tasks, what, command } = KINDS[kind];
  const loading = models().filter((m) => m.state === "loading");
  if (!status && failure) {
    const again = () => refresh().catch(() => {});
    return notice("error", h("p", {}, failure.message), button("Try again", again));
  }
  if (!status) return notice("busy", "Asking the server for its models…");
  if (loading.length) {
    const each = loading.map(
      ({ id, progress }) =>
        `${id}: ${progress?.stage ?? "starting"}${progress?.percent ? ` (${Math.round(progress.percent)} %)` : ""}`,
    );
    return notice("busy", h("p", {}, "A model is loading."), h("p", {}, each.join("; ")));
  }
  const failed = models().filter((m) => m.state === "failed");
  const resting = models().filter((m) => m.state === "resting" && (!m.task || tasks.includes(m.task)));
  return notice(
    "empty",
    h("p", {}, `This server has no ${what.replace(/^an? /, "")} in memory. Start it with one:`),
    h("pre", { tabindex: "0", role: "region", "aria-label": "command" }, h("code", {}, command)),
    h(
      "p",
      {},
      "Any model of this kind will do, from the Hugging Face hub or a folder. Or load one in ",
      h("a", { href: "#/models" }, "Models"),
      ".",
    ),
    resting.map(({ id }) => h("p", {}, `${id} is unloaded; its next request loads it.`)),
    failed.map(({ id, error }) =>
      h("p", { class: "bad" }, `${id} could not be loaded: ${error ?? "the server's log says why"}`),
    ),
  );
}
