// @ts-check
// Pairs of heads: a heat map of one layer, what is read of a pair, and the pairs that are most alike.

/** The measure, the layer (a place of the data) and the pair that is read. */
const pairing = { measure: "", place: 0, a: 0, b: 1 };

/** @param {Place} place @param {number} a @param {number} b */
const pairAt = (place, a, b) => {
  const [low, high] = a < b ? [a, b] : [b, a];
  return low * place.heads - (low * (low + 1)) / 2 + high - low - 1;
};

/** @param {Pairs} pairs */
const pairMeasure = (pairs) => /** @type {PairMeasure} */ (pairs.measures.find((one) => one.name === pairing.measure));

/** @param {Place} place @param {string} measure @param {number} a @param {number} b */
const pairText = (place, measure, a, b) => {
  const error = place.errors[measure]?.[pairAt(place, a, b)];
  return exact(place.values[measure]?.[pairAt(place, a, b)]) + (error == null ? "" : ` ± ${exact(error)}`);
};

/** @param {Pairs} pairs @param {Place} place */
const placeName = (pairs, place) => {
  const several = (/** @type {"phase" | "kind" | "call"} */ key) => new Set(pairs.places.map((one) => one[key])).size > 1;
  const more = [...(several("phase") ? [place.phase] : []), ...(several("kind") ? [place.kind] : []), ...(several("call") ? [`call ${place.call}`] : [])];
  return `L${place.layer}${more.length ? ` (${more.join(", ")})` : ""}`;
};

/** @param {Pairs} pairs */
const drawPairs = (pairs) => {
  const place = pairs.places[pairing.place], measure = pairMeasure(pairs), { heads: H } = place;
  find("pair-meaning").replaceChildren(make("code", {}, measure.formula), `: ${measure.reading}.`);
  if (measure.left_out) {
    find("pair-box").replaceChildren(make("p", { class: "hint" }, `Too many pairs for one page: profile.pairs("${measure.name}") has them.`));
    find("pair-legend").replaceChildren();
    find("pair-readout").replaceChildren();
    find("pair-all").hidden = true;
    return;
  }
  const space = find("pair-box").clientWidth, cell = Math.max(space < 600 ? 14 : 8, Math.min(46, Math.floor((space - 44) / H) - 1));
  const grid = make("table", { class: `grid${cell < 24 ? " small" : ""}`, role: "grid", "aria-labelledby": "pairs" });
  grid.style.setProperty("--cell", `${cell}px`);
  grid.style.setProperty("--tall", `${Math.min(30, cell)}px`);
  grid.style.setProperty("--gap", "1px");
  grid.style.setProperty("--digits", cell < 40 ? "0.62rem" : "0.7rem");
  const step = cell >= 26 ? 1 : cell >= 18 ? 2 : 4;
  const top = make("tr", {}, make("td", { class: "none" }));
  for (let head = 0; head < H; head++) top.append(make("th", { scope: "col" }, make("span", {}, head % step ? "" : cell < 22 ? String(head) : `H${head}`)));
  const body = make("tbody");
  for (let a = 0; a < H; a++) {
    const tr = make("tr", {}, make("th", { scope: "row" }, cell >= 12 || a % 2 === 0 ? `H${a}` : ""));
    for (let b = 0; b < H; b++) {
      const value = a === b ? null : place.values[measure.name][pairAt(place, a, b)];
      const said = a === b ? `H${a} with itself` : `H${a} and H${b}: ${pairText(place, measure.name, a, b)}`;
      const td = make("td", { role: "gridcell", tabindex: "-1", "data-pair": `${a},${b}`, "aria-label": said, class: a === b ? "same" : value == null ? "undefined" : "" });
      if (value != null) {
        td.dataset.t = "";
        td.style.setProperty("--t", place01(value, measure.ends));
        if (cell >= 24) td.textContent = brief(value, cell, true);
      }
      tr.append(td);
    }
    body.append(tr);
  }
  grid.append(make("thead", {}, top), body);
  find("pair-box").replaceChildren(grid);
  find("pair-legend").replaceChildren(...scale(measure.ends));
  find("pair-all").hidden = false;
  listPairs(pairs);
  readPair(pairs, Math.min(pairing.a, H - 1), Math.min(pairing.b, H - 1));
};

/** @param {number} value @param {[number, number]} ends */
const place01 = (value, ends) => place(value, ends).toFixed(4);

/** Read one pair, by every measure; its cell takes part in the tab order. @param {Pairs} pairs @param {number} a @param {number} b */
const readPair = (pairs, a, b, focus = false) => {
  Object.assign(pairing, { a, b });
  const one = pairs.places[pairing.place], name = `L${one.layer}H${a}`;
  const box = find("pair-box"), cell = box.querySelector(`[data-pair="${a},${b}"]`);
  box.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
  cell?.setAttribute("tabindex", "0");
  if (focus && cell instanceof HTMLElement) cell.focus();
  if (a === b) return find("pair-readout").replaceChildren(make("b", {}, name), " with itself");
  const shown = pairs.measures.filter((measure) => !measure.left_out);
  find("pair-readout").replaceChildren(
    make("b", {}, `${name} – L${one.layer}H${b}`),
    ...shown.flatMap((measure) => [` ${measure.title} `, make("b", { class: "nobreak" }, pairText(one, measure.name, a, b))]),
  );
};

