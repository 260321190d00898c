// @ts-check
// The texts of both languages, with their numbers filled in as contents.py and prose.py do it.

/** @typedef {{id: string, title: string, figure: string, text: string, formula?: string, after?: string, ask: string, choices: string[],
 *   right: number, answer: string, note?: string}} Step */
/** @typedef {{id: string, ask: string, answer: number, tolerance: number, hint: string, because: string}} Exercise */
/**
 * @typedef {{language: string, title: string, subtitle: string, lead: string, steps: Step[], exercises: Exercise[],
 *   ui: Record<string, string>}} Texts
 */
/**
 * @typedef {{model: string, tokens: string[], self_focus: Matrix, entropy: Matrix, facts: Record<string, string | number>,
 *   thousandths: Matrix[]}} Maps
 */
/**
 * What page.py writes.
 * @typedef {object} Data
 * @property {string} language
 * @property {Record<string, Texts>} languages
 * @property {State} example
 * @property {State} opening
 * @property {Maps} maps
 * @property {string} version
 * @property {string} word
 * @property {string} symbol
 */

/** @type {Data} */
const data = JSON.parse(document.getElementById("data")?.textContent ?? "");

const PLACE = /\{([\w.]+)(?::(\d|e))?\}/g;
const WORD = new RegExp(data.word, "g");
const SYMBOL = new RegExp(`^${data.symbol}$`);

/** Decimals as Python rounds them: a tie goes to the even digit. @param {number} value @param {number} decimals */
const fixed = (value, decimals) => {
  const text = value.toFixed(decimals);
  if (Math.abs(((Math.abs(value) * 10 ** decimals) % 1) - 0.5) > 1e-6) return text;
  const all = Math.abs(value).toFixed(Math.min(100, decimals + 60));
  const tie = /^50*$/.test(all.slice(all.length - 60)) && /[13579]$/.test(text);
  return tie ? (value - (Math.sign(value) * 10 ** -decimals) / 2).toFixed(decimals) : text;
};

/** A number as the lesson writes it. @param {number} value @param {number} [decimals] */
const number = (value, decimals = 2) => {
  const text = fixed(value, decimals);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "\u2212");
};

const THOUSANDS = new Intl.NumberFormat("en-US");

/** @param {number} value */
const whole = (value) => THOUSANDS.format(value).replace("-", "\u2212");

/** A number that is 0 but for rounding. @param {number} value */
const tiny = (value) => {
  if (value === 0) return "0";
  const [, first, rest] = value.toExponential(60).match(/^([2468])\.50+(e.*)$/) ?? [];
  return (first ? first + rest : value.toExponential(0)).replaceAll("-", "\u2212");
};

/** With as few decimals as a number needs; a very large one by its power of ten. @param {number} value @param {number} decimals */
const cellText = (value, decimals) =>
  Math.abs(value) < 1e5 ? number(value, decimals) : value.toExponential(1).replace("e+", "e").replaceAll("-", "\u2212");

/** How many decimals show all numbers of a matrix as they are, 2 at most. @param {Matrix} matrix */
const decimalsOf = (matrix) =>
  [0, 1].find((places) =>
    matrix.every((row) => row.every((value) => Math.abs(value - Number(value.toFixed(places))) < 1e-9 * Math.max(1, Math.abs(value)))),
  ) ?? 2;

/** A number in an input: all its digits. @param {number} value */
const typed = (value) => String(value).replaceAll("-", "\u2212");

/** A token in a sentence may be long; the tables say all of it. @param {string} text */
const shortened = (text) => ([...text].length > 24 ? `${[...text].slice(0, 23).join("")}…` : text);

/** @param {string} text */
const token = (text) => el("bdi", { class: "token", dir: "auto" }, text.trim() ? shortened(text) : "∅");

/** Texts whose symbols are set: the same ones come again after each change. @type {Map<string, Child>} */
const setTexts = new Map();

/** Plain text in which `d_k` is a d with an index. @param {string} plain @returns {Child} */
const symbols = (plain) => {
  const known = setTexts.get(plain);
  if (known) return known;
  if (setTexts.size > 2000) setTexts.clear();
  const made = typeset(plain);
  setTexts.set(plain, made);
  return made;
};

