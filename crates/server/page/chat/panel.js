// The chat: conversation list, messages, composer and settings.

import { fill, h, notice } from "../dom.js";
import { models, needs, picker } from "../served.js";
import { Composer } from "./composer.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as storage from "./storage.js";
import * as tree from "./tree.js";

/** The modules that show and stream messages: the page can be used before they are there. */
async function messageModules() {
  const [{ MessageView }, { answer }] = await Promise.all([import("./message.js"), import("./answer.js")]);
  return { MessageView, answer };
}

class Chat {
  constructor() {
    this.conversation = tree.newConversation();
    /** Stops the answer that is being written. @type {AbortController | null} */
    this.running = null;
    /** @type {Awaited<ReturnType<typeof messageModules>> | null} */
    this.modules = null;
    /** The messages that are shown. @type {import("./message.js").MessageView[]} */
    this.views = [];
    this.settings = new Settings(() => this.settingsChanged());
    this.composer = new Composer({ send: (text) => this.send(text), stop: () => this.running?.abort() });
    this.sidebar = new Sidebar({
      fresh: () => this.open(tree.newConversation(this.settings.values())),
      open: (conversation) => this.open(conversation),
      say: (text) => this.composer.say(text),
    });
    this.model = picker("chat");
    this.list = h("div", { class: "messages" });
    // Seen while the list is scrolled to its end; then new text keeps it there.
    this.end = h("div", { class: "end" });
    this.scroller = h(
      "div",
      { class: "scroller", tabindex: "0", role: "region", "aria-label": "Conversation" },
      this.list,
      this.end,
    );
    this.isAtEnd = true;
    new IntersectionObserver(([entry]) => (this.isAtEnd = entry.isIntersecting), {
      root: this.scroller,
      rootMargin: "60px",
    }).observe(this.end);
    // On a phone there is place for one of them at a time.
    const isNarrow = innerWidth <= 860;
    const side = (label, node) => {
      const props = { class: "side", open: innerWidth > 1100, name: isNarrow && "side" };
      return h("details", props, h("summary", {}, label), node);
    };
    this.node = h(
      "div",
      { class: "chat" },
      side("Chats", this.sidebar.node),
      h("div", { class: "conversation" }, this.scroller, this.composer.node),
      side("Settings", h("div", {}, this.model.node, this.settings.node)),
    );
    this.actions = {
      edit: (node, text) => this.ask({ parent: node.parent, role: "user", content: text }),
      again: (node) => this.answer(node.parent),
      remove: (node) => this.change(() => tree.remove(this.conversation, node)),
      show: (node) => this.change(() => tree.show(this.conversation, node)),
      results: (node, results) => this.results(node, results),
      grew: () => this.follow(),
    };
    this.start();
  }

  async start() {
    const [latest] = await storage.all();
    if (latest && !this.conversation.nodes.length) this.open(latest);
    else this.render();
    this.modules = await messageModules();
  }

  /** @param {tree.Conversation} conversation */
  open(conversation) {
    this.running?.abort();
    this.conversation = conversation;
    this.settings.load(conversation.settings);
    this.isAtEnd = true;
    this.render();
  }

  /** Shows the branch of the conversation, and the list of all. */
  async render() {
    if (this.conversation.nodes.length) this.modules ??= await messageModules();
    const nodes = tree.path(this.conversation);
    this.views = nodes.map((node, i) => this.view(node, i === nodes.length - 1));
    fill(
      this.list,
      this.views.map((view) => view.node),
    );
    if (!nodes.length) {
      fill(
        this.list,
        notice(
          "empty",
          h("p", {}, "Ask something. The answer comes from a model on the server's own hardware."),
          h("p", {}, "Enter sends, Shift+Enter begins a new line, Escape stops an answer."),
        ),
      );
    }
    this.sidebar.show(this.conversation.id);
    this.follow();
  }

  /** @param {tree.Node} node @param {boolean} isLast */
  view(node, isLast) {
    const context = models().find((model) => model.id === node.model)?.max_tokens ?? null;
    const around = {
      branches: tree.siblings(this.conversation, node),
      context,
      needsResults: isLast && !this.running,
    };
    return new this.modules.MessageView(node, around, this.actions);
  }

  follow() {
    if (this.isAtEnd) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  /** Changes the conversation, unless an answer is being written. @param {() => void} work */
  change(work) {
    if (this.running) return this.composer.say("Stop the answer first.");
    work();
    this.save();
    this.render();
  }

  save() {
    storage
      .save(this.conversation)
      .catch((error) =>
        this.composer.say(`The chat is not kept: ${error.message}. Export it, or delete old chats.`),
      );
  }

  settingsChanged() {
    this.conversation.settings = this.settings.values();
    if (this.conversation.nodes.length) this.save();
  }

  /** @param {string} text */
  send(text) {
    this.ask({ role: "user", content: text });
  }

  /** Adds a message and asks for its answer. @param {Partial<tree.Node>} node */
  ask(node) {
    if (this.running) return this.composer.say("Stop the answer first.");
    this.isAtEnd = true;
    this.answer(tree.add(this.conversation, node).id);
  }

  /** @param {tree.Node} node The answer with calls. @param {string[]} results */
  results(node, results) {
    let parent = node.id;
    results.forEach(
      (content, i) =>
        (parent = tree.add(this.conversation, {
          parent,
          role: "tool",
          content,
          callId: node.calls[i].id,
        }).id),
    );
    this.answer(parent);
  }

  /** Asks for an answer to the message `parent`, as a new branch. @param {string} parent */
  async answer(parent) {
    if (this.running) return this.composer.say("Stop the answer first.");
    const { conversation } = this;
    conversation.leaf = parent;
    const model = this.model.select.value;
    let body;
    try {
      body = {
        model,
        messages: tree.messages(conversation, this.settings.system),
        ...this.settings.request(),
      };
    } catch (error) {
      this.render();
      return this.composer.say(error.message);
    }
    conversation.settings = this.settings.values();
    const node = tree.add(conversation, { parent, role: "assistant", model });
    const running = (this.running = new AbortController());
    this.save();
    this.composer.busy(true);
    this.composer.say("Writing…");
    await this.render();
    // Another conversation may have been opened meanwhile.
    const view = this.views.find((shown) => shown.data === node) ?? this.view(node, true);
    try {
      await this.modules.answer(body, node, view.sink(), running.signal);
      this.composer.say("");
    } catch (error) {
      node.error = error.message;
      this.composer.say("The request failed; see the last message.");
    } finally {
      this.running = null;
      this.composer.busy(false);
      conversation.updated = Date.now();
      storage
        .save(conversation)
        .catch((error) => this.composer.say(`The chat is not kept: ${error.message}`));
      view.done({ needsResults: true });
      this.follow();
    }
  }
}

/** The panel. */
export function panel() {
  return needs("chat", new Chat().node);
}
