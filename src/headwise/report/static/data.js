// @ts-check
// What the page holds, and what a reader has chosen. The files of this folder are read one after another, in one scope.
"use strict";

/** @typedef {{name: string, title: string, formula: string, unit: string, reading: string, summary: string, fixed: boolean}} Measure */
/** @typedef {(number | null)[]} Column */
/**
 * What payload.py writes: every list has an entry per table row.
 * @typedef {object} Data
 * @property {Measure[]} measures
 * @property {string[]} by
 * @property {string[]} groups
 * @property {{label: string[], phase: string[], kind: string[], group: number[], layer: number[], head: number[], call: number[],
 *   kv_head: number[], rows: number[]}} heads
 * @property {Record<string, string>} names
 * @property {Record<string, Record<string, Column>>} values
 * @property {{kinds: Kind[], of: [number, number, number | null, string?][][]}} roles by number in kinds
 * @property {{name: string, rows: number[], values: Record<string, Record<string, Column>>}[]} labels
 * @property {{strongest: ([number, number | null, number | null][] | null)[], tokens: Record<string, string>} | null} keys
 * @property {Pairs | null} pairs
 */
/** @typedef {{name: string, tag: string, evidence: string, threshold: string, heads: number}} Kind */
/** Name, label ("positional" has its offset there), value, its error over sequences. @typedef {[string, string, number, number | null]} Role */
/** @typedef {Measure & {alike: boolean, ends: [number, number], left_out: boolean}} PairMeasure */
/** @typedef {{layer: number, call: number, phase: string, kind: string, heads: number, name: string,
 *   values: Record<string, Column>, errors: Record<string, Column>}} Place the pairs of one layer: (0, 1), (0, 2), ... */
/** @typedef {{measures: PairMeasure[], places: Place[], top: Record<string, [number, number, number, number, number | null][]>}} Pairs */

/** @template {HTMLElement} T @param {string} id @returns {T} */
const find = (id) => /** @type {T} */ (document.getElementById(id));

/** @type {Data} */
const data = JSON.parse(find("data").textContent ?? "");
const { heads, measures, values } = data;
/** The roles of each row. @type {Role[][]} */
const rolesOf = data.roles.of.map((found) => found.map(([kind, value, error, offset]) => {
  const { name } = data.roles.kinds[kind];
  return [name, offset === undefined ? name : `${name}(${offset})`, value, error];
}));
/** @type {Map<string, Measure>} */
const byName = new Map(measures.map((measure) => [measure.name, measure]));

/** The rows of one label, or -1 for all rows; the role that is looked for; whether cells show tags instead of numbers. */
const state = { measure: measures[0]?.name ?? "", group: 0, stretch: true, chosen: -1, sort: "", up: true, label: -1, role: "", tags: false };
/** Grid cells by table row. @type {Map<number, HTMLTableCellElement>} */
const cells = new Map();
/** The same cells as they lie, for the arrow keys. @type {(number | undefined)[][]} */
let lattice = [];

/**
 * An element with text or children. Text only ever goes through textContent: names and tokens are not ours.
 * @param {string} tag @param {Record<string, string>} [attributes] @param {...(Node | string)} children
 */
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

/** @param {string} name @param {string} [statistic] @returns {Column} */
const column = (name, statistic = "mean") => (data.labels[state.label]?.values ?? values)[name]?.[statistic] ?? [];

/** How many rows the numbers of a head rest on. @param {number} row */
const rowsOf = (row) => (data.labels[state.label]?.rows ?? heads.rows)[row];

/** @param {number} row */
const hasRole = (row) => !state.role || rolesOf[row].some(([name]) => name === state.role);

/** @param {number} row */
const tagsOf = (row) => rolesOf[row].map(([name]) => data.roles.kinds.find((kind) => kind.name === name)?.tag ?? "").join("");

const rowsOfGroup = () => heads.label.map((_, row) => row).filter((row) => heads.group[row] === state.group);