/** All pairs of the layer, the most alike first; made when it is opened. @param {Pairs} pairs */
const listPairs = (pairs) => {
  const details = /** @type {HTMLDetailsElement} */ (find("pair-all")), box = /** @type {HTMLElement} */ (details.querySelector("div"));
  if (!details.open) return box.replaceChildren();
  const place = pairs.places[pairing.place], measure = pairMeasure(pairs), shown = pairs.measures.filter((one) => !one.left_out);
  const all = Array.from({ length: place.heads }, (_, a) => Array.from({ length: place.heads - a - 1 }, (_, b) => [a, a + 1 + b])).flat();
  const value = (/** @type {number[]} */ [a, b]) => place.values[measure.name][pairAt(place, a, b)] ?? (measure.alike ? -1 : 2);
  all.sort((x, y) => (value(y) - value(x)) * (measure.alike ? 1 : -1));
  const rows = all.map(([a, b]) => make("tr", {}, make("th", { scope: "row" }, `H${a} – H${b}`), ...shown.map((one) => make("td", {}, pairText(place, one.name, a, b)))));
  const head = make("tr", {}, make("th", { scope: "col", class: "text" }, "Heads"), ...shown.map((one) => make("th", { scope: "col" }, one.title)));
  box.replaceChildren(make("table", { class: "plain" }, make("thead", {}, head), make("tbody", {}, ...rows)));
};

/** @param {Pairs} pairs */
const listTop = (pairs) => {
  find("top-title").textContent = `by ${pairMeasure(pairs).title}`;
  find("top").querySelector("tbody")?.replaceChildren(...pairs.top[pairing.measure].map(([at, a, b, value, error]) => {
    const place = pairs.places[at], name = placeName(pairs, place).slice(`L${place.layer}`.length);
    const jump = make("button", { type: "button", class: "jump", "data-jump": `${at},${a},${b}` }, `L${place.layer}H${a} – L${place.layer}H${b}${name}`);
    return make("tr", {}, make("th", { scope: "row" }, jump), make("td", {}, exact(value)), make("td", {}, error == null ? "–" : exact(error)));
  }));
};

/** @param {Event} event @param {string} key @returns {number[] | null} */
const numbersOf = (event, key) => {
  const holder = event.target instanceof Element ? event.target.closest(`[data-${key}]`) : null;
  return holder instanceof HTMLElement ? (holder.dataset[key] ?? "").split(",").map(Number) : null;
};

/** @param {Pairs} pairs @param {KeyboardEvent} event */
const onPairKey = (pairs, event) => {
  const pair = numbersOf(event, "pair");
  if (!pair || event.altKey || event.metaKey) return;
  const [a, b] = pair, last = pairs.places[pairing.place].heads - 1;
  /** @type {Record<string, [number, number]>} */
  const moves = {
    ArrowLeft: [a, b - 1], ArrowRight: [a, b + 1], ArrowUp: [a - 1, b], ArrowDown: [a + 1, b],
    Home: [event.ctrlKey ? 0 : a, 0], End: [event.ctrlKey ? last : a, last],
  };
  const to = moves[event.key];
  if (!to) return;
  event.preventDefault();
  if (Math.min(...to) >= 0 && Math.max(...to) <= last) readPair(pairs, to[0], to[1], true);
};

/** @param {Pairs} pairs */
const startPairs = (pairs) => {
  const measure = /** @type {HTMLSelectElement} */ (find("pair-measure")), layer = /** @type {HTMLSelectElement} */ (find("pair-layer"));
  pairing.measure = pairs.measures[0].name;
  // The first thing to see are the two heads that are most alike.
  [pairing.place, pairing.a, pairing.b] = pairs.top[pairing.measure][0];
  measure.append(...pairs.measures.map((one) => make("option", { value: one.name }, one.title)));
  layer.append(...pairs.places.map((one, at) => make("option", { value: String(at), title: one.name }, placeName(pairs, one))));
  layer.value = String(pairing.place);
  measure.addEventListener("change", () => {
    pairing.measure = measure.value;
    listTop(pairs);
    drawPairs(pairs);
  });
  layer.addEventListener("change", () => {
    pairing.place = Number(layer.value);
    drawPairs(pairs);
  });
  const box = find("pair-box");
  box.addEventListener("keydown", (event) => onPairKey(pairs, event));
  for (const type of ["pointerover", "focusin", "click"]) box.addEventListener(type, (event) => {
    const pair = numbersOf(event, "pair");
    if (pair) readPair(pairs, pair[0], pair[1], type === "click");
  });
  find("top").addEventListener("click", (event) => {
    const to = numbersOf(event, "jump");
    if (!to) return;
    [pairing.place, pairing.a, pairing.b] = to;
    layer.value = String(to[0]);
    drawPairs(pairs);
    readPair(pairs, to[1], to[2], true);
  });
  find("pair-all").addEventListener("toggle", () => listPairs(pairs));
  find("pair-controls").hidden = find("pair-map").hidden = false;
  listTop(pairs);
  drawPairs(pairs);
  let width = box.clientWidth;
  new ResizeObserver(() => { if (box.clientWidth !== width) { width = box.clientWidth; drawPairs(pairs); } }).observe(box);
};
