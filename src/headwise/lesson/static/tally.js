// @ts-check
// Step 9's count: in how many draws of numbers one head has more self-focus than h heads have on average.

const DRAWS = 200;
const KINDS = /** @type {const} */ (["alike", "free"]);

/** Q and K of each draw, for as many tokens as there can be; made when they are first asked for.
 * @type {Partial<Record<"alike" | "free", {q: Float64Array, k: Float64Array}[]>>} */
const drawnPairs = {};

/** @param {"alike" | "free"} kind */
const pairsOf = (kind) =>
  (drawnPairs[kind] ??= Array.from({ length: DRAWS }, (_, i) => {
    const { x, wq, wk } = drawWide({ kind, seed: i + 1 });
    return { q: Float64Array.from(product(x, wq).flat()), k: Float64Array.from(product(x, wk).flat()) };
  }));

/** Mean self-focus of h heads. @param {Float64Array} q @param {Float64Array} k @param {number} n tokens @param {number} h
 * @param {boolean} scale @param {boolean} causal */
const meanFocus = (q, k, n, h, scale, causal) => {
  const width = q.length / MOST_TOKENS,
    d_k = width / h,
    factor = scale ? 1 / Math.sqrt(d_k) : 1,
    scores = new Float64Array(n);
  let sum = 0;
  for (let head = 0; head < h; head++) {
    for (let i = 0; i < n; i++) {
      const keys = causal ? i + 1 : n;
      let top = -Infinity,
        total = 0;
      for (let j = 0; j < keys; j++) {
        let score = 0;
        for (let c = head * d_k; c < (head + 1) * d_k; c++) score += q[i * width + c] * k[j * width + c];
        scores[j] = score * factor;
        if (scores[j] > top) top = scores[j];
      }
      for (let j = 0; j < keys; j++) total += Math.exp(scores[j] - top);
      sum += Math.exp(scores[i] - top) / total;
    }
  }
  return sum / (h * n);
};

/** For h = 2, 3, 4, 6. @param {State} state @param {"alike" | "free"} kind */
const tallied = ({ tokens: { length }, scale, causal }, kind) => {
  const several = CUTS.slice(1),
    wins = several.map(() => 0);
  for (const { q, k } of pairsOf(kind)) {
    const one = meanFocus(q, k, length, 1, scale, causal);
    several.forEach((h, i) => {
      wins[i] += Number(one > meanFocus(q, k, length, h, scale, causal));
    });
  }
  return wins;
};

/** The last count: only tokens, scale and mask change it. */
const counted = { key: "", rows: /** @type {number[][]} */ ([]) };

/** @param {State} state */
const tally = (state) => {
  const key = [state.tokens.length, state.scale, state.causal].join();
  if (counted.key !== key) Object.assign(counted, { key, rows: KINDS.map((kind) => tallied(state, kind)) });
  return [
    el("p", null, symbols(ui("tally", { count: DRAWS }))),
    table({
      kind: "tally",
      label: ui("tally", { count: DRAWS }),
      head: [symbols("h"), ...CUTS.slice(1).map(String)],
      rows: counted.rows.map((wins, i) => [symbols(ui(`tally_${KINDS[i]}`)), ...wins.map(String)]),
    }),
    el("p", { class: "hint" }, symbols(ui("tally_how", { n: state.tokens.length }))),
  ];
};
