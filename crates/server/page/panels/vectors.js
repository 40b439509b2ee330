// Arithmetic of embeddings.

/** The vectors of an embedding answer, in the order of the inputs. @returns {number[][]} */
export const vectorsOf = (answer) =>
  [...answer.data].sort((a, b) => a.index - b.index).map(({ embedding }) => embedding);

/** @param {number[]} a @param {number[]} b */
export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** @param {number[]} a @param {number[]} b */
export const cosine = (a, b) => dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);

/** Cosine similarity of each pair. @param {number[][]} vectors */
export const similarities = (vectors) => vectors.map((a) => vectors.map((b) => cosine(a, b)));

/**
 * The first two principal components, from the eigenvectors of the centred Gram matrix: there are
 * few texts and many dimensions.
 * @param {number[][]} vectors
 * @returns {{points: [number, number][], explained: [number, number]}} Each point's coordinates, and
 *   the part of the variance along each axis.
 */
export function principalComponents(vectors) {
  const n = vectors.length;
  const gram = vectors.map((a) => vectors.map((b) => dot(a, b)));
  const means = gram.map((row) => row.reduce((sum, v) => sum + v, 0) / n);
  const mean = means.reduce((sum, v) => sum + v, 0) / n;
  const centred = gram.map((row, i) => row.map((v, j) => v - means[i] - means[j] + mean));
  const variance = centred.reduce((sum, row, i) => sum + row[i], 0) || 1;
  const first = eigen(centred);
  const rest = centred.map((row, i) =>
    row.map((v, j) => v - first.value * first.vector[i] * first.vector[j]),
  );
  const second = eigen(rest);
  const scale = ({ value, vector }) => vector.map((v) => v * Math.sqrt(Math.max(value, 0)));
  const [xs, ys] = [scale(first), scale(second)];
  return {
    points: xs.map((x, i) => [x, ys[i]]),
    explained: [Math.max(first.value, 0) / variance, Math.max(second.value, 0) / variance],
  };
}

/** The largest eigenvalue of a symmetric matrix and its vector, by power iteration. @param {number[][]} matrix */
function eigen(matrix) {
  // Not a vector of ones, which a centred matrix maps to nothing.
  let vector = matrix.map((_, i) => Math.sin(i + 1));
  let value = 0;
  for (let step = 0; step < 200; step++) {
    const next = matrix.map((row) => dot(row, vector));
    const length = Math.sqrt(dot(next, next));
    if (length < 1e-12) return { value: 0, vector: matrix.map(() => 0) };
    vector = next.map((v) => v / length);
    const before = value;
    value = length;
    if (Math.abs(value - before) < 1e-9 * value) break;
  }
  return { value, vector };
}
