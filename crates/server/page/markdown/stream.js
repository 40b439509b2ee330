// Shows a text while it arrives: at most once per frame, and less often when showing it is slow.

import { MarkdownView } from "./view.js";

/** The part of the time that showing text may take, as 1 of this many. */
const SHARE = 5;

export class MarkdownStream {
  /**
   * @param {HTMLElement} root
   * @param {() => void} [shown] Called after text was shown.
   */
  constructor(root, shown = () => {}) {
    this.view = new MarkdownView(root);
    this.onShown = shown;
    this.waiting = "";
    this.notBefore = 0;
    this.isScheduled = false;
  }

  /** @param {string} text */
  append(text) {
    this.waiting += text;
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame((now) => this.frame(now));
  }

  /** @param {number} now */
  frame(now) {
    if (now < this.notBefore) {
      requestAnimationFrame((later) => this.frame(later));
      return;
    }
    this.isScheduled = false;
    const begun = performance.now();
    this.flush();
    this.notBefore = now + (performance.now() - begun) * SHARE;
  }

  /** Shows what has arrived, now. */
  flush() {
    if (!this.waiting) return;
    this.view.append(this.waiting);
    this.waiting = "";
    this.onShown();
  }
}
