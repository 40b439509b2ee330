// What a chat request says beside its messages: system prompt, sampling, structured output, tools.

import { field, h } from "../dom.js";

/**
 * @typedef {object} Setting
 * @property {string} name The field of the request.
 * @property {string} label
 * @property {string} hint
 * @property {"any" | number} step
 * @property {number} [min]
 * @property {number} [max]
 */

/** @type {Setting[]} */
const NUMBERS = [
  {
    name: "temperature",
    label: "Temperature",
    hint: "0 takes the most likely token",
    step: 0.05,
    min: 0,
    max: 2,
  },
  {
    name: "top_p",
    label: "Top p",
    hint: "keeps the likeliest tokens up to this sum",
    step: 0.01,
    min: 0,
    max: 1,
  },
  { name: "top_k", label: "Top k", hint: "keeps so many tokens; 0 keeps all", step: 1, min: 0 },
  {
    name: "min_p",
    label: "Min p",
    hint: "drops tokens below this part of the best",
    step: 0.01,
    min: 0,
    max: 1,
  },
  {
    name: "repetition_penalty",
    label: "Repetition",
    hint: "penalty; above 1, repeats become rarer",
    step: 0.01,
    min: 0,
  },
  {
    name: "presence_penalty",
    label: "Presence",
    hint: "penalty of each token that was used",
    step: 0.05,
    min: -2,
    max: 2,
  },
  {
    name: "frequency_penalty",
    label: "Frequency",
    hint: "penalty of each use of a token",
    step: 0.05,
    min: -2,
    max: 2,
  },
  { name: "max_tokens", label: "Most tokens", hint: "of an answer", step: 1, min: 1 },
  { name: "seed", label: "Seed", hint: "the same seed repeats an answer", step: 1 },
];

/** How much a model may reason; the first is what it does by itself. */
const EFFORTS = ["", "none", "minimal", "low", "medium", "high", "xhigh"];

const SCHEMA_EXAMPLE = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}';
const TOOL_EXAMPLE =
  '[{"type": "function", "function": {"name": "weather", "description": "The weather of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]';

export class Settings {
  /** @param {() => void} changed */
  constructor(changed) {
    /** @type {Record<string, HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement>} */
    this.inputs = {};
    const text = (name, rows, placeholder = "") =>
      (this.inputs[name] = /** @type {any} */ (
        h("textarea", { name, rows, placeholder, spellcheck: "false" })
      ));
    const numbers = NUMBERS.map(({ name, label, hint, step, min, max }) => {
      const input = h("input", {
        type: "number",
        name,
        step,
        min,
        max,
        placeholder: "model's own",
        inputmode: "decimal",
      });
      this.inputs[name] = /** @type {any} */ (input);
      return field(label, input, hint);
    });
    const choice = (name, options) => {
      const select = h(
        "select",
        { name },
        options.map((value) => h("option", { value }, value || "model's own")),
      );
      return (this.inputs[name] = /** @type {any} */ (select));
    };
    this.node = h(
      "form",
      {
        class: "settings",
        "aria-label": "Chat settings",
        on: { input: changed, submit: (event) => event.preventDefault() },
      },
      field(
        "System prompt",
        text("system", 4, "You are a helpful assistant."),
        "stands before the conversation",
      ),
      h(
        "details",
        { open: true },
        h("summary", {}, "Sampling"),
        h("div", { class: "grid" }, numbers),
        field("Reasoning", choice("reasoning_effort", EFFORTS), "of models that reason before they answer"),
        field("Stop strings", text("stop", 2), "one per line, at most four"),
      ),
      h(
        "details",
        {},
        h("summary", {}, "JSON schema"),
        field(
          "Schema of the answer",
          text("schema", 6, SCHEMA_EXAMPLE),
          "empty: any text. The answer always satisfies the schema.",
        ),
      ),
      h(
        "details",
        {},
        h("summary", {}, "Tools"),
        field(
          "Tools",
          text("tools", 6, TOOL_EXAMPLE),
          "a JSON list, as in OpenAI's API. You type the results of calls.",
        ),
        field("Tool choice", choice("tool_choice", ["auto", "required", "none"])),
      ),
    );
  }

  /** What is typed, to keep with a conversation. */
  values() {
    return Object.fromEntries(Object.entries(this.inputs).map(([name, input]) => [name, input.value]));
  }

  /** @param {Record<string, unknown>} values */
  load(values) {
    for (const [name, input] of Object.entries(this.inputs)) {
      const value = values[name];
      input.value = typeof value === "string" ? value : "";
      // A choice that there is not.
      if (input instanceof HTMLSelectElement && input.selectedIndex < 0) input.selectedIndex = 0;
    }
  }

  /** The system prompt. */
  get system() {
    return this.inputs.system.value;
  }

  /** The fields of a request. Throws a sentence about a field that is not valid. */
  request() {
    /** @type {Record<string, unknown>} */
    const fields = {};
    for (const { name, label } of NUMBERS) {
      const input = /** @type {HTMLInputElement} */ (this.inputs[name]);
      if (!input.validity.valid) throw new Error(`${label}: ${input.validationMessage}`);
      if (input.value !== "") fields[name] = Number(input.value);
    }
    const stop = this.inputs.stop.value.split("\n").filter((line) => line !== "");
    if (stop.length > 4) throw new Error("Stop strings: at most four, one per line.");
    if (stop.length) fields.stop = stop;
    if (this.inputs.reasoning_effort.value) fields.reasoning_effort = this.inputs.reasoning_effort.value;
    const schema = this.json("schema", "JSON schema");
    if (schema !== null)
      fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    const tools = this.json("tools", "Tools");
    if (tools !== null && !Array.isArray(tools)) throw new Error("Tools: a JSON list, [ … ], is needed.");
    if (tools?.length) Object.assign(fields, { tools, tool_choice: this.inputs.tool_choice.value });
    return fields;
  }

  /** @param {string} name @param {string} label */
  json(name, label) {
    const text = this.inputs[name].value.trim();
    if (!text) return null;
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new Error(`${label}: not valid JSON (${error.message}).`);
    }
  }
}
