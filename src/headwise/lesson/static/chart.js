// @ts-check
// Step 5's chart: how entropy and gradient go with d_k, with the scale and without it.

const PANEL = { width: 330, height: 190, left: 34, right: 92, top: 14, bottom: 30 };

/** @param {Numbers["random"]} random @param {number} keys */
const scaleChart = (random, keys) =>
  el(
    "div",
    { class: "charts" },
    panel(ui("entropy"), random, (one) => one.entropy, Math.log(keys), `ln ${keys}`),
    panel(ui("gradient"), random, (one) => one.gradient, 1, "1"),
  );

/**
 * @param {string} title @param {Numbers["random"]} random @param {(one: Numbers["random"][0]["scaled"]) => number} of @param {number} top @param {string} topName
 */
const panel = (title, random, of, top, topName) => {
  const { width, height, left, right, top: above, bottom } = PANEL;
  const x = (/** @type {number} */ i) => left + (i / (random.length - 1)) * (width - left - right);
  const y = (/** @type {number} */ value) => above + (1 - Math.min(1, value / top)) * (height - above - bottom);
  const series = /** @type {const} */ (["scaled", "unscaled"]).map((name) => ({ name, values: random.map((one) => of(one[name])) }));
  const ends = series.map(({ values }) => y(values[values.length - 1]));
  // Names at the lines' ends, moved apart where the lines meet.
  const gap = 15,
    close = gap - Math.abs(ends[0] - ends[1]);
  const names = close > 0 ? ends.map((end, i) => end + ((ends[0] <= ends[1] ? i : 1 - i) - 0.5) * close) : ends;
  const words = series.map(({ name, values }) => `${ui(name)}: ${values.map((value) => number(value)).join(", ")}`).join("; ");
  return el(
    "figure",
    { class: "chart" },
    el("figcaption", null, title),
    el(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${words}` },
      [0, 1].map((share) => el("line", { class: "rule", x1: left, x2: width - right, y1: y(share * top), y2: y(share * top) })),
      el("text", { x: left - 6, y: y(0) + 4, "text-anchor": "end" }, "0"),
      el("text", { x: left - 6, y: y(top) + 4, "text-anchor": "end" }, topName),
      random.map((one, i) => el("text", { x: x(i), y: height - bottom + 17, "text-anchor": "middle" }, one.d_k)),
      el("text", { x: width - right + 30, y: height - bottom + 17, class: "axis" }, "d", el("tspan", { dy: 3, "font-size": "8.5" }, "k")),
      series.map(({ name, values }, s) =>
        el(
          "g",
          { class: name },
          el("polyline", { points: values.map((value, i) => `${x(i)},${y(value)}`).join(" ") }),
          values.map((value, i) => el("circle", { cx: x(i), cy: y(value), r: 3 })),
          el("text", { x: width - right + 9, y: names[s] + 4 }, ui(name)),
        ),
      ),
    ),
  );
};
