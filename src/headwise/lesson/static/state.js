// @ts-check
// The numbers that a reader may change: what may be typed, what is drawn, and how all of it stands in the address.

const MOST_TOKENS = 6;
const LONGEST_TOKEN = 200;
const LARGEST = 1e6;
/** Names of rows that a reader adds. */
const MORE_TOKENS = ["我", "是", "谁", "的", "朋友", "呢"];
const MORE_TARGETS = ["<s>", "who", "am", "I", "?", "</s>"];
const MATRICES = ["x", "wq", "wk", "wv", "wo", "y"];
const WIDE = ["x", "wq", "wk", "wv"];
/** Whole numbers with their limits; more random numbers than that would make typing slow. @type {Record<string, [number, number]>} */
const WHOLE = { "random.seed": [0, 999999], "random.queries": [1, 128], "random.keys": [2, 64] };

/** Characters that Chinese and European keyboards write for the same thing. @param {string} text */
const tidied = (text) =>
  text
    .normalize("NFKC")
    .replace(/\s/g, "")
    .replace(/[\u2212\u2013]/g, "-")
    .replace(/。/g, ".");

/**
 * A number that was typed, or the key of the reason why it is none.
 * @param {string} text @param {string} [path] @returns {number | string}
 */
const parsed = (text, path = "") => {
  const limits = WHOLE[path];
  const thousands = limits && /^\d{1,3}(,\d{3})+$/.test(tidied(text));
  const written = thousands ? tidied(text).replaceAll(",", "") : tidied(text).replace(/^([^,.]*),([^,.]*)$/, "$1.$2");
  const value = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(written) ? Number(written) : NaN;
  if (limits) return Number.isInteger(value) && value >= limits[0] && value <= limits[1] ? value : "not_whole";
  if (Number.isNaN(value)) return "invalid";
  // A negative zero would be shown as a zero and still divide differently.
  return Math.abs(value) <= LARGEST ? value + 0 : "outside";
};

