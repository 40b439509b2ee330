// Requests to the server that sent this page. The API key, if the server wants one, is kept in
// sessionStorage: it ends with the tab.

const KEY = "sconce-key";

/** A request that failed, with a sentence for people. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status 0 if there was no answer.
   */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** @type {() => Promise<boolean>} Asks for a key; resolves to whether there is a new one. */
let askForKey = async () => false;
/** @param {() => Promise<boolean>} ask */
export const onMissingKey = (ask) => (askForKey = ask);
export const hasKey = () => sessionStorage.getItem(KEY) !== null;
/** @param {string} key An empty one is forgotten. */
export const setKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

/**
 * @typedef {object} Options
 * @property {string} [method]
 * @property {unknown} [json] A body to send as JSON.
 * @property {FormData} [form] A form to send.
 * @property {AbortSignal} [signal]
 * @property {boolean} [quiet] Do not ask for a key; for requests that nobody asked for.
 */

/**
 * Sends a request, and asks once for a key if the server wants one.
 * @param {string} path
 * @param {Options} [options]
 * @returns {Promise<Response>}
 */
export async function request(path, options = {}) {
  const response = await send(path, options);
  if (response.status === 401 && !options.quiet && (await askForKey()))
    return check(await send(path, options));
  return check(response);
}

/**
 * @param {string} path
 * @param {Options} options
 */
async function send(path, { method, json, form, signal }) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  if (json !== undefined) headers["content-type"] = "application/json";
  const body = json === undefined ? form : JSON.stringify(json);
  try {
    return await fetch(path, {
      method: method ?? (body ? "POST" : "GET"),
      headers,
      body,
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running? Then try again.", 0);
  }
}

/** @param {Response} response */
async function check(response) {
  if (response.ok) return response;
  const text = (await response.text()).slice(0, 4000);
  throw new ApiError(
    messageOf(text) || `The server answered with status ${response.status}.`,
    response.status,
  );
}

/** The sentence in an error of any of the server's APIs. @param {string} text */
function messageOf(text) {
  try {
    const { error, message } = JSON.parse(text);
    return String(error?.message ?? (typeof error === "string" ? error : message) ?? "");
  } catch {
    return text;
  }
}

/**
 * The JSON of an answer.
 * @param {string} path
 * @param {Options} [options]
 */
export const json = async (path, options) => (await request(path, options)).json();

/**
 * What a request cost, from the headers of its answer.
 * @param {Response} response
 */
export function costOf(response) {
  const number = (name) => {
    const value = response.headers.get(name);
    return value === null ? null : Number(value);
  };
  return {
    tokens: number("x-compute-tokens"),
    tokenization: number("x-tokenization-time"),
    queue: number("x-queue-time"),
    inference: number("x-inference-time"),
    total: number("x-total-time"),
  };
}
