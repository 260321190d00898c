// @ts-check
"use strict";
// The twin of working.py: from the numbers that a reader may change to every number that the page shows.
// A test compares the two, number by number, in a browser. No element of the page is touched here.

/** @typedef {number[][]} Matrix */
/** @typedef {{x: Matrix, wq: Matrix, wk: Matrix, wv: Matrix, heads: number, draw?: Draw}} Wide */
/**
 * Where step 9's numbers come from: "" is the example; else a kind of draw and its seed.
 * @typedef {{kind: "" | "alike" | "free", seed: number}} Draw
 */
/**
 * @typedef {object} State
 * @property {string[]} tokens
 * @property {boolean} scale
 * @property {boolean} causal
 * @property {Matrix} x
 * @property {Matrix} wq
 * @property {Matrix} wk
 * @property {Matrix} wv
 * @property {Matrix} wo
 * @property {number[]} pad
 * @property {string[]} target
 * @property {Matrix} y
 * @property {number} heads
 * @property {number} look
 * @property {{seed: number, queries: number, keys: number}} random
 * @property {Wide} wide
 */
/** Self-focus and entropy of the rows of one weight matrix, and their means.
 * @typedef {{self_focus: number[], entropy: number[], mean_self_focus: number, mean_entropy: number}} Described */

const WIDTHS = [4, 16, 64, 256, 1024];
const CUTS = [1, 2, 3, 4, 6];
const LENGTHS = [10, 100, 1000];

/** @param {Matrix} a @param {Matrix} b @returns {Matrix} */
const product = (a, b) => a.map((row) => b[0].map((_, j) => row.reduce((sum, value, i) => sum + value * b[i][j], 0)));

/** @param {Matrix} a @returns {Matrix} */
const transposed = (a) => a[0].map((_, j) => a.map((row) => row[j]));

/** Columns from..to of a matrix. @param {Matrix} a @param {number} from @param {number} to @returns {Matrix} */
const columnsOf = (a, from, to) => a.map((row) => row.slice(from, to));

/** @param {Matrix} a @param {(value: number, i: number, j: number) => number} by @returns {Matrix} */
const mapped = (a, by) => a.map((row, i) => row.map((value, j) => by(value, i, j)));

/** @param {number[]} values */
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** The largest |a - b|. @param {Matrix} a @param {Matrix} b */
const distance = (a, b) => Math.max(...a.flatMap((row, i) => row.map((value, j) => Math.abs(value - b[i][j]))));

/** Matrices side by side. @param {Matrix[]} parts @returns {Matrix} */
const concat = (parts) => parts[0].map((_, i) => parts.flatMap((part) => part[i]));

/** The columns of each head. @param {Matrix} a @param {number} h @returns {Matrix[]} */
const splitHeads = (a, h) => {
  const d = a[0].length / h;
  return Array.from({ length: h }, (_, i) => columnsOf(a, i * d, (i + 1) * d));
};

/**
 * The softmax of a row over the keys that it may see; 0 everywhere when it may see none.
 * @param {number[]} scores @param {(key: number) => boolean} sees
 */
const softmax = (scores, sees = () => true) => {
  const top = Math.max(...scores.filter((_, j) => sees(j)));
  const e = scores.map((score, j) => (sees(j) ? Math.exp(score - top) : 0));
  const total = e.reduce((sum, value) => sum + value, 0);
  return e.map((value) => value / (total || 1));
};

/**
 * Eq. 1 for one head: softmax(q k^T * scale) v.
 * @param {Matrix} q @param {Matrix} k @param {Matrix} v
 * @param {{scale?: number, causal?: boolean, mask?: boolean[]}} [options] scale: 1 / sqrt(d_k) unless given; causal: query i sees
 *   keys 0..i; mask: which keys may be seen at all
 */
const attention = (q, k, v, { scale = 1 / Math.sqrt(q[0].length), causal = false, mask } = {}) => {
  const scores = mapped(product(q, transposed(k)), (value) => value * scale);
  const weights = scores.map((row, i) => softmax(row, (j) => !(causal && j > i) && (mask?.[j] ?? true)));
  return { weights, output: product(weights, v) };
};

/** @param {State} state @param {number} width */
const scaleOf = (state, width) => (state.scale ? 1 / Math.sqrt(width) : 1);

/** @param {Matrix} p @returns {Described} */
const described = (p) => {
  const self_focus = p.map((row, i) => row[i]),
    entropy = p.map(entropyOf);
  return { self_focus, entropy, mean_self_focus: mean(self_focus), mean_entropy: mean(entropy) };
};

