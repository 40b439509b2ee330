// Points with labels in two dimensions.

import { svg } from "../dom.js";

const MARGIN = 36;
/** The width of a letter and the height of a line of labels. */
const [LETTER, LINE] = [6.6, 16];

/** @param {string} label */
const short = (label) => (label.length > 34 ? `${label.slice(0, 32)}…` : label);

/**
 * @param {string[]} labels
 * @param {[number, number][]} points
 * @param {string} name For screen readers.
 */
export function map(labels, points, name) {
  // Drawn in the size in which it is shown, so that labels stay readable on a phone.
  const isNarrow = innerWidth < 860;
  const [width, height] = [isNarrow ? Math.max(innerWidth - 26, 280) : 560, isNarrow ? 320 : 400];
  const place = (axis, size) => {
    const values = points.map((point) => point[axis]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const scale = high - low < 1e-9 ? 0 : (size - 2 * MARGIN) / (high - low);
    return (value) => (scale ? MARGIN + (value - low) * scale : size / 2);
  };
  const [x, y] = [place(0, width), place(1, height)];
  const placed = points.map(([a, b], i) => ({ x: x(a), y: height - y(b), text: short(labels[i]) }));
  return svg(
    "svg",
    { class: "map", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name },
    svg("line", { x1: 0, x2: width, y1: height / 2, y2: height / 2 }),
    svg("line", { x1: width / 2, x2: width / 2, y1: 0, y2: height }),
    placed.map((p, i) => svg("circle", { cx: p.x, cy: p.y, r: 5 }, svg("title", {}, labels[i]))),
    labelPlaces(placed, width, height).map(({ left, base, text }) => svg("text", { x: left, y: base }, text)),
  );
}

/**
 * Where each label stands: beside its point, or the nearest place up or down that is free.
 * @param {{x: number, y: number, text: string}[]} placed
 * @param {number} width
 * @param {number} height
 */
function labelPlaces(placed, width, height) {
  /** @type {{left: number, base: number, length: number, text: string}[]} */
  const taken = [];
  for (const { x, y, text } of placed) {
    const length = text.length * LETTER;
    const left = x + 9 + length < width ? x + 9 : Math.max(4, x - 9 - length);
    const isFree = (base) =>
      base > LINE &&
      base < height - 4 &&
      taken.every(
        (t) => Math.abs(t.base - base) >= LINE || t.left > left + length || left > t.left + t.length,
      );
    const shifts = [0, 1, -1, 2, -2, 3, -3, 4, -4].map((n) => y + 4 + n * LINE);
    taken.push({ left, base: shifts.find(isFree) ?? y + 4, length, text });
  }
  return taken;
}
