// @ts-check
// The workings of steps 1 to 7.

/** By step. @type {Record<string, (state: State, numbers: Numbers) => Child>} */
const workings = {};

/** @param {"tokens" | "target"} list */
const rowButtons = (list) =>
  el(
    "div",
    { class: "buttons" },
    button("add", ui("add_token"), { "data-list": list, disabled: state[list].length >= MOST_TOKENS }),
    button("remove", ui("remove_token"), { "data-list": list, disabled: state[list].length <= 1 }),
  );

workings.tokens = (state) => [
  el("p", { class: "hint" }, ui("edit_hint")),
  expression(matrix(state.x, { name: "X", rows: state.tokens, edit: "x", editRows: "tokens" })),
  rowButtons("tokens"),
];

workings.qkv = (state, { qkv }) =>
  /** @type {const} */ (["q", "k", "v"]).map((name) => {
    const letter = name.toUpperCase();
    return expression(
      matrix(state.x, { name: "X", rows: state.tokens, kind: "quiet" }),
      sign("⋅"),
      term(matrix(state[/** @type {"wq"} */ (`w${name}`)], { name: `W^${letter}`, edit: `w${name}` }), sign("=")),
      matrix(qkv[name], { name: letter, rows: state.tokens }),
    );
  });

workings.weights = (state, { qkv, scores }) => {
  const { tokens } = state,
    divisor = number(scores.divisor);
  return [
    options("scale", "causal"),
    expression(
      matrix(qkv.q, { name: "Q", rows: tokens, kind: "quiet" }),
      sign("⋅"),
      term(matrix(transposed(qkv.k), { name: "Kᵀ", columns: tokens, kind: "quiet" }), sign("=")),
      matrix(scores.products, { name: "Q Kᵀ", rows: tokens, columns: tokens }),
    ),
    expression(
      term(
        arrow(state.scale ? symbols(`/ √d_k = ${divisor}`) : "/ 1"),
        matrix(scores.scores, { name: state.scale ? "Q Kᵀ / √d_k" : "Q Kᵀ", rows: tokens, columns: tokens }),
      ),
      term(
        arrow("softmax"),
        heat(scores.weights, {
          name: "P",
          label: ui("focus_map"),
          rows: tokens,
          columns: tokens,
          seen: seenBy(state.causal),
          extra: [
            { name: ui("self_focus"), values: scores.self_focus, mean: scores.mean_self_focus },
            { name: ui("entropy"), values: scores.entropy, mean: scores.mean_entropy },
          ],
        }),
      ),
    ),
    legend(state.causal),
  ];
};

workings.output = (state, { qkv, scores, output, counts }) => {
  const { tokens, look } = state,
    name = `z_${look + 1}`;
  return [
    expression(
      heat(scores.weights, { name: "P", label: ui("focus_map"), rows: tokens, columns: tokens, seen: seenBy(state.causal) }),
      sign("⋅"),
      term(matrix(qkv.v, { name: "V", rows: tokens }), sign("=")),
      matrix(output.z, { name: "Z", rows: tokens }),
    ),
    part(
      null,
      choice(
        "look",
        ui("looking_at"),
        ui("looking_at"),
        tokens.map((text, value) => ({ value, text: token(text) })),
        look,
      ),
      weightedSum(tokens, scores.weights[look], qkv.v, output, name, seenBy(state.causal), look),
    ),
    part(
      null,
      table({
        kind: "counts",
        head: [ui("tokens_count"), ...counts.map((one) => whole(one.tokens))],
        rows: /** @type {const} */ ([
          "recurrent_steps",
          "attention_steps",
          "attention_products",
          "recurrent_multiplications",
          "attention_multiplications",
        ]).map((key) => [ui(key), ...counts.map((one) => whole(one[key]))]),
      }),
    ),
  ];
};

/**
 * Figure 5: value rows, each taken with its weight, and their sum.
 * @param {string[]} tokens @param {number[]} weights @param {Matrix} v @param {Numbers["output"]} output @param {string} name
 * @param {(i: number, j: number) => boolean} seen @param {number} look
 */