/** In nats. @param {ArrayLike<number>} row */
const entropyOf = (row) => {
  let sum = 0;
  for (let j = 0; j < row.length; j++) if (row[j] > 0) sum -= row[j] * Math.log(row[j]);
  return sum;
};

/** Q, K and V; K and V from another sequence where there is one. @param {State} state @param {Matrix} x @param {Matrix} [read] */
const projections = (state, x, read = x) => ({ q: product(x, state.wq), k: product(read, state.wk), v: product(read, state.wv) });

/** @param {State} state @param {Matrix} q @param {Matrix} k @param {{causal?: boolean, mask?: boolean[]}} [options] */
const weightsOf = (state, q, k, options = {}) =>
  attention(q, k, k, { scale: scaleOf(state, q[0].length), causal: state.causal, ...options }).weights;

/** Step 3. @param {State} state */
const scoresOf = (state) => {
  const { q, k } = projections(state, state.x);
  const products = product(q, transposed(k)),
    divisor = state.scale ? Math.sqrt(q[0].length) : 1;
  const weights = weightsOf(state, q, k);
  return { products, divisor, scores: mapped(products, (value) => value / divisor), weights, ...described(weights) };
};

/** Step 4: all of Z, and one row of it as a weighted sum. @param {State} state */
const outputOf = (state) => {
  const { q, k, v } = projections(state, state.x);
  const weights = weightsOf(state, q, k),
    parts = mapped(v, (value, j) => weights[state.look][j] * value);
  return { z: product(weights, v), parts, sum: parts[0].map((_, c) => parts.reduce((sum, part) => sum + part[c], 0)) };
};

/** Step 4: what waits for what, and how much is multiplied. @param {number} n @param {number} d */
const countsOf = (n, d) => ({
  tokens: n,
  recurrent_steps: n,
  attention_products: 5,
  attention_steps: 3,
  recurrent_multiplications: 2 * n * d * d,
  attention_multiplications: 3 * n * d * d + 2 * n * n * d,
});

/** mulberry32. @param {number} seed @param {number} count numbers from 0 up to, not including, 1 */
const uniforms = (seed, count) => {
  const made = new Float64Array(count);
  for (let i = 0, state = seed | 0; i < count; i++) {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    made[i] = ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }
  return made;
};

/** Standard normal numbers, by the Box-Muller transform. @param {number} seed @param {number} count */
const normals = (seed, count) => {
  const uniform = uniforms(seed, 2 * count),
    made = new Float64Array(count);
  for (let i = 0; i < count; i++) made[i] = Math.sqrt(-2 * Math.log(1 - uniform[2 * i])) * Math.cos(2 * Math.PI * uniform[2 * i + 1]);
  return made;
};

/** Step 5: random queries and keys, with and without the division by sqrt(d_k). @param {number} d_k @param {State["random"]} random */
const randomOf = (d_k, { seed, queries, keys }) => {
  const numbers = normals((seed * 7919 + d_k) % 2 ** 32, (queries + keys) * d_k);
  const products = new Float64Array(queries * keys);
  for (let i = 0; i < queries; i++) {
    for (let j = 0; j < keys; j++) {
      let sum = 0;
      for (let c = 0; c < d_k; c++) sum += numbers[i * d_k + c] * numbers[(queries + j) * d_k + c];
      products[i * keys + j] = sum;
    }
  }
  return {
    d_k,
    scaled: measuredRows(
      products.map((value) => value / Math.sqrt(d_k)),
      keys,
    ),
    unscaled: measuredRows(products, keys),
  };
};

/** How scores spread, and what the softmax makes of their rows on average. @param {Float64Array} scores row by row @param {number} keys */
const measuredRows = (scores, keys) => {
  const rows = scores.length / keys,
    middle = scores.reduce((sum, value) => sum + value, 0) / scores.length;
  const found = { deviation: 0, entropy: 0, largest: 0, gradient: 0 },
    p = new Float64Array(keys);
  for (const value of scores) found.deviation += (value - middle) ** 2;
  for (let i = 0; i < rows; i++) {
    const row = scores.subarray(i * keys, (i + 1) * keys),
      top = Math.max(...row);
    let total = 0,
      gradient = 0;
    for (let j = 0; j < keys; j++) total += p[j] = Math.exp(row[j] - top);
    for (let j = 0; j < keys; j++) {
      p[j] /= total;
      gradient += p[j] * (1 - p[j]);
    }
    found.entropy += entropyOf(p) / rows;
    found.largest += Math.max(...p) / rows;
    found.gradient += gradient / rows;
  }
  return { ...found, deviation: Math.sqrt(found.deviation / scores.length) };
};

