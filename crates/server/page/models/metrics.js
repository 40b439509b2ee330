// Reads /metrics (Prometheus's text format), and turns two readings into rates.

/**
 * @typedef {Map<string, {labels: Record<string, string>, value: number}[]>} Metrics Samples by name.
 */

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([-+.\dA-Za-z]+)$/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** @param {string} text @returns {Metrics} */
export function parse(text) {
  const metrics = new Map();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) labels[name] = value;
    if (!metrics.has(found[1])) metrics.set(found[1], []);
    metrics.get(found[1]).push({ labels, value: Number(found[3]) });
  }
  return metrics;
}

/** The sum of a metric over all its labels. @param {Metrics} metrics @param {string} name */
export const total = (metrics, name) => (metrics.get(name) ?? []).reduce((sum, { value }) => sum + value, 0);

/**
 * The quantile of a histogram's observations between two readings: the upper bound of its bucket.
 * @param {Metrics} before
 * @param {Metrics} after
 * @param {string} name
 * @param {number} q From 0 to 1.
 */
export function quantile(before, after, name, q) {
  const buckets = (metrics) => {
    const sums = new Map();
    for (const { labels, value } of metrics.get(`${name}_bucket`) ?? [])
      sums.set(labels.le, (sums.get(labels.le) ?? 0) + value);
    return sums;
  };
  const [old, now] = [buckets(before), buckets(after)];
  const rows = [...now]
    .map(([le, value]) => [le === "+Inf" ? Infinity : Number(le), value - (old.get(le) ?? 0)])
    .sort((a, b) => a[0] - b[0]);
  const all = rows.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  const bound = rows.find(([, value]) => value >= q * all)?.[0];
  return Number.isFinite(bound) ? bound : rows.at(-2)[0];
}

/**
 * What happened between two readings.
 * @param {Metrics} before
 * @param {Metrics} after
 * @param {number} s Seconds between them.
 */
export function between(before, after, s) {
  const more = (name) => Math.max(0, total(after, name) - total(before, name));
  const requests = more("te_request_duration_count");
  return {
    requests: requests / s,
    failures: more("te_request_failure") / s,
    tokensIn: more("te_request_input_length_sum") / s,
    tokensOut: more("vllm:generation_tokens_total") / s,
    latency: requests > 0 ? more("te_request_duration_sum") / requests : null,
    p95: quantile(before, after, "te_request_duration", 0.95),
    firstToken: quantile(before, after, "vllm:time_to_first_token_seconds", 0.95),
    queue: total(after, "te_queue_size") + total(after, "vllm:num_requests_waiting"),
    running: total(after, "sconce_requests_running"),
    cache: Math.max(0, ...(after.get("vllm:kv_cache_usage_perc") ?? []).map(({ value }) => value)),
  };
}
