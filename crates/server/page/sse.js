// Server-sent events of a streamed answer.

import { ApiError, request } from "./api.js";

/** An event may not be larger than this; a server that sends more is not one of ours. */
const MAX_EVENT = 8 << 20;

/**
 * The JSON events of a streamed answer.
 * @param {string} path
 * @param {Options} options
 */
export async function* stream(path, options) {
  const response = await request(path, options);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message ?? String(event.error), 200);
    yield event;
  }
}

/**
 * The data of each event of a body.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<string>}
 */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      buffer += value;
      if (buffer.length > MAX_EVENT) throw new Error("the server sent an event larger than 8 MiB");
      const parts = buffer.split(/\r?\n\r?\n/);
      buffer = parts.pop();
      for (const part of parts) {
        const data = dataOf(part);
        if (data !== null) yield data;
      }
    }
    const data = dataOf(buffer);
    if (data !== null) yield data;
  } finally {
    // Ends the request if the caller stopped reading.
    reader.cancel().catch(() => {});
  }
}

/** The data of an event; null for comments, which only keep the connection open. @param {string} event */
function dataOf(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n") : null;
}
