// Entities highlighted in the text.

import { field, h } from "../dom.js";
import { percent, plural } from "../format.js";
import { models, needs, picker, watch } from "../served.js";
import { bars, form, need } from "./form.js";

export function panel() {
  const model = picker("tag");
  const area = /** @type {HTMLTextAreaElement} */ (h("textarea", { rows: 6 }));
  area.value = "Ada Lovelace met Charles Babbage in London, where the Royal Society awarded him a medal.";
  const labels = /** @type {HTMLInputElement} */ (
    h("input", { type: "text", ".value": "person, city, organization" })
  );
  const labelField = field("Labels", labels, "what to find, separated by commas (GLiNER)");
  const isGliner = () => models().find((one) => one.id === model.select.value)?.task === "gliner";
  const update = () => (labelField.hidden = !isGliner());
  update();
  watch(update);
  model.select.addEventListener("change", update);
  const { node, result } = form({
    fields: [model.node, labelField, field("Text", area)],
    submit: "Find entities",
    empty: "Find entities to see them highlighted in the text.",
    run: async (send) => {
      const text = need(area.value, "a text");
      const parameters = isGliner()
        ? {
            labels: labels.value
              .split(",")
              .map((l) => l.trim())
              .filter(Boolean),
          }
        : {};
      const found = await send("/tag", { model: model.select.value, inputs: text, parameters });
      return [
        h("h3", {}, plural(found.length, "entity", "entities")),
        highlighted(text, found),
        ...list(found),
      ];
    },
  });
  return needs("tag", h("div", { class: "work columns" }, node, result));
}

/** A colour for a label, the same each time. @param {string} label */
function hue(label) {
  let sum = 0;
  for (const c of label) sum = (sum * 31 + c.codePointAt(0)) % 360;
  return `hsl(${sum} 65% 45%)`;
}

/**
 * The text with its entities marked.
 * @param {string} text
 * @param {{start: number, end: number, entity_group?: string, entity?: string, score: number}[]} found
 */
function highlighted(text, found) {
  // The server counts characters; JavaScript counts UTF-16 units.
  const characters = Array.from(text);
  const parts = [];
  let at = 0;
  for (const entity of [...found].sort((a, b) => a.start - b.start)) {
    const label = entity.entity_group ?? entity.entity ?? "";
    // One that lies within another (GLiNER, nested) is in the list below.
    if (entity.start < at) continue;
    parts.push(characters.slice(at, entity.start).join(""));
    const words = characters.slice(entity.start, entity.end).join("");
    parts.push(
      h(
        "mark",
        { style: { "--hue": hue(label) }, title: `${label}, ${percent(entity.score)}` },
        words,
        h("span", { class: "label" }, label),
      ),
    );
    at = entity.end;
  }
  parts.push(characters.slice(at).join(""));
  return h("div", { class: "tagged" }, parts);
}

function list(found) {
  if (!found.length)
    return [
      h(
        "p",
        { class: "hint" },
        "The model found none. Try a text with names of people, places or companies.",
      ),
    ];
  const row = ({ word, score, entity_group: group, entity }) => ({
    label: h("span", {}, word, h("span", { class: "hint" }, ` ${group ?? entity ?? ""}`)),
    value: percent(score),
    part: score,
  });
  return [bars(found.map(row), "Entities with their scores")];
}
