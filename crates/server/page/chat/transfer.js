// Conversations as a file: export, and import of a file that may come from anywhere.

import { h } from "../dom.js";
import { newId } from "./tree.js";

/** @typedef {import("./tree.js").Conversation} Conversation */

const FORMAT = "sconce-chats";
const MAX_BYTES = 64 << 20;
const MAX_NODES = 20_000;
const ROLES = ["user", "assistant", "tool"];

/** Saves conversations as a JSON file. @param {Conversation[]} conversations */
export function download(conversations) {
  const text = JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href: url, download: "sconce-chats.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * The conversations of a file. They get new ids, so that none of this browser's is overwritten.
 * @param {File} file
 * @returns {Promise<Conversation[]>}
 */
export async function read(file) {
  if (file.size > MAX_BYTES) throw new Error("The file is larger than 64 MiB.");
  let data;
  try {
    data = JSON.parse(await file.text());
  } catch {
    throw new Error("The file is not JSON. Choose one that “Export” saved.");
  }
  if (data?.format !== FORMAT || !Array.isArray(data.conversations)) {
    throw new Error("The file has no conversations of this page. Choose one that “Export” saved.");
  }
  return data.conversations.map(conversation);
}

const text = (value) => (typeof value === "string" ? value : "");
const number = (value) => (Number.isFinite(value) ? value : Date.now());
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Takes the fields that the page knows, each of its type. @returns {Conversation} */
function conversation(given) {
  if (!isObject(given) || !Array.isArray(given.nodes) || given.nodes.length > MAX_NODES) {
    throw new Error("A conversation in the file has no messages, or too many.");
  }
  const known = new Set();
  const nodes = [];
  for (const one of given.nodes) {
    const made = isObject(one) && typeof one.id === "string" && ROLES.includes(one.role) ? node(one) : null;
    // A message stands behind its parent; so there are no circles.
    if (!made || known.has(made.id) || (made.parent !== null && !known.has(made.parent))) {
      throw new Error("A conversation in the file has a message without its context.");
    }
    known.add(made.id);
    nodes.push(made);
  }
  const leaf = known.has(given.leaf) ? given.leaf : (nodes.at(-1)?.id ?? null);
  const settings = isObject(given.settings) ? given.settings : {};
  return {
    id: newId(),
    title: text(given.title).slice(0, 200) || "Imported",
    created: number(given.created),
    updated: number(given.updated),
    settings,
    nodes,
    leaf,
  };
}

function node(given) {
  const calls = Array.isArray(given.calls) ? given.calls.filter(isObject) : [];
  const stats = isObject(given.stats)
    ? Object.entries(given.stats).filter(([, value]) => Number.isFinite(value))
    : [];
  return {
    id: given.id,
    parent: typeof given.parent === "string" ? given.parent : null,
    role: given.role,
    content: text(given.content),
    reasoning: text(given.reasoning),
    calls: calls.map((call) => ({
      id: text(call.id),
      name: text(call.name),
      arguments: text(call.arguments),
    })),
    callId: text(given.callId),
    model: text(given.model),
    finish: text(given.finish),
    error: text(given.error),
    stats: Object.fromEntries(stats),
    created: number(given.created),
  };
}
