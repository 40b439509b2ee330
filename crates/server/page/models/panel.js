// What runs where: models, their plans and memory, devices with doctor's verdict, the last minutes,
// loading and unloading.

import { json } from "../api.js";
import { button, field, fill, h, notice } from "../dom.js";
import { bytes, plural, seconds } from "../format.js";
import { lastStatus, models, refresh } from "../served.js";
import { ModelCard } from "./card.js";
import { Charts } from "./charts.js";

const EVERY_MS = 2000;

export function panel() {
  const cards = h("div", { class: "cards" });
  const server = h("div");
  const charts = new Charts();
  /** @type {Map<string, ModelCard>} */
  const known = new Map();
  /** @type {ReturnType<typeof setInterval> | null} */
  let timer = null;

  const draw = () => {
    fill(server, serverFacts(lastStatus()));
    const ids = models().map(({ id }) => id);
    for (const id of known.keys()) if (!ids.includes(id)) known.delete(id);
    for (const model of models()) {
      if (!known.has(model.id)) known.set(model.id, new ModelCard(model.id));
      known.get(model.id).update(model);
    }
    const nodes = ids.map((id) => known.get(id).node);
    // Moving a node would close what is open in it.
    if (nodes.length !== cards.childElementCount || nodes.some((node, i) => cards.children[i] !== node)) {
      fill(cards, nodes.length ? nodes : notice("empty", "This server has no models. Load one below."));
    }
  };
  const update = async () => {
    try {
      await refresh({ quiet: timer !== null });
      draw();
    } catch (error) {
      fill(server, notice("error", h("p", {}, error.message), button("Try again", update)));
    }
  };
  const node = h(
    "div",
    { class: "work" },
    server,
    h("h3", {}, "Models"),
    cards,
    loader(update),
    h("h3", {}, "The last minutes"),
    charts.node,
  );
  const start = () => {
    update();
    charts.start();
    timer ??= setInterval(update, EVERY_MS);
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    charts.stop();
  };
  node.addEventListener("show", start);
  node.addEventListener("hide", stop);
  return node;
}

/** The server, its devices and doctor's verdict. @param {any} status */
function serverFacts({ version, uptime_seconds: uptime, requests, memory, devices }) {
  const budget =
    memory.budget_bytes === null ? "no budget (--memory-budget)" : `budget ${bytes(memory.budget_bytes)}`;
  return [
    h(
      "p",
      {},
      `Sconce ${version}, up ${seconds(uptime)} · ${requests.running} of ${requests.limit} requests · models ${bytes(memory.planned_bytes)} planned, ${budget}`,
    ),
    h("h3", {}, "Devices"),
    h(
      "div",
      { class: "cards" },
      devices.map(({ device, description, free_bytes: free, total_bytes: total, doctor }) =>
        h(
          "article",
          { class: "card", "aria-label": device },
          h("h4", {}, device),
          h("p", {}, description),
          h("p", { class: "hint" }, `${bytes(free)} of ${bytes(total)} free`),
          verdict(doctor, device),
        ),
      ),
    ),
  ];
}

/** @param {{op: string, dtype: string, rung: string}[] | null} failed @param {string} device */
function verdict(failed, device) {
  if (failed === null)
    return h(
      "p",
      {},
      "Doctor has not checked the kernels here yet: run ",
      h("code", {}, `sconce doctor -d ${device}`),
      ", and start the server again.",
    );
  if (!failed.length) return h("p", { class: "good" }, "Doctor: no kernel failed on this device.");
  const each = failed.map(({ op, dtype, rung }) => h("li", {}, `${op} in ${dtype}, ${rung}`));
  return h(
    "div",
    {},
    h(
      "p",
      { class: "bad" },
      `Doctor: ${plural(failed.length, "kernel")} failed on this device and ${failed.length === 1 ? "is" : "are"} not used:`,
    ),
    h("ul", {}, each),
  );
}

/** A form that loads a model. @param {() => Promise<void>} update */
function loader(update) {
  const model = /** @type {HTMLInputElement} */ (
    h("input", {
      type: "text",
      placeholder: "smollm",
      required: true,
      autocapitalize: "off",
      spellcheck: "false",
    })
  );
  const name = /** @type {HTMLInputElement} */ (
    h("input", { type: "text", placeholder: "as the model", autocapitalize: "off", spellcheck: "false" })
  );
  const dtype = /** @type {HTMLInputElement} */ (
    h("input", { type: "text", placeholder: "the server's", autocapitalize: "off", spellcheck: "false" })
  );
  const result = h("div", { role: "status" });
  const load = async (event) => {
    event.preventDefault();
    fill(result);
    const given = { name: name.value.trim(), dtype: dtype.value.trim() };
    const body = {
      model: model.value.trim(),
      ...Object.fromEntries(Object.entries(given).filter(([, text]) => text)),
    };
    try {
      const { model: id } = await json("/v1/models/load", { json: body });
      fill(result, h("p", { class: "hint" }, `${id} is loading; its progress is shown above.`));
      await update();
    } catch (error) {
      fill(result, notice("error", error.message));
    }
  };
  const hint = "a name, a hub id, a folder or a .gguf file of the server's machine";
  return h(
    "form",
    { on: { submit: load } },
    h("h3", {}, "Load a model"),
    h(
      "div",
      { class: "pair" },
      field("Model", model, hint),
      field("Name in requests", name, "optional"),
      field("Format", dtype, "optional: f32, bf16, f16"),
      h("button", {}, "Load"),
    ),
    result,
  );
}
