// Small charts of the last minutes: throughput, latency, queue.

import { request } from "../api.js";
import { fill, h, svg } from "../dom.js";
import { percent, rate, seconds } from "../format.js";
import { between, parse } from "./metrics.js";

const EVERY_MS = 2000;
/** Five minutes. */
const POINTS = 150;
const [WIDTH, HEIGHT] = [150, 64];

/** @type {{name: string, label: string, unit: (value: number) => string}[]} */
const SERIES = [
  { name: "requests", label: "Requests per second", unit: rate },
  { name: "tokensIn", label: "Tokens read per second", unit: rate },
  { name: "tokensOut", label: "Tokens generated per second", unit: rate },
  { name: "latency", label: "Mean time of a request", unit: seconds },
  { name: "p95", label: "Time of 95 % of requests, at most", unit: seconds },
  { name: "firstToken", label: "95 % to the first token, at most", unit: seconds },
  { name: "queue", label: "Requests in the queue", unit: String },
  { name: "running", label: "Running requests", unit: String },
  { name: "cache", label: "KV cache in use", unit: percent },
  { name: "failures", label: "Failed requests per second", unit: rate },
];

export class Charts {
  constructor() {
    /** @type {Record<string, number | null>[]} */
    this.points = [];
    /** @type {{metrics: import("./metrics.js").Metrics, time: number} | null} */
    this.last = null;
    this.figures = SERIES.map(({ label }) => {
      const value = h("b", {}, "–");
      const plot = svg("svg", {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        preserveAspectRatio: "none",
        "aria-hidden": "true",
      });
      return { value, plot, node: h("figure", { class: "chart" }, h("figcaption", {}, label, value), plot) };
    });
    this.state = h(
      "p",
      { class: "hint" },
      "The last five minutes, read every two seconds while this panel is shown.",
    );
    this.node = h(
      "div",
      {},
      h(
        "div",
        { class: "charts" },
        this.figures.map(({ node }) => node),
      ),
      this.state,
    );
  }

  start() {
    if (this.timer) return;
    this.read();
    this.timer = setInterval(() => this.read(), EVERY_MS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
  }

  async read() {
    try {
      const metrics = parse(await (await request("/metrics", { quiet: true })).text());
      const time = performance.now();
      if (this.last) {
        this.points.push(between(this.last.metrics, metrics, (time - this.last.time) / 1000));
        this.points.splice(0, this.points.length - POINTS);
        this.draw();
      }
      this.last = { metrics, time };
    } catch (error) {
      this.state.textContent = error.message;
      this.stop();
    }
  }

  draw() {
    SERIES.forEach(({ name, unit }, i) => {
      const values = this.points.map((point) => point[name]);
      const latest = values.findLast((value) => value !== null);
      this.figures[i].value.textContent = latest === undefined ? "–" : unit(latest);
      fill(this.figures[i].plot, line(values));
    });
  }
}

/** @param {(number | null)[]} values */
function line(values) {
  const high = Math.max(...values.map((value) => value ?? 0)) || 1;
  const left = WIDTH - values.length;
  // A moment without a value keeps the one before.
  let last = 0;
  const at = values.map(
    (value, i) => `${left + i},${(HEIGHT - 2 - ((last = value ?? last) / high) * (HEIGHT - 6)).toFixed(1)}`,
  );
  const area = [`${left},${HEIGHT}`, ...at, `${left + values.length - 1},${HEIGHT}`];
  return [svg("polygon", { points: area.join(" ") }), svg("polyline", { points: at.join(" ") })];
}
