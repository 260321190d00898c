// @ts-check
// What the workings are made of: matrices to read and to edit, weights in colour, products, tables.

/**
 * @typedef {object} Look
 * @property {string} name with symbols, such as "W^Q"
 * @property {string[]} [rows] the rows' tokens; counted when there are none
 * @property {string[]} [columns]
 * @property {string} [edit] the path under which the cells can be changed
 * @property {"tokens" | "target"} [editRows] the rows' tokens can be changed too
 * @property {number} [cut] a line after every so many columns
 * @property {string} [kind] a class
 */

/** @param {string | undefined} text @param {number} i @param {"row" | "col"} scope */
const head = (text, i, scope) =>
  text === undefined ? el("th", { scope, class: "count" }, i + 1) : el("th", { scope, class: "name", title: text }, token(text));

/** @param {string[] | undefined} columns @param {number} count */
const headRow = (columns, count) =>
  el(
    "thead",
    null,
    el(
      "tr",
      null,
      el("td", { class: "corner" }),
      Array.from({ length: count }, (_, j) => head(columns?.[j], j, "col")),
    ),
  );

/** A matrix in brackets, its name and shape under it. @param {Matrix} values @param {Look} look */
const matrix = (values, look) => {
  const places = decimalsOf(values),
    width = values[0].length;
  const body = values.map((row, i) =>
    el(
      "tr",
      null,
      look.editRows ? tokenHead(look.editRows, look.rows?.[i] ?? "", i) : head(look.rows?.[i], i, "row"),
      row.map((value, j) => {
        const cut = look.cut && j > 0 && j % look.cut === 0 ? " cut" : "";
        return look.edit
          ? el("td", { class: `input${cut}` }, cell(`${look.edit}.${i}.${j}`, value, cellName(look, i, j)))
          : el("td", { class: cut || null }, cellText(value, places));
      }),
    ),
  );
  return el(
    "figure",
    { class: `matrix ${look.kind ?? ""}${look.edit ? " edit" : ""}` },
    el("div", { class: "scroll" }, el("table", { "aria-label": look.name }, headRow(look.columns, width), el("tbody", null, body))),
    el("figcaption", null, symbols(look.name), " ", el("span", { class: "shape" }, `${values.length} × ${width}`)),
    look.edit && problems(`${look.edit}.`),
  );
};

/** @param {Look} look @param {number} i @param {number} j */
const cellName = (look, i, j) => {
  const of = look.rows?.[i] === undefined ? "" : ` (${look.rows[i]})`;
  return `${look.name} ${ui("row")} ${i + 1}${of} ${ui("column")} ${j + 1}`;
};

/** An input for one number. @param {string} path @param {number} value @param {string} name */
const cell = (path, value, name) => {
  const draft = view.drafts.get(path);
  return el("input", {
    class: "cell",
    type: "text",
    inputmode: "decimal",
    autocomplete: "off",
    spellcheck: "false",
    enterkeyhint: "next",
    "data-cell": path,
    "aria-label": name,
    "aria-invalid": draft?.why ? "true" : null,
    "aria-errormessage": draft?.why ? `problem-${path}` : null,
    value: draft?.text ?? typed(value),
  });
};

/** @param {"tokens" | "target"} list @param {string} text @param {number} i */
const tokenHead = (list, text, i) =>
  el(
    "th",
    { scope: "row", class: "name" },
    el("input", {
      class: "token",
      type: "text",
      dir: "auto",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      enterkeyhint: "next",
      "data-list": list,
      "data-index": i,
      "aria-label": `${ui("token")} ${i + 1}`,
      value: text,
    }),
  );

/** What was typed and is no number. @param {string} prefix of the paths */
const problems = (prefix) =>
  [...view.drafts]
    .filter(([path, draft]) => draft.why && path.startsWith(prefix))
    .map(([path, draft]) => {
      const [low, high] = WHOLE[path] ?? [0, 0];
      const why = ui(draft.why, { low, high: whole(high) }),
        found = document.querySelector(`[data-cell="${path}"]`);
      const value = typed(valueAt(state, path) ?? 0);
      return el(
        "p",
        { class: "problem", role: "alert", id: `problem-${path}` },
        ui("kept", { cell: found?.getAttribute("aria-label") ?? path, text: draft.text, why, value }),
      );
    });

/**
 * Each token in its own direction, whatever stands around it.
 * @param {string} from @param {string} to @param {number} weight @param {boolean} seen
 */
const inWords = (from, to, weight, seen = true) => {
  const [a, b] = [from, to].map((text) => `\u2068${text.trim() ? shortened(text) : "∅"}\u2069`);
  return ui(seen ? "gives" : "hidden", { a, b, w: number(weight) });
};

/**
 * Weights in colour. A hidden cell is hatched: a mask is not a weight of 0.
 * @param {Matrix} p
 * @param {{name: Child, label?: string, rows: string[], columns: string[], seen?: (i: number, j: number) => boolean, small?: boolean,
 *   extra?: {name: string, values: number[], mean?: number}[], shape?: boolean, under?: Child}} look
 */
