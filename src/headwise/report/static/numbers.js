// @ts-check
// Numbers: as text, on a scale, in a column. What is below 1 is never shown as 1, what is above 0 never as 0.

const minus = (/** @type {string} */ text) => text.replace("-", "\u2212");

/** Four digits, all six that the page has where four would make 1 of what is below it. @param {number | null | undefined} value */
const exact = (value) => {
  if (value == null) return "undefined";
  const short = Number(value.toPrecision(4));
  return minus(String(Math.abs(value) < 1 && Math.abs(short) >= 1 ? value : short));
};

/** With so many decimals; "<0.01" where these would show 0, ">0.99" where 1. @param {number} value @param {number} decimals */
const fixed = (value, decimals, share = false) => {
  const text = value.toFixed(decimals), step = 10 ** -decimals;
  if (value && !Number(text)) return value > 0 ? `<${step.toFixed(decimals)}` : `>\u2212${step.toFixed(decimals)}`;
  if (share && value < 1 && Number(text) >= 1) return `>${(1 - step).toFixed(decimals)}`;
  return minus(text);
};

/** A few characters for a cell. @param {number} value @param {number} width @param {boolean} share */
const brief = (value, width, share) => {
  const size = Math.abs(value), narrow = width < 40;
  if (size >= 1e4) return minus(`${Math.round(value / 1000)}k`);
  if (Number.isInteger(value) && size < 10) return minus(String(value));
  const text = fixed(value, size >= 100 ? 0 : size >= 10 ? (narrow ? 0 : 1) : 2, share);
  if (!narrow) return text;
  return /^\u2212?[1-9]\.\d\d$/.test(text) ? minus(value.toFixed(1)) : text.replace(/^([<>]?\u2212?)0\./, "$1.");
};

/** The cells of a column of the table, as html.py writes them. @param {Column} numbers @param {boolean} share */
const columnText = (numbers, share) => {
  const largest = Math.max(0, ...numbers.map((value) => Math.abs(value ?? 0)));
  const decimals = largest < 10 ? 3 : largest < 100 ? 2 : largest < 10_000 ? 1 : 0;
  return numbers.map((value) => (value == null ? "\u2013" : fixed(value, decimals, share).replace(/\B(?=(\d{3})+$|(\d{3})+\.)/g, ",")));
};

/** The ends of the colour scale. @param {string} name @param {boolean} stretch @returns {[number, number] | null} */
const range = (name, stretch) => {
  if (byName.get(name)?.fixed && !stretch) return [0, 1];
  const known = rowsOfGroup().flatMap((row) => column(name)[row] ?? []);
  return known.length ? [Math.min(...known), Math.max(...known)] : null;
};

/** @param {number} value @param {[number, number]} ends */
const place = (value, [low, high]) => (high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0.5);

/** How the rows of a head spread. @param {number} row @param {string} name */
const describe = (row, name) => {
  const known = ["std", "se", "min", "max"].filter((statistic) => column(name, statistic).length);
  return known.map((statistic) => `${statistic} ${exact(column(name, statistic)[row])}`).join(" · ");
};
