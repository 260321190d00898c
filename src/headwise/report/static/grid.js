// @ts-check
// The grid of layers by heads: cells, colours, legend, and the keys that move in it.

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
  const cell = Math.max(space < 600 || state.tags ? 14 : 9, Math.min(60, Math.floor((space - label) / across) - gap));
  grid.style.setProperty("--cell", `${cell}px`);
  grid.style.setProperty("--tall", `${Math.max(16, Math.min(32, Math.round(cell * 0.7)))}px`);
  grid.style.setProperty("--gap", `${gap}px`);
  grid.style.setProperty("--digits", cell < 30 ? "0.62rem" : cell < 40 ? "0.68rem" : "0.78rem");
  grid.classList.toggle("small", cell < 24);
  grid.classList.toggle("tagged", !state.tags && cell >= 44 && data.roles.kinds.length > 0);
  const step = cell >= 26 ? 1 : cell >= 18 ? 2 : 4;
  grid.querySelectorAll("thead span").forEach((span, head) => { span.textContent = head % step ? "" : cell < 22 ? String(head) : `H${head}`; });
  paint(cell);
};

/** Colours and numbers for the chosen measure. @param {number} width of a cell */
const paint = (width) => {
  const ends = range(state.measure, state.stretch);
  const numbers = column(state.measure), share = byName.get(state.measure)?.fixed ?? false;
  for (const [row, cell] of cells) {
    const value = numbers[row], tags = tagsOf(row);
    const known = value != null && ends !== null;
    cell.classList.toggle("undefined", !known);
    cell.classList.toggle("faint", !hasRole(row));
    cell.setAttribute("aria-label", [`${heads.label[row]}: ${exact(value)}`, ...rolesOf[row].map(([, label]) => label)].join(", "));
    if (known) {
      cell.dataset.t = "";
      cell.style.setProperty("--t", place(value, ends).toFixed(4));
    } else {
      delete cell.dataset.t;
    }
    if (state.tags) cell.replaceChildren(make("b", { class: "tags" }, width < 24 && tags.length > 1 ? `${tags[0]}+` : tags));
    else if (width < 24) cell.replaceChildren();
    else cell.replaceChildren(known ? brief(value, width, share) : "–", ...(tags && width >= 44 ? [make("i", { class: "tags" }, tags)] : []));
  }
  legend(ends);
};

/** The colours from least to most, and what the ends and the middle stand for. @param {[number, number]} ends */
const scale = (ends) => {
  const ramp = make("div", { class: "ramp", "aria-hidden": "true" });
  for (let step = 0; step < 32; step++) {
    const patch = make("i");
    patch.style.setProperty("--t", String(step / 31));
    ramp.append(patch);
  }
  const digits = Math.min(20, Math.max(0, 2 - Math.floor(Math.log10(ends[1] - ends[0] || 1))));
  const marks = [ends[0], (ends[0] + ends[1]) / 2, ends[1]].map((value) => {
    const text = Number(value.toFixed(digits));
    return make("span", {}, exact((value && !text) || (Math.abs(value) < 1 && Math.abs(text) >= 1) ? value : text));
  });
  return [ramp, make("div", { class: "marks" }, ...marks)];
};

/** @param {[number, number] | null} ends */
const legend = (ends) => {
  const box = find("legend");
  box.replaceChildren();
  if (ends) {
    box.append(...scale(ends));
  }
  if ([...cells.keys()].some((row) => column(state.measure)[row] == null)) {
    box.append(make("div", { class: "undefined" }, make("i"), "undefined"));
  }
};

/** @param {number} row */
const rolesInWords = (row) => (rolesOf[row].length ? [make("span", { class: "roles-read" }, rolesOf[row].map(([, label]) => label).join(", "))] : []);

/** Each role with its tag; a click leaves its heads alone. */
const chips = () => {
  find("chips").replaceChildren(...data.roles.kinds.map((kind) => {
    const chip = make("button", { type: "button", "aria-pressed": "false", title: `${kind.evidence} ${kind.threshold}`, "data-role": kind.name });
    chip.append(make("span", { class: "tag" }, kind.tag), ` ${kind.name} `, make("small", {}, kind.heads.toLocaleString("en")));
    return chip;
  }));
};

/** @param {number} row */
const read = (row) => {
  const measure = byName.get(state.measure);
  if (!measure || row < 0) return;
  const value = column(state.measure)[row];
  const unit = measure.unit && measure.unit !== "weight" && value != null ? ` ${measure.unit}` : "";
  find("readout").replaceChildren(make("b", {}, heads.label[row]), ` ${measure.title} `, make("b", {}, exact(value)), `${unit} `, value == null ? "" : describe(row, state.measure), ...rolesInWords(row));
};

const meaning = () => {
  const measure = byName.get(state.measure);
  if (!measure) return;
  const unit = measure.unit ? ` (${measure.unit})` : "";
  find("meaning").replaceChildren(make("code", {}, measure.formula), `${unit}: ${measure.reading}.`);
  /** @type {HTMLInputElement} */ (find("stretch")).disabled = !measure.fixed;
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
  const bottom = lattice.length - 1, last = lattice[y].length - 1;
  /** Where a move begins, and its step: layers may have fewer heads, so it goes on to the next cell that there is. @type {Record<string, [number, number, number, number]>} */
  const moves = {
    ArrowLeft: [y, x - 1, 0, -1], ArrowRight: [y, x + 1, 0, 1], ArrowUp: [y - 1, x, -1, 0], ArrowDown: [y + 1, x, 1, 0],
    Home: [event.ctrlKey ? 0 : y, 0, 0, 1], End: [event.ctrlKey ? bottom : y, last, 0, -1],
  };
  const to = moves[event.key], press = event.key === "Enter" || event.key === " ";
  if (!to && !press) return;
  event.preventDefault();
  const next = press ? row : firstCell(...to);
  if (next !== undefined) (press ? choose : rove)(next, true);
};

/** The first head in a direction of the grid. @param {number} y @param {number} x @param {number} down @param {number} right @returns {number | undefined} */
const firstCell = (y, x, down, right) => {
  while (lattice[y] && x >= 0 && x < lattice[y].length) {
    if (lattice[y][x] !== undefined) return lattice[y][x];
    y += down;
    x += right;
  }
  return undefined;
};

/** @param {Event} event @returns {number | null} */
const rowOf = (event) => {
  const holder = event.target instanceof Element ? event.target.closest("[data-row]") : null;
  return holder instanceof HTMLElement ? Number(holder.dataset.row) : null;
};
