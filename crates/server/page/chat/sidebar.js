// The list of conversations, with export, import and deletion.

import { button, fill, h } from "../dom.js";
import * as storage from "./storage.js";

/** @typedef {import("./tree.js").Conversation} Conversation */

export class Sidebar {
  /**
   * @param {object} actions
   * @param {() => void} actions.fresh Begins a new conversation.
   * @param {(conversation: Conversation) => void} actions.open
   * @param {(text: string) => void} actions.say Tells the person something.
   */
  constructor(actions) {
    this.actions = actions;
    this.current = "";
    this.list = h("ul", { class: "conversations" });
    const file = h("input", {
      type: "file",
      accept: "application/json,.json",
      hidden: true,
      "aria-label": "File to import",
      on: { change: (event) => this.load(event.target) },
    });
    this.node = h(
      "nav",
      { class: "sidebar", "aria-label": "Conversations" },
      button("New chat", actions.fresh, { class: "primary" }),
      this.list,
      h(
        "div",
        { class: "actions" },
        button("Export", () => this.save()),
        button("Import", () => file.click()),
        button("Delete all", () => this.clear()),
        file,
      ),
      h("p", { class: "hint" }, "Chats are kept in this browser only."),
    );
  }

  /** Shows the list. @param {string} current The id of the conversation that is shown. */
  async show(current) {
    this.current = current;
    const all = await storage.all();
    fill(
      this.list,
      all.map((conversation) => {
        const isCurrent = conversation.id === this.current;
        const { title } = conversation;
        return h(
          "li",
          { class: isCurrent && "current" },
          button(title, () => this.actions.open(conversation), {
            class: "open",
            title,
            "aria-current": isCurrent && "true",
          }),
          button("×", () => this.remove(conversation), {
            class: "quiet",
            "aria-label": `Delete the chat ${title}`,
          }),
        );
      }),
    );
    if (!all.length) fill(this.list, h("li", { class: "hint" }, "No chats yet."));
  }

  /** @param {Conversation} conversation */
  async remove(conversation) {
    if (!confirm(`Delete the chat “${conversation.title}”?`)) return;
    await storage.remove(conversation.id);
    if (conversation.id === this.current) this.actions.fresh();
    else await this.show(this.current);
  }

  async clear() {
    if (!confirm("Delete all chats of this browser? Export them first to keep them.")) return;
    await storage.clear();
    this.actions.fresh();
  }

  async save() {
    const all = await storage.all();
    if (!all.length) return this.actions.say("There is no chat to export yet.");
    const { download } = await import("./transfer.js");
    download(all);
  }

  /** @param {HTMLInputElement} input */
  async load(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    try {
      const { read } = await import("./transfer.js");
      const all = await read(file);
      for (const conversation of all) await storage.save(conversation);
      this.actions.say(`Imported ${all.length === 1 ? "1 chat" : `${all.length} chats`}.`);
      if (all.length) this.actions.open(all[0]);
    } catch (error) {
      this.actions.say(`Not imported: ${error.message}`);
    }
  }
}
