// Streams one answer into a node of the conversation.

import { stream } from "../sse.js";

/** @typedef {import("./tree.js").Node} Node */

/**
 * @typedef {object} Sink What shows the answer while it arrives.
 * @property {(text: string) => void} text
 * @property {(text: string) => void} reasoning
 * @property {() => void} calls
 */

/**
 * Runs a chat request and fills `node` with its answer.
 * @param {Record<string, unknown>} body
 * @param {Node} node
 * @param {Sink} sink
 * @param {AbortSignal} signal
 */
export async function answer(body, node, sink, signal) {
  const begun = performance.now();
  let first = 0;
  let events = 0;
  let usage = null;
  const finish = () => {
    const now = performance.now();
    const tokens = usage?.completion_tokens ?? events;
    const rest = now - (first || now);
    node.stats = {
      prompt: usage?.prompt_tokens ?? 0,
      cached: usage?.prompt_tokens_details?.cached_tokens ?? 0,
      tokens,
      reasoning: usage?.completion_tokens_details?.reasoning_tokens ?? 0,
      first: (first || now) - begun,
      total: now - begun,
      // The first token belongs to the prompt; the others show the speed of decoding.
      rate: tokens > 1 && rest > 0 ? ((tokens - 1) / rest) * 1000 : 0,
    };
  };
  try {
    const request = { ...body, stream: true, stream_options: { include_usage: true } };
    for await (const chunk of stream("/v1/chat/completions", { json: request, signal })) {
      if (chunk.usage) usage = chunk.usage;
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
      if (content || reasoning || calls) {
        first ||= performance.now();
        events++;
      }
      if (reasoning) {
        node.reasoning = (node.reasoning ?? "") + reasoning;
        sink.reasoning(reasoning);
      }
      if (content) {
        node.content += content;
        sink.text(content);
      }
      if (calls) {
        calls.forEach((call) => addCall(node, call));
        sink.calls();
      }
      if (choice.finish_reason) node.finish = choice.finish_reason;
    }
    finish();
  } catch (error) {
    finish();
    if (error.name !== "AbortError") throw error;
    node.finish = "stopped";
  }
}

/** A call arrives in parts: its id and name first, then its arguments. */
function addCall(node, { index, id, function: part }) {
  node.calls ??= [];
  // Calls come in order; an index further on would leave holes.
  const call = (node.calls[Math.min(index ?? 0, node.calls.length)] ??= { id: "", name: "", arguments: "" });
  if (id) call.id = id;
  if (part?.name) call.name += part.name;
  if (part?.arguments) call.arguments += part.arguments;
}
