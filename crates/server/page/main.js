// Starts the page: panels by the part of the address behind #, the theme, the key.

import { onMissingKey, hasKey, setKey } from "./api.js";
import { button, field, fill, h, notice } from "./dom.js";
import { models, refresh } from "./served.js";

/** Each panel is loaded when it is first shown. */
const PANELS = {
  chat: { title: "Chat", load: () => import("./chat/panel.js") },
  embeddings: { title: "Embeddings", load: () => import("./panels/embeddings.js") },
  rerank: { title: "Rerank", load: () => import("./panels/rerank.js") },
  classify: { title: "Classify", load: () => import("./panels/classify.js") },
  tag: { title: "Tag", load: () => import("./panels/tag.js") },
  images: { title: "Images", load: () => import("./panels/images.js") },
  search: { title: "Search", load: () => import("./panels/search.js") },
  models: { title: "Models", load: () => import("./models/panel.js") },
};

const THEMES = ["auto", "light", "dark"];
const main = document.querySelector("main");
const tabs = document.querySelector("#tabs");
/** The panels that were shown. They get the events "show" and "hide". @type {Map<string, HTMLElement>} */
const shown = new Map();

/** The panel that the address names. */
function chosen() {
  const name = location.hash.replace(/^#\/?/, "");
  return Object.hasOwn(PANELS, name) ? name : "chat";
}

/** The style of all panels but the chat, which needs none of it. */
const panelStyle = h("link", { rel: "stylesheet", href: "page/panels.css" });

async function show() {
  const name = chosen();
  const { title, load } = PANELS[name];
  document.title = `${title} · Sconce`;
  for (const link of tabs.querySelectorAll("a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  tabs.querySelector("[aria-current]").scrollIntoView({ block: "nearest", inline: "nearest" });
  if (!shown.has(name)) {
    if (name !== "chat" && !panelStyle.isConnected) document.head.append(panelStyle);
    try {
      const { panel } = await load();
      shown.set(name, panel());
    } catch (error) {
      fill(main, notice("error", `This panel could not be loaded (${error.message}). Reload the page.`));
      return;
    }
  }
  // Another panel may have been chosen meanwhile.
  if (chosen() !== name) return;
  for (const [other, node] of shown) {
    if (other !== name) node.dispatchEvent(new Event("hide"));
  }
  fill(main, h("h2", { class: "hidden" }, title), shown.get(name));
  shown.get(name).dispatchEvent(new Event("show"));
}

/** Light, dark, or as the system says. @param {string} theme */
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("sconce-theme", theme);
}

function themeSwitch() {
  const kept = localStorage.getItem("sconce-theme");
  const select = h(
    "select",
    { "aria-label": "Theme", on: { change: (event) => setTheme(event.target.value) } },
    THEMES.map((theme) => h("option", { value: theme, selected: theme === kept }, theme)),
  );
  if (THEMES.includes(kept)) setTheme(kept);
  return select;
}

/** The question that is open, so that several requests ask once. @type {Promise<boolean> | null} */
let asking = null;

/** Asks for the API key. Resolves to whether there is one to try. */
function askForKey() {
  asking ??= new Promise((resolve) => {
    const input = /** @type {HTMLInputElement} */ (
      h("input", { type: "password", autocomplete: "off", required: true })
    );
    const text = hasKey()
      ? "The server refused this key. Its log or the person who started it knows the right one."
      : "This server wants an API key (--api-key).";
    const dialog = /** @type {HTMLDialogElement} */ (
      h(
        "dialog",
        { "aria-label": "API key" },
        h(
          "form",
          { method: "dialog" },
          h("p", {}, text),
          field("API key", input, "kept until this tab is closed"),
          h(
            "div",
            { class: "actions" },
            h("button", { value: "use", class: "primary" }, "Use this key"),
            button("Cancel", () => dialog.close("cancel")),
          ),
        ),
      )
    );
    dialog.addEventListener("close", () => {
      const used = dialog.returnValue === "use" && input.value.trim() !== "";
      if (used) setKey(input.value.trim());
      dialog.remove();
      asking = null;
      resolve(used);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

/** Reads the models; while one is loading, again soon. */
async function update(options = {}) {
  const status = document.querySelector("#status");
  try {
    await refresh(options);
    const ready = models().filter((model) => model.state === "ready").length;
    fill(status, models().length ? `${ready} of ${models().length} models ready` : "no models");
  } catch (error) {
    fill(
      status,
      h("span", { class: "bad" }, error.status === 401 ? "no key" : "no answer"),
      " ",
      button("Retry", () => update(), { class: "quiet" }),
    );
    if (error.status === 401) return;
  }
  setTimeout(() => update({ quiet: true }), models().some((m) => m.state === "loading") ? 1000 : 10_000);
}

onMissingKey(askForKey);
document.querySelector("#switches").append(themeSwitch());
tabs.append(...Object.entries(PANELS).map(([name, { title }]) => h("a", { href: `#/${name}` }, title)));
// The address behind # names the panel, so this link must not change it.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", show);
update();
await show();
performance.mark("usable");
