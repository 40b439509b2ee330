// A similarity matrix as a table whose cells are coloured.

import { h } from "../dom.js";

/** From the lowest value to the highest: dark blue, teal, light yellow. */
const STOPS = [
  [44, 52, 109],
  [38, 116, 135],
  [112, 186, 136],
  [252, 231, 138],
];

/** @param {number} part From 0 to 1. */
function colour(part) {
  const at = Math.min(Math.max(part, 0), 1) * (STOPS.length - 1);
  const i = Math.min(Math.floor(at), STOPS.length - 2);
  return STOPS[i].map((from, c) => Math.round(from + (STOPS[i + 1][c] - from) * (at - i)));
}

/** Relative luminance, as WCAG defines it. @param {number[]} rgb */
function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => (c <= 10 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white, whichever is read more easily on the colour. @param {number[]} rgb */
const ink = (rgb) => (luminance(rgb) > 0.179 ? "#000000" : "#ffffff");

/**
 * @param {string[]} labels
 * @param {number[][]} values
 * @param {string} name For screen readers.
 */
export function heatmap(labels, values, name) {
  // The diagonal is 1; colours spread over the rest.
  const others = values.flatMap((row, i) => row.filter((_, j) => i !== j));
  const [low, high] = [Math.min(...others), Math.max(...others)];
  const cell = (value, i, j) => {
    const rgb = colour(i === j ? 1 : (value - low) / (high - low || 1));
    return h(
      "td",
      {
        title: `${labels[i]} · ${labels[j]}`,
        style: { "--cell": `rgb(${rgb.join(" ")})`, "--ink": ink(rgb) },
      },
      value.toFixed(2),
    );
  };
  const head = h(
    "tr",
    {},
    h("td", { class: "corner", style: { "--cell": "transparent" } }),
    labels.map((label, j) => h("th", { scope: "col", title: label }, j + 1)),
  );
  const rows = values.map((row, i) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", title: labels[i] }, h("span", { class: "index" }, `${i + 1} `), labels[i]),
      row.map((value, j) => cell(value, i, j)),
    ),
  );
  const table = h(
    "table",
    { class: "heat" },
    h("caption", { class: "hidden" }, name),
    h("thead", {}, head),
    h("tbody", {}, rows),
  );
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": name }, table);
}
