// @ts-check
"use strict";
(() => {
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
   */

  /** @template {HTMLElement} T @param {string} id @returns {T} */
  const find = (id) => /** @type {T} */ (document.getElementById(id));

  /** @type {Data} */
  const data = JSON.parse(find("data").textContent ?? "");
  const { heads, measures, values } = data;
  /** @type {Map<string, Measure>} */
  const byName = new Map(measures.map((measure) => [measure.name, measure]));

  const state = { measure: measures[0]?.name ?? "", group: 0, stretch: true, chosen: -1, sort: "", up: true };
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

  /** @param {number | null | undefined} value */
  const exact = (value) => (value == null ? "undefined" : String(Number(value.toPrecision(4))).replace("-", "\u2212"));

  /** A few characters for a cell. @param {number} value @param {number} width */
  const brief = (value, width) => {
    const size = Math.abs(value);
    let text = size >= 1e4 ? `${Math.round(value / 1000)}k` : size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(width < 40 ? 0 : 1) : value.toFixed(2);
    if (width < 40) text = /^-?[1-9]\.\d\d$/.test(text) ? value.toFixed(1) : text.replace(/^(-?)0\./, "$1.");
    return text.replace("-", "\u2212");
  };

  /** @param {string} name @param {string} [statistic] @returns {Column} */
  const column = (name, statistic = "mean") => values[name]?.[statistic] ?? [];

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
    const known = ["std", "se", "min", "max"].filter((statistic) => values[name]?.[statistic]);
    return known.map((statistic) => `${statistic} ${exact(column(name, statistic)[row])}`).join(" · ");
  };

  const rowsOfGroup = () => heads.label.map((_, row) => row).filter((row) => heads.group[row] === state.group);

  const buildGrid = () => {
    const rows = rowsOfGroup();
    const layers = [...new Set(rows.map((row) => heads.layer[row]))].sort((a, b) => a - b);
    const width = Math.max(0, ...rows.map((row) => heads.head[row])) + 1;
    const kinds = new Set(rows.map((row) => heads.kind[row])).size > 1;
    const grid = make("table", { class: "grid", role: "grid", id: "grid", "aria-labelledby": "map-title" });
    const top = make("tr", {}, make("td", { class: "none" }));
    for (let head = 0; head < width; head++) top.append(make("th", { scope: "col" }, make("span", {}, `H${head}`)));
    const body = make("tbody");
    const at = new Map(rows.map((row) => [`${heads.layer[row]},${heads.head[row]}`, row]));
    cells.clear();
    lattice = layers.map((layer) => {
      const line = Array.from({ length: width }, (_, head) => at.get(`${layer},${head}`));
      const header = make("th", { scope: "row", title: data.names[layer] ?? "" }, `L${layer}`);
      const first = line.find((row) => row !== undefined);
      if (kinds && first !== undefined) header.append(make("small", {}, heads.kind[first]));
      const tr = make("tr", {}, header);
      for (const row of line) {
        const cell = /** @type {HTMLTableCellElement} */ (make("td", row === undefined ? { class: "none" } : { role: "gridcell", tabindex: "-1", "data-row": String(row) }));
        if (row !== undefined) cells.set(row, cell);
        tr.append(cell);
      }
      body.append(tr);
      return line;
    });
    grid.append(make("thead", {}, top), body);
    find("grid-box").replaceChildren(grid);
    grid.closest(".split")?.classList.toggle("tall", layers.length > 14);
    const start = cells.has(state.chosen) ? state.chosen : rows[0];
    cells.get(start)?.setAttribute("tabindex", "0");
    fit();
    mark();
  };

  /** Cells as wide as the page allows; below some width a colour alone remains, and the reading line has the number. */
  const fit = () => {
    const grid = find("grid");
    const across = lattice[0]?.length ?? 1;
    const gap = across > 24 ? 1 : 2;
    const label = (grid.querySelector("tbody th")?.getBoundingClientRect().width ?? 30) + 12;
    const space = find("grid-box").clientWidth;
    // Under a finger a cell needs more room, and the box scrolls; under a mouse the whole model in one view is worth more.
    const cell = Math.max(space < 600 ? 14 : 9, Math.min(60, Math.floor((space - label) / across) - gap));
    grid.style.setProperty("--cell", `${cell}px`);
    grid.style.setProperty("--tall", `${Math.max(16, Math.min(32, Math.round(cell * 0.7)))}px`);
    grid.style.setProperty("--gap", `${gap}px`);
    grid.style.setProperty("--digits", cell < 30 ? "0.62rem" : cell < 40 ? "0.68rem" : "0.78rem");
    grid.classList.toggle("small", cell < 24);
    const step = cell >= 26 ? 1 : cell >= 18 ? 2 : 4;
    grid.querySelectorAll("thead span").forEach((span, head) => { span.textContent = head % step ? "" : cell < 22 ? String(head) : `H${head}`; });
    paint(cell);
  };

  /** Colours and numbers for the chosen measure. @param {number} width of a cell */
  const paint = (width) => {
    const ends = range(state.measure, state.stretch);
    const numbers = column(state.measure);
    for (const [row, cell] of cells) {
      const value = numbers[row];
      const known = value != null && ends !== null;
      cell.classList.toggle("undefined", !known);
      cell.setAttribute("aria-label", `${heads.label[row]}: ${exact(value)}`);
      if (known) {
        cell.dataset.t = "";
        cell.style.setProperty("--t", place(value, ends).toFixed(4));
        cell.textContent = width < 24 ? "" : brief(value, width);
      } else {
        delete cell.dataset.t;
        cell.textContent = width < 24 ? "" : "–";
      }
    }
    legend(ends);
  };

  /** @param {[number, number] | null} ends */
  const legend = (ends) => {
    const ramp = make("div", { class: "ramp", "aria-hidden": "true" });
    for (let step = 0; step < 32; step++) {
      const patch = make("i");
      patch.style.setProperty("--t", String(step / 31));
      ramp.append(patch);
    }
    const box = find("legend");
    box.replaceChildren();
    if (ends) {
      const digits = Math.max(0, 2 - Math.floor(Math.log10(ends[1] - ends[0] || 1)));
      const marks = [ends[0], (ends[0] + ends[1]) / 2, ends[1]].map((value) => make("span", {}, exact(Number(value.toFixed(Math.min(digits, 20))))));
      box.append(ramp, make("div", { class: "marks" }, ...marks));
    }
    if ([...cells.keys()].some((row) => column(state.measure)[row] == null)) {
      box.append(make("div", { class: "undefined" }, make("i"), "undefined"));
    }
  };

  /** @param {number} row */
  const read = (row) => {
    const measure = byName.get(state.measure);
    if (!measure || row < 0) return;
    const value = column(state.measure)[row];
    const unit = measure.unit && measure.unit !== "weight" && value != null ? ` ${measure.unit}` : "";
    find("readout").replaceChildren(make("b", {}, heads.label[row]), ` ${measure.title} `, make("b", {}, exact(value)), `${unit} `, value == null ? "" : describe(row, state.measure));
  };

  const meaning = () => {
    const measure = byName.get(state.measure);
    if (!measure) return;
    const unit = measure.unit ? ` (${measure.unit})` : "";
    find("meaning").replaceChildren(make("code", {}, measure.formula), `${unit}: ${measure.reading}.`);
    /** @type {HTMLInputElement} */ (find("stretch")).disabled = !measure.fixed;
  };

  /** Rank 1 has the largest value of its group. @param {string} name @param {number} value */
  const rank = (name, value) => {
    const others = [...cells.keys()].flatMap((row) => column(name)[row] ?? []);
    return `rank ${others.filter((other) => other > value).length + 1} of ${others.length}`;
  };

  /** @param {Measure} measure @param {number} row */
  const entry = (measure, row) => {
    const value = column(measure.name)[row];
    const box = make("div", measure.name === state.measure ? { class: "current" } : {});
    const unit = measure.unit && measure.unit !== "weight" ? ` ${measure.unit}` : "";
    box.append(make("dt", {}, measure.title), make("dd", {}, value == null ? "undefined" : `${exact(Number(value.toPrecision(4)))}${unit}`));
    const ends = range(measure.name, false);
    if (value != null && ends && cells.size > 1) {
      const strip = make("dd", { class: "strip", role: "img", "aria-label": `${rank(measure.name, value)} heads, the largest first` }, make("i"), make("b"));
      const percent = (/** @type {number} */ x) => `${(place(x, ends) * 100).toFixed(1)}%`;
      strip.style.setProperty("--at", percent(value));
      strip.style.setProperty("--from", percent(Math.max(ends[0], column(measure.name, "min")[row] ?? value)));
      strip.style.setProperty("--to", percent(Math.min(ends[1], column(measure.name, "max")[row] ?? value)));
      strip.title = `rows from ${exact(column(measure.name, "min")[row])} to ${exact(column(measure.name, "max")[row])}`;
      box.append(strip, make("dd", { class: "note" }, `${measure.reading}; ${rank(measure.name, value)}`));
    } else {
      box.append(make("dd", { class: "note" }, measure.reading));
    }
    return box;
  };

  const card = () => {
    const row = state.chosen, box = find("card");
    if (row < 0) return box.replaceChildren(make("p", { class: "empty" }, "Choose a head in the grid, in the table or in a sentence above to see all that was measured of it."));
    const shared = heads.kv_head.some((kv, other) => kv !== heads.head[other]);
    const where = [heads.kind[row], heads.phase[row], ...(shared ? [`KV head ${heads.kv_head[row]}`] : []), `${heads.rows[row].toLocaleString("en")} rows`];
    if (data.by.includes("call")) where.splice(2, 0, `call ${heads.call[row]}`);
    box.replaceChildren(
      make("h3", {}, heads.label[row]),
      make("p", { class: "where" }, make("bdi", {}, data.names[heads.layer[row]] ?? ""), make("br"), where.join(" · ")),
      make("dl", {}, ...measures.map((measure) => entry(measure, row))),
    );
  };

  const mark = () => {
    for (const [row, cell] of cells) cell.setAttribute("aria-selected", String(row === state.chosen));
    for (const tr of tableRows) tr.element.classList.toggle("chosen", tr.row === state.chosen);
    card();
  };

  /** @param {number} row @param {boolean} [focus] */
  const choose = (row, focus = false) => {
    state.chosen = row;
    if (heads.group[row] !== state.group) {
      state.group = heads.group[row];
      /** @type {HTMLSelectElement} */ (find("group")).value = String(state.group);
      buildGrid();
      arrange();
    } else {
      mark();
    }
    rove(row, focus);
    const line = tableRows.find((tr) => tr.row === row)?.element, box = line?.closest(".scroll");
    // Only the table's own box scrolls: the page stays where the reader is.
    if (line && box && !line.hidden) box.scrollTop = line.offsetTop - box.clientHeight / 2;
  };

  /** One cell at a time takes part in the tab order. @param {number} row @param {boolean} focus */
  const rove = (row, focus) => {
    const cell = cells.get(row);
    if (!cell) return;
    find("grid").querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    cell.setAttribute("tabindex", "0");
    if (focus) cell.focus();
    read(row);
  };

  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    const row = rowOf(event);
    if (row === null || event.altKey || event.metaKey) return;
    const y = lattice.findIndex((line) => line.includes(row)), x = lattice[y].indexOf(row);
    const last = lattice[y].length - 1;
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowLeft: [y, x - 1], ArrowRight: [y, x + 1], ArrowUp: [y - 1, x], ArrowDown: [y + 1, x],
      Home: [event.ctrlKey ? 0 : y, 0], End: [event.ctrlKey ? lattice.length - 1 : y, last],
    };
    const to = moves[event.key], press = event.key === "Enter" || event.key === " ";
    if (!to && !press) return;
    event.preventDefault();
    const next = press ? row : lattice[to[0]]?.[to[1]];
    if (next !== undefined) (press ? choose : rove)(next, true);
  };

  /** @param {Event} event @returns {number | null} */
  const rowOf = (event) => {
    const holder = event.target instanceof Element ? event.target.closest("[data-row]") : null;
    return holder instanceof HTMLElement ? Number(holder.dataset.row) : null;
  };

  const table = find("table");
  const tbody = /** @type {HTMLTableSectionElement} */ (table.querySelector("tbody"));
  const tableRows = [...tbody.rows].map((element, row) => ({
    element,
    row,
    text: [heads.label[row], heads.phase[row], heads.kind[row], `call ${heads.call[row]}`, data.names[heads.layer[row]]].join(" ").toLowerCase(),
  }));

  /** @param {string} key @param {number} row @returns {number | string | null} */
  const sortValue = (key, row) => {
    if (key === "label") return heads.layer[row] * 1e6 + heads.head[row];
    if (key === "name") return data.names[heads.layer[row]] ?? "";
    if (key in values) return column(key)[row];
    return /** @type {Record<string, (string | number)[]>} */ (/** @type {unknown} */ (heads))[key]?.[row] ?? null;
  };

  /** Order, filter and count the rows; undefined values stay last in both directions. */
  const arrange = () => {
    const words = /** @type {HTMLInputElement} */ (find("filter")).value.toLowerCase().split(/\s+/).filter(Boolean);
    if (state.sort) {
      const keyed = tableRows.map((tr) => ({ tr, value: sortValue(state.sort, tr.row) }));
      const turn = state.up ? 1 : -1;
      keyed.sort((a, b) => {
        if (a.value === null || b.value === null) return Number(a.value === null) - Number(b.value === null) || a.tr.row - b.tr.row;
        const order = typeof a.value === "string" ? a.value.localeCompare(String(b.value)) : a.value - Number(b.value);
        return order * turn || a.tr.row - b.tr.row;
      });
      tbody.append(...keyed.map(({ tr }) => tr.element));
    }
    let shown = 0, all = 0;
    for (const tr of tableRows) {
      const here = heads.group[tr.row] === state.group;
      const keep = here && words.every((word) => tr.text.includes(word));
      tr.element.hidden = !keep;
      all += Number(here);
      shown += Number(keep);
    }
    find("shown").textContent = shown === all ? `${all.toLocaleString("en")} heads` : `${shown.toLocaleString("en")} of ${all.toLocaleString("en")} heads`;
  };

  /** @param {string} key */
  const sortBy = (key) => {
    const texts = ["label", "name", "phase", "kind", "call"];
    // Numbers are asked for the largest first, names from the beginning.
    state.up = state.sort === key ? !state.up : texts.includes(key);
    state.sort = key;
    for (const th of table.querySelectorAll("thead th")) {
      if (th instanceof HTMLElement && th.dataset.key === key) th.setAttribute("aria-sort", state.up ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    }
    arrange();
  };

  const refresh = () => {
    /** @type {HTMLSelectElement} */ (find("measure")).value = state.measure;
    meaning();
    fit();
    card();
    read(Number(find("grid").querySelector('[tabindex="0"]')?.getAttribute("data-row") ?? -1));
  };

  const start = () => {
    for (const th of table.querySelectorAll("thead th")) {
      const button = make("button", { type: "button" }, th.textContent ?? "");
      button.addEventListener("click", () => sortBy(/** @type {HTMLElement} */ (th).dataset.key ?? ""));
      th.replaceChildren(button);
    }
    table.classList.add("live");
    tbody.addEventListener("click", (event) => {
      const row = tableRows.find((one) => one.element.contains(/** @type {Node} */ (event.target)))?.row;
      if (row !== undefined && !getSelection()?.toString()) choose(row);
    });
    find("filter").addEventListener("input", arrange);
    find("table-controls").hidden = false;
    arrange();
    if (!measures.length || !heads.label.length) return;

    find("map").hidden = false;
    find("measure").append(...measures.map((measure) => make("option", { value: measure.name, title: measure.reading }, measure.title)));
    find("group").append(...data.groups.map((name, group) => make("option", { value: String(group) }, name)));
    find("group-label").hidden = data.groups.length < 2;
    find("measure").addEventListener("change", () => {
      state.measure = /** @type {HTMLSelectElement} */ (find("measure")).value;
      refresh();
    });
    find("group").addEventListener("change", () => {
      state.group = Number(/** @type {HTMLSelectElement} */ (find("group")).value);
      // The same head, as the other group saw it.
      state.chosen = state.chosen < 0 ? -1 : rowsOfGroup().find((row) => heads.label[row] === heads.label[state.chosen]) ?? -1;
      buildGrid();
      arrange();
      refresh();
    });
    find("stretch").addEventListener("change", (event) => {
      state.stretch = /** @type {HTMLInputElement} */ (event.target).checked;
      refresh();
    });
    const box = find("grid-box");
    box.addEventListener("click", (event) => { const row = rowOf(event); if (row !== null) choose(row, true); });
    box.addEventListener("keydown", onKey);
    for (const type of ["pointerover", "focusin"]) box.addEventListener(type, (event) => { const row = rowOf(event); if (row !== null) read(row); });
    document.querySelector(".highlights")?.addEventListener("click", (event) => {
      const row = rowOf(event);
      if (row === null || !(event.target instanceof HTMLElement)) return;
      event.preventDefault();
      if (byName.has(event.target.dataset.measure ?? "")) state.measure = event.target.dataset.measure ?? state.measure;
      choose(row, true);
      refresh();
    });
    buildGrid();
    refresh();
    let width = box.clientWidth;
    new ResizeObserver(() => { if (box.clientWidth !== width) { width = box.clientWidth; fit(); } }).observe(box);
  };
  start();
})();