const weightedSum = (tokens, weights, v, output, name, seen, look) => {
  const places = decimalsOf(v),
    width = v[0].length;
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "mix", "aria-label": `${ui("looking_at")} ${tokens[look]}` },
      el(
        "tbody",
        null,
        tokens.map((text, j) =>
          el(
            "tr",
            null,
            el("td", { class: "op" }, j > 0 ? "+" : ""),
            el("th", { scope: "row", class: "name", title: text }, token(text)),
            heatCell(weights[j], seen(look, j), inWords(tokens[look], text, weights[j], seen(look, j)), j === 0),
            el("td", { class: "op" }, "⋅"),
            v[j].map((value) => el("td", { class: "value" }, cellText(value, places))),
            el("td", { class: "op" }, "="),
            output.parts[j].map((value) => el("td", { class: "value" }, cellText(value, 2))),
          ),
        ),
      ),
      el(
        "tfoot",
        null,
        el(
          "tr",
          null,
          el("td", { class: "op" }),
          el("th", { scope: "row", colspan: 3 + width, class: "sum" }, symbols(name), " ", token(tokens[look])),
          el("td", { class: "op" }, "="),
          output.sum.map((value) => el("td", { class: "value" }, cellText(value, 2))),
        ),
      ),
    ),
  );
};

workings.scale = (state, { random }) => {
  const measures = /** @type {const} */ (["deviation", "entropy", "largest", "gradient"]);
  return [
    el(
      "div",
      { class: "options" },
      /** @type {const} */ (["seed", "queries", "keys"]).map((name) =>
        el("label", null, ui(name), " ", cell(`random.${name}`, state.random[name], ui(name))),
      ),
    ),
    problems("random."),
    scaleChart(random, state.random.keys),
    table({
      kind: "random",
      groups: [["", 1], ...measures.map((key) => /** @type {[Child, number]} */ ([ui(key), 2]))],
      head: [symbols("d_k"), ...measures.flatMap(() => [ui("unscaled"), ui("scaled")])],
      rows: random.map((one) => [whole(one.d_k), ...measures.flatMap((key) => [number(one.unscaled[key]), number(one.scaled[key])])]),
    }),
  ];
};

workings.masks = (state, { masks }) => {
  const tokens = [...state.tokens, "[PAD]"],
    last = tokens.length - 1;
  return [
    expression(matrix([state.pad], { name: ui("pad_row"), rows: ["[PAD]"], edit: "pad" })),
    el(
      "div",
      { class: "gallery" },
      /** @type {const} */ (["none", "padding", "causal", "both"]).map((name) =>
        heat(masks[name], {
          name: ui(name),
          label: ui(name),
          rows: tokens,
          columns: tokens,
          shape: false,
          seen: (i, j) => !((name === "causal" || name === "both") && j > i) && !((name === "padding" || name === "both") && j === last),
        }),
      ),
    ),
    legend(true),
  ];
};

workings.places = (state, { places }) => {
  const { tokens, target } = state,
    [n, t] = [tokens.length, target.length];
  const shape = (/** @type {number} */ rows, /** @type {number} */ columns) => `${rows} × ${columns}`;
  return [
    table({
      kind: "text",
      head: [ui("place"), symbols(ui("from_q")), symbols(ui("from_kv")), ui("mask"), ui("shape")],
      rows: [
        [ui("encoder"), [symbols("X"), ui("colon"), ui("source")], [symbols("X"), ui("colon"), ui("source")], ui("padding"), shape(n, n)],
        [
          ui("decoder"),
          [symbols("Y"), ui("colon"), ui("target")],
          [symbols("Y"), ui("colon"), ui("target")],
          `${ui("causal")}${ui("list")}${ui("padding")}`,
          shape(t, t),
        ],
        [ui("cross"), [symbols("Y"), ui("colon"), ui("target")], [symbols("X"), ui("colon"), ui("output_of")], ui("padding"), shape(t, n)],
      ],
    }),
    expression(matrix(state.y, { name: "Y", rows: target, edit: "y", editRows: "target" })),
    rowButtons("target"),
    el(
      "div",
      { class: "gallery" },
      heat(places.encoder, { name: ui("encoder"), rows: tokens, columns: tokens }),
      heat(places.decoder, { name: ui("decoder"), rows: target, columns: target, seen: seenBy(true) }),
      heat(places.cross, { name: ui("cross"), rows: target, columns: tokens }),
    ),
    legend(true),
  ];
};
