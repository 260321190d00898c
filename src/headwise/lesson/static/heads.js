// @ts-check
// The workings of steps 8 to 10: several heads.

workings.heads = (state, { heads: found, qkv }) => {
  const { tokens, heads: h } = state,
    seen = seenBy(state.causal);
  return [
    el(
      "div",
      { class: "options" },
      choice(
        "heads",
        symbols(ui("heads")),
        ui("heads"),
        divisorsOf(state).map((value) => ({ value, text: String(value) })),
        h,
      ),
      options("scale", "causal"),
    ),
    part(
      symbols(ui("separate")),
      el(
        "div",
        { class: "cards" },
        found.heads.map((one, i) => headCard(one, i + 1, tokens, seen)),
      ),
    ),
    part(
      null,
      expression(
        matrix(found.concat, { name: h > 1 ? `Concat(Z_1${h > 2 ? " … " : ", "}Z_${h})` : "Z_1", rows: tokens, cut: found.d_k }),
        sign("⋅"),
        term(matrix(state.wo, { name: "W^O", edit: "wo" }), sign("=")),
        matrix(found.out, { name: "MultiHead(X)", rows: tokens, kind: "result" }),
      ),
    ),
    part(
      ui("fused"),
      expression(
        matrix(qkv.q, { name: "Q = X W^Q", rows: tokens, cut: found.d_k }),
        matrix(qkv.k, { name: "K = X W^K", rows: tokens, cut: found.d_k }),
        matrix(qkv.v, { name: "V = X W^V", rows: tokens, cut: found.d_k }),
        sign("→", "wide"),
        matrix(found.fused_out, { name: "MultiHead(X)", rows: tokens, kind: "result" }),
      ),
      el("p", { class: "remark" }, ui("difference"), ui("colon"), el("span", { class: "n" }, tiny(found.difference))),
    ),
  ];
};

/** @param {Numbers["heads"]["heads"][0]} one @param {number} i @param {string[]} tokens @param {(i: number, j: number) => boolean} seen */
const headCard = (one, i, tokens, seen) =>
  el(
    "section",
    { class: "card" },
    el("h5", null, ui("head"), " ", i),
    el(
      "div",
      { class: "trio" },
      /** @type {const} */ (["q", "k", "v"]).map((name) =>
        el(
          "div",
          null,
          matrix(one[/** @type {"wq"} */ (`w${name}`)], { name: `W_${i}^${name.toUpperCase()}`, kind: "quiet" }),
          matrix(one[name], { name: `${name.toUpperCase()}_${i}`, rows: tokens }),
        ),
      ),
    ),
    expression(
      heat(one.weights, {
        name: "P",
        label: `${ui("head")} ${i}`,
        rows: tokens,
        columns: tokens,
        seen,
        shape: false,
        under: [ui("self_focus"), " ", number(one.mean_self_focus), " ⋅ ", ui("entropy"), " ", number(one.mean_entropy)],
      }),
      sign(symbols(`⋅ V_${i} =`), "wide"),
      matrix(one.z, { name: `Z_${i}`, rows: tokens }),
    ),
  );