/** What can be read as an answer: "1,386" is a decimal to some and thousands to others. @param {string} text @returns {number[]} */
const readings = (text) => {
  const written = tidied(text).replace(/['\u2019]/g, "");
  const forms = [written.replace(/^([^,]*),([^,.]*)$/, "$1.$2")];
  if (/^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$/.test(written)) forms.push(written.replaceAll(",", ""));
  if (/^[+-]?\d{1,3}(\.\d{3})+(,\d+)?$/.test(written)) forms.push(written.replaceAll(".", "").replace(",", "."));
  return forms.map((form) => parsedPlainly(form)).filter((value) => Number.isFinite(value));
};

/** @param {string} written */
const parsedPlainly = (written) => {
  const [over, under, more] = written.split("/").map((part) => (/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(part) ? Number(part) : NaN));
  return more === undefined ? over / (under ?? 1) : NaN;
};

/** A token as it may stand in the state: no half characters, no novels. @param {string} text */
const cleaned = (text) =>
  text
    .replace(/\p{Surrogate}/gu, "\ufffd")
    .slice(0, LONGEST_TOKEN)
    .replace(/[\ud800-\udbff]$/, "");

/**
 * A row for a token that is added: the same one each time.
 * @param {number} i @param {number} width @param {number} low @param {number} high
 */
const freshRow = (i, width, low, high) => Array.from(uniforms(40 + i, width), (u) => low + Math.floor(u * (high - low + 1)));

/**
 * Step 9's numbers drawn anew. The same seed gives the same numbers, in every browser.
 * @param {Draw} draw @returns {Omit<Wide, "heads">}
 */
const drawWide = ({ kind, seed }) => {
  const width = 12,
    stream = (/** @type {number} */ which) => (seed * 4 + which) % 2 ** 32;
  const tenths = (/** @type {number} */ value) => Math.round(value * 10) / 10 + 0;
  const noise = [1, 2, 3].map((which) => rowsOf(normals(stream(which), width * width), width));
  const wq = mapped(noise[0], (value) => tenths(0.3 * value));
  const share = kind === "alike" ? 0.5 : 0;
  return {
    x: rowsOf(
      uniforms(stream(0), MOST_TOKENS * width).map((u) => Math.floor(u * 5) - 2),
      width,
    ),
    wq,
    wk: mapped(noise[1], (value, i, j) => tenths(share * wq[i][j] + 0.3 * value)),
    wv: mapped(noise[2], (value) => tenths(0.3 * value)),
    draw: { kind, seed },
  };
};

/** @param {Float64Array} numbers @param {number} width @returns {Matrix} */
const rowsOf = (numbers, width) =>
  Array.from({ length: numbers.length / width }, (_, i) => [...numbers.subarray(i * width, (i + 1) * width)]);

/**
 * The state before single cells are changed: so many tokens, and step 9's numbers from the example or a draw. Only what
 * differs from it needs to stand in the address.
 * @param {State} opening @param {string[]} tokens @param {string[]} target @param {Draw} draw @returns {State}
 */
const baseline = (opening, tokens, target, draw) => {
  const state = structuredClone(opening);
  const rows = (/** @type {Matrix} */ matrix, /** @type {number} */ n, /** @type {number} */ low) =>
    Array.from({ length: n }, (_, i) => matrix[i] ?? freshRow(i, matrix[0].length, low, 2));
  Object.assign(state, { tokens: [...tokens], target: [...target] });
  if (draw.kind) Object.assign(state.wide, drawWide(draw));
  state.x = rows(state.x, tokens.length, 0);
  state.y = rows(state.y, target.length, 0);
  state.wide.x = rows(state.wide.x, MOST_TOKENS, -2).slice(0, tokens.length);
  state.look = Math.min(state.look, tokens.length - 1);
  return state;
};

/** @param {State} state @returns {Draw} */
const drawOf = (state) => state.wide.draw ?? { kind: "", seed: 0 };

/** All matrices by the name under which their cells stand in the address. @param {State} state @returns {Record<string, Matrix>} */
const matricesOf = (state) => ({
  ...Object.fromEntries(MATRICES.map((name) => [name, /** @type {any} */ (state)[name]])),
  pad: [state.pad],
  ...Object.fromEntries(WIDE.map((name) => [`wide.${name}`, /** @type {any} */ (state.wide)[name]])),
});

/** @param {State} state @param {string} path such as "wq.1.3", "pad.0.2" or "random.seed" @returns {number | undefined} */
const valueAt = (state, path) => {
  if (path in WHOLE) return /** @type {any} */ (state.random)[path.slice(7)];
  const [, name, i, j] = path.match(/^([a-z.]+)\.(\d+)\.(\d+)$/) ?? [];
  const matrices = matricesOf(state);
  return Object.hasOwn(matrices, name ?? "") ? matrices[name][Number(i)]?.[Number(j)] : undefined;
};

/** @param {State} state @param {string} path @param {number} value */
const setAt = (state, path, value) => {
  if (path in WHOLE) /** @type {any} */ (state.random)[path.slice(7)] = value;
  else {
    const [, name, i, j] = path.match(/^([a-z.]+)\.(\d+)\.(\d+)$/) ?? [];
    matricesOf(state)[name][Number(i)][Number(j)] = value;
  }
};

/** @param {State} state */
const divisorsOf = (state) => state.wo.map((_, i) => i + 1).filter((h) => state.wo.length % h === 0);

/**
 * More or fewer tokens, every other number as it is.
 * @param {State} state @param {State} opening @param {string[]} tokens @param {string[]} target
 */
const resized = (state, opening, tokens, target) => {
  const next = baseline(opening, tokens, target, drawOf(state));
  const had = matricesOf(state),
    has = matricesOf(next);
  for (const [name, matrix] of Object.entries(has)) {
    matrix.forEach((row, i) => {
      if (had[name][i]) row.splice(0, row.length, ...had[name][i]);
    });
  }
  const { scale, causal, heads, random } = state;
  return Object.assign(next, {
    scale,
    causal,
    heads,
    random,
    look: Math.min(state.look, tokens.length - 1),
    wide: { ...next.wide, heads: state.wide.heads },
  });
};

/**
 * What differs from the opening state, as the address holds it.
 * @param {State} state @param {State} opening @returns {[string, string][]}
 */
const differences = (state, opening) => {
  const base = baseline(opening, state.tokens, state.target, drawOf(state));
  /** @type {[string, string][]} */
  const found = [];
  const add = (/** @type {string} */ name, /** @type {string} */ value, /** @type {string} */ usual) => {
    if (value !== usual) found.push([name, value]);
  };
  const listed = (/** @type {string[]} */ tokens) => tokens.map(encodeURIComponent).join(",");
  const named = (/** @type {Draw} */ { kind, seed }) => (kind ? `${kind}-${seed}` : "");
  add("tokens", listed(state.tokens), listed(opening.tokens));
  add("target", listed(state.target), listed(opening.target));
  add("draw", named(drawOf(state)), named(drawOf(opening)));
  add("scale", String(Number(state.scale)), String(Number(base.scale)));
  add("causal", String(Number(state.causal)), String(Number(base.causal)));
  add("heads", String(state.heads), String(base.heads));
  add("look", String(state.look + 1), String(base.look + 1));
  add("cut", String(state.wide.heads), String(base.wide.heads));
  for (const path of Object.keys(WHOLE)) add(path, String(valueAt(state, path)), String(valueAt(base, path)));
  const usual = matricesOf(base);
  for (const [name, matrix] of Object.entries(matricesOf(state))) {
    matrix.forEach((row, i) => row.forEach((value, j) => add(`${name}.${i}.${j}`, String(value), String(usual[name][i][j]))));
  }
  return found;
};

/** The state that an address describes. What it says of nothing we know, or of what cannot be, is passed over.
 * @param {Map<string, string>} said @param {State} opening @returns {State} */
const restored = (said, opening) => {
  const list = (/** @type {string} */ name, /** @type {string[]} */ usual) => {
    const written = said
      .get(name)
      ?.split(",")
      .slice(0, MOST_TOKENS)
      .map((token) => cleaned(decoded(token)));
    return written?.length ? written : usual;
  };
  const [, kind = "", seed = "0"] = said.get("draw")?.match(/^(alike|free)-(\d{1,6})$/) ?? [];
  const draw = kind ? /** @type {Draw} */ ({ kind, seed: Number(seed) }) : drawOf(opening);
  const state = baseline(opening, list("tokens", opening.tokens), list("target", opening.target), draw);
  const among = (/** @type {string} */ name, /** @type {number[]} */ allowed, /** @type {number} */ usual) =>
    allowed.find((value) => String(value) === said.get(name)) ?? usual;
  state.scale = Boolean(among("scale", [0, 1], Number(state.scale)));
  state.causal = Boolean(among("causal", [0, 1], Number(state.causal)));
  state.heads = among("heads", divisorsOf(state), state.heads);
  state.look =
    among(
      "look",
      state.tokens.map((_, i) => i + 1),
      state.look + 1,
    ) - 1;
  state.wide.heads = among("cut", CUTS, state.wide.heads);
  for (const [path, text] of said) {
    const value = valueAt(state, path) === undefined ? "" : parsed(text, path);
    if (typeof value === "number") setAt(state, path, value);
  }
  return state;
};

/** @param {string} text */
const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};
