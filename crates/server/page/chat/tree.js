// A conversation is a tree: editing a message or asking again adds a branch, nothing is overwritten.

/**
 * @typedef {object} Node
 * @property {string} id
 * @property {string | null} parent
 * @property {"user" | "assistant" | "tool"} role
 * @property {string} content
 * @property {string} [reasoning]
 * @property {{id: string, name: string, arguments: string}[]} [calls]
 * @property {string} [callId] Of a tool's result.
 * @property {string} [model]
 * @property {string} [finish] Why the answer ended.
 * @property {string} [error]
 * @property {Record<string, number>} [stats] What the answer cost.
 * @property {number} created
 *
 * @typedef {object} Conversation
 * @property {string} id
 * @property {string} title
 * @property {number} created
 * @property {number} updated
 * @property {Record<string, unknown>} settings
 * @property {Node[]} nodes
 * @property {string | null} leaf The last message of the branch that is shown.
 */

/** @returns {Conversation} */
export function newConversation(settings = {}) {
  const now = Date.now();
  return { id: newId(), title: "New chat", created: now, updated: now, settings, nodes: [], leaf: null };
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}

/**
 * Adds a message behind `parent`, and shows its branch.
 * @param {Conversation} conversation
 * @param {Partial<Node>} node
 * @returns {Node}
 */
export function add(conversation, node) {
  const made = /** @type {Node} */ ({
    id: newId(),
    parent: conversation.leaf,
    content: "",
    created: Date.now(),
    ...node,
  });
  conversation.nodes.push(made);
  conversation.leaf = made.id;
  conversation.updated = Date.now();
  if (made.role === "user" && made.parent === null) conversation.title = titleOf(made.content);
  return made;
}

/** The first line of a message, short. @param {string} text */
function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return (line.length > 60 ? `${line.slice(0, 57)}…` : line) || "New chat";
}

/**
 * The messages that are shown, in order.
 * @param {Conversation} conversation
 * @returns {Node[]}
 */
export function path(conversation) {
  const byId = new Map(conversation.nodes.map((node) => [node.id, node]));
  const nodes = [];
  // No longer than the list: an imported file may have a circle.
  for (let node = byId.get(conversation.leaf); node && nodes.length < byId.size; node = byId.get(node.parent))
    nodes.push(node);
  return nodes.reverse();
}

/**
 * The branches at a message: itself and the others with its parent and of its role.
 * @param {Conversation} conversation
 * @param {Node} node
 */
export const siblings = (conversation, node) =>
  conversation.nodes.filter(
    (other) => other.parent === node.parent && (other.role === "user") === (node.role === "user"),
  );

/**
 * Shows the branch of a message, to its newest end.
 * @param {Conversation} conversation
 * @param {Node} node
 */
export function show(conversation, node) {
  const newest = new Map();
  for (const other of conversation.nodes) newest.set(other.parent, other);
  let leaf = node;
  for (let i = 0; i < conversation.nodes.length && newest.has(leaf.id); i++) leaf = newest.get(leaf.id);
  conversation.leaf = leaf.id;
}

/**
 * Removes a message and what follows it.
 * @param {Conversation} conversation
 * @param {Node} node
 */
export function remove(conversation, node) {
  const gone = new Set([node.id]);
  // A child always stands behind its parent.
  for (const other of conversation.nodes) if (gone.has(other.parent)) gone.add(other.id);
  conversation.nodes = conversation.nodes.filter((other) => !gone.has(other.id));
  const left = siblings(conversation, node);
  if (left.length) show(conversation, left[left.length - 1]);
  else conversation.leaf = node.parent;
}

/**
 * The messages for the server.
 * @param {Conversation} conversation
 * @param {string} system
 */
export function messages(conversation, system) {
  const all = path(conversation)
    .filter((node) => !node.error || node.content)
    .map(message);
  return system.trim() ? [{ role: "system", content: system }, ...all] : all;
}

/** @param {Node} node */
function message(node) {
  if (node.role === "tool") return { role: "tool", content: node.content, tool_call_id: node.callId };
  if (!node.calls?.length) return { role: node.role, content: node.content };
  // Models that reason before they call a tool go on from their reasoning when its result comes.
  const thought = node.reasoning ? { reasoning_content: node.reasoning } : {};
  const tool_calls = node.calls.map(({ id, name, arguments: text }) => ({
    id,
    type: "function",
    function: { name, arguments: text },
  }));
  return { role: node.role, content: node.content || null, tool_calls, ...thought };
}