workings.cuts = (state, { cuts }) => {
  const { tokens, wide } = state,
    chosen = cuts[CUTS.indexOf(wide.heads)],
    draw = drawOf(state);
  const origin = draw.kind ? `${ui(`tally_${draw.kind}`)}${ui("colon")}${ui("drawn_numbers", { n: draw.seed })}` : ui("example_numbers");
  return [
    el(
      "div",
      { class: "buttons" },
      button("draw", symbols(ui("draw_alike")), { "data-value": "alike" }),
      button("draw", symbols(ui("draw_free")), { "data-value": "free" }),
      button("draw", ui("example_numbers"), { "data-value": "", disabled: !draw.kind }),
      el("span", { class: "origin", role: "status" }, symbols(origin)),
    ),
    el(
      "details",
      { class: "given" },
      el("summary", null, symbols(ui("matrices"))),
      matrix(wide.x, { name: "X", rows: tokens, edit: "wide.x" }),
      /** @type {const} */ (["q", "k", "v"]).map((name) =>
        matrix(wide[/** @type {"wq"} */ (`w${name}`)], { name: `W^${name.toUpperCase()}`, edit: `wide.w${name}` }),
      ),
    ),
    el(
      "div",
      { class: "cuts" },
      cuts.map((cut) =>
        el(
          "div",
          { class: "cutting" },
          el(
            "div",
            { class: "facts" },
            el("h4", null, symbols(`h = ${cut.h}`)),
            el(
              "dl",
              null,
              [
                ["d_k", String(cut.d_k)],
                [`${ui("self_focus")}`, number(mean(cut.self_focus))],
                [`${ui("entropy")}`, number(mean(cut.entropy))],
              ].map(([name, value]) => el("div", null, el("dt", null, symbols(name)), el("dd", null, value))),
            ),
          ),
          el(
            "div",
            { class: "gallery" },
            cut.weights.map((p, i) =>
              heat(p, {
                name: [ui("head"), " ", i + 1],
                label: `h = ${cut.h}, ${ui("head")} ${i + 1}`,
                rows: tokens,
                columns: tokens,
                seen: seenBy(state.causal),
                small: true,
                shape: false,
                under: [ui("self_focus"), " ", number(cut.self_focus[i]), el("br"), ui("entropy"), " ", number(cut.entropy[i])],
              }),
            ),
          ),
        ),
      ),
    ),
    legend(state.causal),
    options("scale", "causal"),
    part(
      symbols(ui("parts")),
      choice(
        "cut",
        null,
        ui("parts"),
        CUTS.map((value) => ({ value, text: [symbols("h"), ` = ${value}`] })),
        wide.heads,
      ),
      expression(
        chosen.parts.map((one, i) =>
          term(i > 0 && sign("+"), matrix(one, { name: `Q_${i + 1} K_${i + 1}ᵀ`, rows: tokens, columns: tokens, kind: "small" })),
        ),
        term(sign("="), matrix(chosen.sum, { name: "Q Kᵀ", rows: tokens, columns: tokens, kind: "small result" })),
      ),
      el("p", { class: "remark" }, ui("difference"), ui("colon"), el("span", { class: "n" }, tiny(chosen.difference))),
      matrix(chosen.z, {
        name: chosen.h > 1 ? `Concat(Z_1${chosen.h > 2 ? " … " : ", "}Z_${chosen.h})` : "Z",
        rows: tokens,
        cut: chosen.d_k,
      }),
    ),
    part(null, tally(state)),
  ];
};

/** The maps of the layer as they were last drawn: they follow no number of the reader's. */
const drawnMaps = { key: "", sketch: /** @type {Child} */ (null) };

workings.model = () => {
  const { maps } = data,
    key = `${view.layer} ${view.language}`;
  if (drawnMaps.key !== key) Object.assign(drawnMaps, { key, sketch: maps.thousandths[view.layer].map((map, h) => modelMap(map, h)) });
  return [
    choice(
      "layer",
      ui("layer"),
      ui("layer"),
      maps.thousandths.map((_, value) => ({ value, text: `L${value}` })),
      view.layer,
    ),
    el(
      "p",
      { class: "sentence" },
      maps.tokens.map((text) => [el("span", null, text), " "]),
    ),
    el("div", { class: "maps" }, drawnMaps.sketch),
    legend(),
  ];
};

/** @param {number[]} map row by row, in thousandths @param {number} h */
const modelMap = (map, h) => {
  const { self_focus, entropy } = data.maps,
    name = `L${view.layer}H${h}`;
  const [focus, spread] = [number(self_focus[view.layer][h]), number(entropy[view.layer][h])];
  return el(
    "figure",
    { class: "map" },
    el(
      "div",
      { class: "cells", role: "img", tabindex: 0, "data-map": h, "aria-label": ui("map_summary", { head: name, focus, entropy: spread }) },
      map.map((weight) => el("i", { t: weight / 1000 })),
    ),
    el(
      "figcaption",
      null,
      el("b", null, name),
      el("span", null, ui("self_focus"), " ", focus),
      el("span", null, ui("entropy"), " ", spread),
    ),
  );
};

/** What a cell of a map says. @param {number} h @param {number} at */
const mapWords = (h, at) => {
  const { tokens, thousandths } = data.maps,
    n = tokens.length;
  return `L${view.layer}H${h}: ${inWords(tokens[Math.floor(at / n)], tokens[at % n], thousandths[view.layer][h][at] / 1000)}`;
};