/** The last draw of step 5: an edit elsewhere must not pay for it again. */
const drawn = { key: "", found: /** @type {ReturnType<typeof randomOf>[]} */ ([]) };

/** @param {State["random"]} random */
const randomsOf = (random) => {
  const key = [random.seed, random.queries, random.keys].join();
  if (drawn.key !== key) Object.assign(drawn, { key, found: WIDTHS.map((d_k) => randomOf(d_k, random)) });
  return drawn.found;
};

/** Step 6: with one padding row. @param {State} state */
const masksOf = (state) => {
  const { q, k } = projections(state, [...state.x, state.pad]);
  const mask = q.map((_, i) => i < q.length - 1);
  return {
    none: weightsOf(state, q, k, { causal: false }),
    padding: weightsOf(state, q, k, { causal: false, mask }),
    causal: weightsOf(state, q, k, { causal: true }),
    both: weightsOf(state, q, k, { causal: true, mask }),
  };
};

/** Step 7. @param {State} state */
const placesOf = (state) => {
  const encoder = projections(state, state.x),
    decoder = projections(state, state.y);
  const cross = weightsOf(state, decoder.q, encoder.k, { causal: false });
  return {
    encoder: weightsOf(state, encoder.q, encoder.k, { causal: false }),
    decoder: weightsOf(state, decoder.q, decoder.k, { causal: true }),
    cross,
    reads: cross.map((row) => state.tokens[row.indexOf(Math.max(...row))]),
  };
};

/** Step 8: h separate projections, and beside them one fused projection cut into heads. @param {State} state */
const headsOf = (state) => {
  const { heads: h, causal, x } = state,
    d_k = state.wo.length / h;
  const options = { causal, scale: scaleOf(state, d_k) };
  const [wqs, wks, wvs] = [state.wq, state.wk, state.wv].map((matrix) => splitHeads(matrix, h));
  const heads = wqs.map((wq, i) => {
    const [wk, wv] = [wks[i], wvs[i]];
    const [q, k, v] = [wq, wk, wv].map((matrix) => product(x, matrix));
    const { weights, output: z } = attention(q, k, v, options);
    return { wq, wk, wv, q, k, v, weights, z, ...described(weights) };
  });
  const joined = concat(heads.map((head) => head.z)),
    out = product(joined, state.wo);
  const [q, k, v] = [state.wq, state.wk, state.wv].map((matrix) => splitHeads(product(x, matrix), h));
  const fused_out = product(concat(q.map((one, i) => attention(one, k[i], v[i], options).output)), state.wo);
  return { d_k, heads, concat: joined, out, fused_out, difference: distance(out, fused_out) };
};

/** Step 9: the same Q, K, V cut into h heads. @param {State} state @param {number} h */
const cutOf = (state, h) => {
  const { x, wq, wk, wv } = state.wide;
  const [q, k, v] = [wq, wk, wv].map((matrix) => product(x, matrix));
  const [queries, keys, values] = [q, k, v].map((matrix) => splitHeads(matrix, h));
  const parts = queries.map((one, i) => product(one, transposed(keys[i])));
  const weights = queries.map((one, i) => weightsOf(state, one, keys[i]));
  const found = weights.map(described),
    d_k = q[0].length / h;
  const sum = mapped(parts[0], (_, i, j) => parts.reduce((all, part) => all + part[i][j], 0));
  return {
    h,
    d_k,
    q,
    k,
    v,
    weights,
    z: concat(weights.map((p, i) => product(p, values[i]))),
    self_focus: found.map((one) => one.mean_self_focus),
    entropy: found.map((one) => one.mean_entropy),
    parts,
    sum,
    difference: distance(sum, product(q, transposed(k))),
  };
};

/** Every number of the lesson. @param {State} state */
const work = (state) => ({
  qkv: projections(state, state.x),
  scores: scoresOf(state),
  output: outputOf(state),
  counts: [state.x.length, ...LENGTHS].map((n) => countsOf(n, state.x[0].length)),
  random: randomsOf(state.random),
  masks: masksOf(state),
  places: placesOf(state),
  heads: headsOf(state),
  cuts: CUTS.map((h) => cutOf(state, h)),
});
/** @typedef {ReturnType<typeof work>} Numbers */