const heat = (p, { name, label, rows, columns, seen = () => true, small, extra = [], shape = true, under }) => {
  const means = extra.some((one) => one.mean !== undefined);
  return el(
    "figure",
    { class: `matrix heat${small ? " small" : ""}` },
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { role: "grid", "aria-label": label ?? (typeof name === "string" ? name : ui("focus_map")) },
        el(
          "thead",
          null,
          el(
            "tr",
            null,
            el("td", { class: "corner" }),
            columns.map((text, j) => head(text, j, "col")),
            extra.map((one) => el("th", { scope: "col", class: "extra" }, one.name)),
          ),
        ),
        el(
          "tbody",
          null,
          p.map((row, i) =>
            el(
              "tr",
              null,
              head(rows[i], i, "row"),
              row.map((weight, j) => heatCell(weight, seen(i, j), inWords(rows[i], columns[j], weight, seen(i, j)), i + j === 0)),
              extra.map((one) => el("td", { class: "extra" }, number(one.values[i]))),
            ),
          ),
        ),
        means &&
          el(
            "tfoot",
            null,
            el(
              "tr",
              null,
              el("th", { scope: "row" }, ui("mean")),
              el("td", { colspan: columns.length }),
              extra.map((one) => el("td", { class: "extra" }, number(one.mean ?? 0))),
            ),
          ),
      ),
    ),
    el(
      "figcaption",
      null,
      typeof name === "string" ? symbols(name) : name,
      shape && " ",
      shape && el("span", { class: "shape" }, `${p.length} × ${columns.length}`),
    ),
    under && el("p", { class: "under" }, under),
  );
};

/** @param {number} weight @param {boolean} seen @param {string} words @param {boolean} first */
const heatCell = (weight, seen, words, first) =>
  el(
    "td",
    {
      role: "gridcell",
      tabindex: first ? 0 : -1,
      "aria-label": words,
      "data-tip": true,
      t: seen ? weight : null,
      class: seen ? null : "hidden",
    },
    seen ? number(weight) : "–",
  );

/** A causal limit, where there is one. @param {boolean} causal */
const seenBy = (causal) => (/** @type {number} */ i, /** @type {number} */ j) => !causal || j <= i;

/** Things in a row with signs between them, as a formula reads. @param {...Child} parts */
const expression = (...parts) => el("div", { class: "expression" }, parts);

/** @param {Child} sign @param {string} [kind] */
const sign = (sign, kind = "") => el("span", { class: `sign ${kind}` }, sign);

/** A step from one matrix to the next, with what is done on the arrow. @param {...Child} what */
const arrow = (...what) => el("span", { class: "sign arrow" }, el("small", null, what), el("span", null, "⟶"));

/** What belongs together on a line. @param {...Child} parts */
const term = (...parts) => el("div", { class: "term" }, parts);

/** @param {Child} title @param {...Child} children */
const part = (title, ...children) => el("div", { class: "part" }, title && el("h4", null, title), children);

/** @param {string} act @param {Child} text @param {Attributes} [attributes] */
const button = (act, text, attributes = {}) => el("button", { type: "button", "data-act": act, ...attributes }, text);

/**
 * Buttons of which one is chosen.
 * @param {string} act @param {Child} label @param {string} name @param {{value: number, text: Child}[]} options @param {number} chosen
 */
const choice = (act, label, name, options, chosen) =>
  el(
    "div",
    { class: "choice", role: "group", "aria-label": name },
    el("span", { class: "label" }, label),
    options.map(({ value, text }) => button(act, text, { "data-value": value, "aria-pressed": String(value === chosen) })),
  );

/** The options that hold in several steps. @param {("scale" | "causal")[]} names */
const options = (...names) =>
  el(
    "div",
    { class: "options" },
    names.map((name) =>
      el(
        "label",
        { class: "check" },
        el("input", { type: "checkbox", "data-option": name, checked: state[name] }),
        el("span", null, symbols(ui(name))),
      ),
    ),
  );

/**
 * A plain table.
 * @param {{caption?: Child, head: Child[], rows: Child[][], kind?: string, groups?: [Child, number][], label?: string}} table
 */
const table = ({ caption, head, rows, kind = "", groups, label }) =>
  el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: `plain ${kind}`, "aria-label": label },
      caption && el("caption", null, caption),
      el(
        "thead",
        null,
        groups &&
          el(
            "tr",
            null,
            groups.map(([text, span]) => el("th", { colspan: span, scope: span > 1 ? "colgroup" : "col" }, text)),
          ),
        el(
          "tr",
          null,
          head.map((text) => el("th", { scope: "col" }, text)),
        ),
      ),
      el(
        "tbody",
        null,
        rows.map(([first, ...others]) =>
          el(
            "tr",
            null,
            el("th", { scope: "row" }, first),
            others.map((text) => el("td", null, text)),
          ),
        ),
      ),
    ),
  );

/** What the colours mean. @param {boolean} [masked] */
const legend = (masked) =>
  el(
    "div",
    { class: "legend" },
    el("span", null, "0"),
    el(
      "span",
      { class: "ramp", "aria-hidden": "true" },
      Array.from({ length: 24 }, (_, i) => el("i", { t: i / 23 })),
    ),
    el("span", null, "1"),
    masked && el("span", { class: "swatch" }, el("i", { class: "hidden", "aria-hidden": "true" }), ui("hidden_legend")),
    el("span", { class: "how" }, ui("heat_hint")),
  );