/** @param {string} plain @returns {Child} */
const typeset = (plain) => {
  // A sign does not part from its two sides at the end of a line; and Chinese type has a wide middle dot.
  const text = plain.replaceAll(" · ", " ⋅ ").replace(/ ([=/×]) /g, "\u00a0$1\u00a0");
  /** @type {Child[]} */
  const made = [];
  let start = 0;
  for (const match of text.matchAll(WORD)) {
    if (!SYMBOL.test(match[0])) continue;
    const between = text.slice(start, match.index);
    made.push(between === " " && start > 0 ? "\u00a0" : between.replace(/√$/, ""), symbol(match[0], between.endsWith("√")));
    start = match.index + match[0].length;
  }
  return [...made, text.slice(start)];
};

/** @param {string} word @param {boolean} root under a root @returns {Child} */
const symbol = (word, root) => {
  const [, base, below, above, turned] = word.match(/^([A-Za-z]+)(?:_([a-z0-9]+))?(?:\^([A-Z]))?(ᵀ)?$/) ?? ["", word];
  const letter = (/** @type {string} */ text) => (/^[A-Za-z]$/.test(text) ? el("i", null, text) : text);
  const indices =
    below && above
      ? el("span", { class: "both" }, el("sup", null, letter(above)), el("sub", null, letter(below)))
      : below
        ? el("sub", null, letter(below))
        : above
          ? el("sup", null, letter(above))
          : null;
  const whole = [letter(base), indices, turned && el("sup", null, "T")];
  return el("span", { class: "sym" }, root ? ["√", el("span", { class: "rooted" }, whole)] : whole);
};

/** What a place in a text stands for. @param {string} path @param {State} state @param {Numbers} numbers @returns {unknown} */
const lookup = (path, state, numbers) => {
  /** @type {any} */
  let found = { state, model: data.maps.facts, ...numbers };
  for (const part of path.split(".")) {
    const key = !Array.isArray(found) ? part : part === "look" ? state.look : part === "last" ? found.length - 1 : Number(part);
    if (Array.isArray(found) && Number(key) >= found.length) return null;
    found = found[key];
  }
  return found;
};

/** @param {string} text @param {State} state @param {Numbers} numbers @returns {Child} */
const inline = (text, state, numbers) => {
  /** @type {Child[]} */
  const made = [];
  let start = 0;
  for (const match of text.matchAll(PLACE)) {
    made.push(symbols(text.slice(start, match.index)), placed(match[1], match[2], lookup(match[1], state, numbers)));
    start = match.index + match[0].length;
  }
  return [...made, symbols(text.slice(start))];
};

/** @param {string} path @param {string | undefined} form @param {unknown} value @returns {Child} */
const placed = (path, form, value) => {
  if (Array.isArray(value)) return value.map((one, i) => [i > 0 && " ", token(String(one))]);
  if (typeof value === "string" && /^(state|places)\b/.test(path)) return token(value);
  return el("span", { class: "n" }, filledNumber(path, form, value));
};

/** @param {string} path @param {string | undefined} form @param {unknown} value */
const filledNumber = (path, form, value) => {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  // Python knows an integer by its type; here the path says which numbers count something.
  const counts = Number.isInteger(value) && /^(state|model|counts)\.|\.(d_k|h)$/.test(path);
  return form === "e" ? tiny(value) : counts ? whole(value) : number(value, Number(form ?? 2));
};

/** The text alone. @param {string} text @param {State} state @param {Numbers} numbers */
const filled = (text, state, numbers) =>
  text.replace(PLACE, (_, path, form) => {
    const value = lookup(path, state, numbers);
    return Array.isArray(value) ? value.join(" ") : filledNumber(path, form, value);
  });

/** @param {string} text @param {State} state @param {Numbers} numbers @returns {Child} */
const paragraphs = (text, state, numbers) =>
  text
    .trim()
    .split("\n\n")
    .filter(Boolean)
    .map((part) => el("p", null, inline(part, state, numbers)));

/** What the reader sees, apart from the numbers. `drafts` are inputs as they were typed, while they are edited or no numbers. */
const view = {
  language: data.language,
  everything: false,
  open: /** @type {Set<string>} */ (new Set()),
  choices: /** @type {Map<string, number>} */ (new Map()),
  done: /** @type {Set<string>} */ (new Set()),
  hints: /** @type {Set<string>} */ (new Set()),
  answers: /** @type {Map<string, string>} */ (new Map()),
  checked: /** @type {Map<string, boolean>} */ (new Map()),
  drafts: /** @type {Map<string, {text: string, why: string}>} */ (new Map()),
  layer: 0,
};

const words = () => data.languages[view.language];

/** One of the page's own words. @param {string} key @param {Record<string, string | number>} [named] */
const ui = (key, named = {}) => (words().ui[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => String(named[name] ?? ""));
