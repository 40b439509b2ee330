// Vector stores and their files: choose, make, upload, delete.

import { json } from "../api.js";
import { button, field, fill, h } from "../dom.js";
import { bytes } from "../format.js";

/** How often the state of files is read while some are being indexed. */
const POLL_MS = 700;

export class Stores {
  /** @param {() => void} changed Called when another store is chosen. */
  constructor(changed) {
    this.changed = changed;
    this.select = /** @type {HTMLSelectElement} */ (h("select", { on: { change: () => this.choose() } }));
    this.name = /** @type {HTMLInputElement} */ (
      h("input", { type: "text", placeholder: "notes", maxlength: 200 })
    );
    this.upload = /** @type {HTMLInputElement} */ (
      h("input", {
        type: "file",
        multiple: true,
        hidden: true,
        "aria-label": "Files to index",
        on: { change: () => this.add([...this.upload.files]) },
      })
    );
    this.state = h("p", { class: "stats", role: "status" });
    this.files = h("ul", { class: "files" });
    this.chosen = h(
      "div",
      { hidden: true },
      h(
        "div",
        {
          class: "drop",
          role: "group",
          "aria-label": "Files",
          on: { dragover: (event) => event.preventDefault(), drop: (event) => this.dropped(event) },
        },
        h("p", {}, "Drop files here: text, Markdown, source code, HTML, PDF, CSV, JSONL, Parquet."),
        h(
          "div",
          { class: "actions" },
          button("Choose files", () => this.upload.click()),
          button("Delete this store", () => this.remove(), { class: "quiet" }),
          this.upload,
        ),
      ),
      this.files,
    );
    const make = h(
      "form",
      { class: "pair", on: { submit: (event) => this.make(event) } },
      field("New store", this.name),
      h("button", {}, "Create"),
    );
    this.node = h("div", {}, field("Vector store", this.select), make, this.chosen, this.state);
  }

  /** The id of the chosen store; empty if there is none. */
  get id() {
    return this.select.value;
  }

  get path() {
    return `/v1/vector_stores/${encodeURIComponent(this.id)}`;
  }

  /** Reads the list of stores. @param {string} [chosen] The store to choose. */
  async load(chosen = this.id) {
    const { data } = await json("/v1/vector_stores?limit=100");
    fill(
      this.select,
      data.map((store) =>
        h("option", { value: store.id, selected: store.id === chosen }, store.name || store.id),
      ),
    );
    await this.choose();
  }

  async choose() {
    this.chosen.hidden = !this.id;
    this.say(this.id ? "" : "There is no vector store yet. Give one a name, and upload files.");
    this.changed();
    fill(this.files);
    if (this.id) await this.showFiles();
  }

  /** @param {string} text */
  say(text) {
    this.state.textContent = text;
  }

  /** Runs `work`; an error is told instead of thrown. @param {() => Promise<void>} work */
  async try(work) {
    try {
      await work();
    } catch (error) {
      this.say(error.message);
    }
  }

  /** @param {Event} event */
  make(event) {
    event.preventDefault();
    return this.try(async () => {
      const { id } = await json("/v1/vector_stores", { json: { name: this.name.value.trim() || "notes" } });
      this.name.value = "";
      await this.load(id);
    });
  }

  remove() {
    if (!confirm("Delete this vector store? Its uploaded files are deleted too.")) return undefined;
    return this.try(async () => {
      const { data } = await json(`${this.path}/files?limit=100`);
      await json(this.path, { method: "DELETE" });
      for (const { id } of data) await json(`/v1/files/${encodeURIComponent(id)}`, { method: "DELETE" });
      await this.load("");
    });
  }

  /** @param {DragEvent} event */
  dropped(event) {
    event.preventDefault();
    this.add([...event.dataTransfer.files]);
  }

  /** Uploads files and indexes them. @param {File[]} files */
  add(files) {
    const path = this.path;
    return this.try(async () => {
      for (const [i, file] of files.entries()) {
        this.say(`Uploading ${file.name} (${i + 1} of ${files.length}, ${bytes(file.size)})…`);
        const form = new FormData();
        form.append("purpose", "assistants");
        form.append("file", file);
        const { id } = await json("/v1/files", { form });
        await json(`${path}/files`, { json: { file_id: id } });
      }
      this.upload.value = "";
      this.say("");
      await this.showFiles();
    });
  }

  /** Shows the files; again while some are being indexed. */
  async showFiles() {
    const { id, path } = this;
    const [{ data }, all] = await Promise.all([
      json(`${path}/files?limit=100`),
      json("/v1/files?limit=10000"),
    ]);
    if (this.id !== id) return;
    const names = new Map(all.data.map((file) => [file.id, file.filename]));
    const state = {
      in_progress: "is being indexed…",
      completed: "",
      failed: "failed",
      cancelled: "cancelled",
    };
    fill(
      this.files,
      data.map((file) =>
        h(
          "li",
          {},
          names.get(file.id) ?? file.id,
          " ",
          h(
            "span",
            { class: file.status === "failed" ? "bad" : "hint" },
            state[file.status],
            " ",
            file.last_error?.message,
          ),
        ),
      ),
    );
    if (!data.length)
      fill(this.files, h("li", { class: "hint" }, "No files yet: upload some to search them."));
    if (data.some((file) => file.status === "in_progress"))
      setTimeout(() => this.node.isConnected && this.try(() => this.showFiles()), POLL_MS);
  }
}
