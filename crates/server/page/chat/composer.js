// Where a person writes: Enter sends, Shift+Enter begins a line, Escape stops an answer.

import { button, h } from "../dom.js";

export class Composer {
  /**
   * @param {object} actions
   * @param {(text: string) => void} actions.send
   * @param {() => void} actions.stop
   */
  constructor(actions) {
    this.actions = actions;
    this.area = /** @type {HTMLTextAreaElement} */ (
      h("textarea", {
        rows: 2,
        "aria-label": "Message",
        placeholder: "Write a message. Enter sends it.",
        on: { keydown: (event) => this.key(event), input: () => this.fit() },
      })
    );
    this.sendButton = button("Send", () => this.send(), { class: "primary" });
    this.stopButton = button("Stop", actions.stop, { hidden: true });
    this.status = h("p", { class: "stats", role: "status" });
    this.node = h(
      "div",
      { class: "composer" },
      this.area,
      h("div", { class: "actions" }, this.status, this.stopButton, this.sendButton),
    );
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "Escape") this.actions.stop();
    // Enter also ends a word of an input method, which must not send.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.send();
  }

  send() {
    const text = this.area.value;
    if (!text.trim() || this.sendButton.hidden) return;
    this.area.value = "";
    this.fit();
    this.actions.send(text);
  }

  /** The field grows with its text. */
  fit() {
    this.area.style.setProperty("height", "auto");
    this.area.style.setProperty("height", `${Math.min(this.area.scrollHeight + 2, 240)}px`);
  }

  /** Whether an answer is being written. @param {boolean} busy */
  busy(busy) {
    this.sendButton.hidden = busy;
    this.stopButton.hidden = !busy;
  }

  /** @param {string} text */
  say(text) {
    this.status.textContent = text;
  }
}
