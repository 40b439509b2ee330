// Conversations, kept in this browser's IndexedDB and nowhere else. Where the browser has none (some
// private windows), they last as long as the tab.

/** @typedef {import("./tree.js").Conversation} Conversation */

const NAME = "sconce";
const STORE = "conversations";

/** @type {Promise<IDBDatabase | null> | null} */
let opened = null;
/** @type {Map<string, Conversation>} */
const memory = new Map();

/** @returns {Promise<IDBDatabase | null>} */
function database() {
  opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
      request.onblocked = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened;
}

/**
 * @template T
 * @param {IDBTransactionMode} mode
 * @param {(store: IDBObjectStore) => IDBRequest<T>} work
 * @returns {Promise<T | undefined>}
 */
async function transaction(mode, work) {
  const db = await database();
  return new Promise((resolve, reject) => {
    const request = work(db.transaction(STORE, mode).objectStore(STORE));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Whether conversations outlast the tab. */
export const isPersistent = async () => (await database()) !== null;

/** All conversations, newest first. @returns {Promise<Conversation[]>} */
export async function all() {
  const found = (await database())
    ? await transaction("readonly", (store) => store.getAll())
    : [...memory.values()];
  return found.sort((a, b) => b.updated - a.updated);
}

/** @param {Conversation} conversation */
export async function save(conversation) {
  if (await database()) await transaction("readwrite", (store) => store.put(conversation));
  else memory.set(conversation.id, conversation);
}

/** @param {string} id */
export async function remove(id) {
  if (await database()) await transaction("readwrite", (store) => store.delete(id));
  memory.delete(id);
}

export async function clear() {
  if (await database()) await transaction("readwrite", (store) => store.clear());
  memory.clear();
}
