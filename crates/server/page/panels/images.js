// An image and captions: which caption fits best (CLIP, SigLIP).

import { button, field, fill, h } from "../dom.js";
import { bytes } from "../format.js";
import { needs, picker } from "../served.js";
import { bars, form, lines, truncation } from "./form.js";
import { cosine, vectorsOf } from "./vectors.js";

/** Larger files are scaled down before they are sent: servers limit the size of a request. */
const MAX_BYTES = 1_200_000;
/** The longer side of a scaled image; models read 224 to 512 pixels. */
const MAX_SIDE = 1024;
/** Formats that the server reads. Others are converted here. */
const FORMATS = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp"];
const EXAMPLE = ["a photo of a cat", "a photo of a dog", "a diagram", "a street in a city", "a red square"];

export function panel() {
  const model = picker("clip");
  const truncate = truncation();
  const area = /** @type {HTMLTextAreaElement} */ (h("textarea", { rows: 6 }));
  area.value = EXAMPLE.join("\n");
  const drop = new Drop();
  const { node, result } = form({
    fields: [model.node, drop.node, field("Captions", area, "one per line"), truncate.node],
    submit: "Rank captions",
    empty: "Choose an image and rank the captions to see which fits best.",
    run: async (send) => {
      const captions = lines(area);
      if (!drop.url) throw new Error("Choose an image first: drop it, paste it, or use the button.");
      if (!captions.length) throw new Error("Write captions, one per line.");
      const name = model.select.value;
      const [image] = vectorsOf(
        await send("/v1/images/embeddings", { model: name, input: [{ image: drop.url }] }),
      );
      const texts = vectorsOf(
        await send("/v1/embeddings", { model: name, input: captions, truncate: truncate.box.checked }),
      );
      const scored = captions
        .map((caption, i) => ({ caption, score: cosine(image, texts[i]) }))
        .sort((a, b) => b.score - a.score);
      const [high, low] = [scored[0].score, scored[scored.length - 1].score];
      const row = ({ caption, score }) => ({
        label: caption,
        value: score.toFixed(4),
        part: high - low < 1e-9 ? 1 : 0.05 + (0.95 * (score - low)) / (high - low),
      });
      return [
        h("h3", {}, "Best caption first"),
        h(
          "p",
          { class: "hint" },
          "Cosine similarity of image and caption; bars go from the lowest to the highest.",
        ),
        bars(scored.map(row), "Captions"),
      ];
    },
  });
  return needs("clip", h("div", { class: "work columns" }, node, result));
}

/** Where an image is dropped, pasted or chosen. */
class Drop {
  constructor() {
    /** The image as a data URI; empty while there is none. */
    this.url = "";
    this.preview = h("div", { "aria-live": "polite" });
    const input = h("input", {
      type: "file",
      accept: "image/*",
      hidden: true,
      "aria-label": "Image file",
      on: { change: (event) => this.take(event.target.files[0]) },
    });
    this.node = h(
      "div",
      { class: "drop", role: "group", "aria-label": "Image" },
      h("p", {}, "Drop or paste an image here, or "),
      button("Choose an image", () => input.click()),
      input,
      this.preview,
    );
    const over = (isOver) => (event) => {
      event.preventDefault();
      this.node.classList.toggle("over", isOver);
    };
    this.node.addEventListener("dragover", over(true));
    this.node.addEventListener("dragleave", over(false));
    this.node.addEventListener("drop", (event) => {
      over(false)(event);
      this.take(event.dataTransfer.files[0]);
    });
    addEventListener(
      "paste",
      (event) =>
        this.node.isConnected && event.clipboardData.files[0] && this.take(event.clipboardData.files[0]),
    );
  }

  /** @param {File | undefined} file */
  async take(file) {
    if (!file) return;
    this.url = "";
    try {
      const image = await createImageBitmap(file);
      const isSmall = FORMATS.includes(file.type) && file.size <= MAX_BYTES;
      this.url = isSmall ? await dataUri(file) : scaled(image);
      const note = isSmall ? "" : `, sent as a JPEG of at most ${MAX_SIDE} pixels`;
      fill(
        this.preview,
        h(
          "p",
          { class: "stats" },
          `${file.name}, ${image.width} × ${image.height}, ${bytes(file.size)}${note}`,
        ),
        h("img", { src: this.url, alt: "The chosen image" }),
      );
    } catch {
      fill(
        this.preview,
        h(
          "p",
          { class: "bad" },
          `${file.name} is not an image that this browser can read. Choose a PNG or JPEG file.`,
        ),
      );
    }
  }
}

/** @param {Blob} file @returns {Promise<string>} */
function dataUri(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(/** @type {string} */ (reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** @param {ImageBitmap} image */
function scaled(image) {
  const scale = Math.min(1, MAX_SIDE / Math.max(image.width, image.height));
  const canvas = /** @type {HTMLCanvasElement} */ (
    h("canvas", {
      width: Math.max(1, Math.round(image.width * scale)),
      height: Math.max(1, Math.round(image.height * scale)),
    })
  );
  const context = canvas.getContext("2d");
  // JPEG has no transparency.
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.92);
}
