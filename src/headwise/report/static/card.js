// @ts-check
// The card of the chosen head: all that was measured of it.

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
  box.append(make("dt", {}, measure.title), make("dd", {}, value == null ? "undefined" : `${exact(value)}${unit}`));
  const ends = range(measure.name, false);
  if (value != null && ends && cells.size > 1) {
    const strip = make("dd", { class: "strip", role: "img", "aria-label": `${rank(measure.name, value)} heads, the largest first` }, make("i"), make("b"));
    const percent = (/** @type {number} */ x) => `${(place(x, ends) * 100).toFixed(1)}%`;
    strip.style.setProperty("--at", percent(value));
    strip.style.setProperty("--from", percent(Math.max(ends[0], column(measure.name, "min")[row] ?? value)));
    strip.style.setProperty("--to", percent(Math.min(ends[1], column(measure.name, "max")[row] ?? value)));
    if (column(measure.name, "min").length) strip.title = `rows from ${exact(column(measure.name, "min")[row])} to ${exact(column(measure.name, "max")[row])}`;
    box.append(strip, make("dd", { class: "note" }, `${measure.reading}; ${rank(measure.name, value)}`));
  } else {
    box.append(make("dd", { class: "note" }, measure.reading));
  }
  return box;
};

/** The roles of a head with their evidence: the number, its error, the threshold it passed. @param {number} row */
const roleList = (row) => {
  if (!data.roles.kinds.length) return [];
  const found = rolesOf[row];
  if (!found.length) return [make("p", { class: "none" }, "No role: no number of this head passes a threshold.")];
  return [make("ul", { class: "evidence", "aria-label": "Roles" }, ...found.map(([name, label, value, error]) => {
    const kind = data.roles.kinds.find((one) => one.name === name);
    const number = name === "positional" ? `${value < 1 ? fixed(Math.min(value * 100, 99.94), 1) : "100"}%` : exact(value);
    const spread = error == null ? "" : ` ± ${exact(Number(error.toPrecision(2)))} over texts`;
    return make("li", {}, make("span", { class: "tag" }, kind?.tag ?? ""), make("b", {}, ` ${label} `), `${kind?.evidence}: `, make("b", {}, number), `${spread} `, make("span", { class: "nobreak" }, `(${kind?.threshold})`));
  }))];
};

/** The keys that receive most from a head. @param {number} row */
const keyList = (row) => {
  const keys = data.keys?.strongest[row];
  if (!data.keys || !keys?.length) return [];
  const { tokens } = data.keys;
  return [make("p", { class: "where" }, "Keys that receive most (position, weight):"), make("ol", { class: "received" }, ...keys.map(([position, alpha, error]) => {
    const token = tokens[String(position)];
    const item = make("li", {}, String(position));
    if (token !== undefined) item.append(" ", make("bdi", { dir: "auto", class: "token" }, token || "∅"));
    item.append(" ", make("b", {}, exact(alpha)), error == null ? "" : ` ± ${exact(error)}`);
    return item;
  }))];
};

const card = () => {
  const row = state.chosen, box = find("card");
  if (row < 0) return box.replaceChildren(make("p", { class: "empty" }, "Choose a head in the grid, in the table or in a sentence above to see all that was measured of it."));
  const shared = heads.kv_head.some((kv, other) => kv !== heads.head[other]);
  const where = [heads.kind[row], heads.phase[row], ...(shared ? [`KV head ${heads.kv_head[row]}`] : []), `${rowsOf(row).toLocaleString("en")} rows`];
  if (data.by.includes("call")) where.splice(2, 0, `call ${heads.call[row]}`);
  box.replaceChildren(
    make("h3", {}, heads.label[row]),
    make("p", { class: "where" }, make("bdi", {}, data.names[heads.layer[row]] ?? ""), make("br"), where.join(" · "), ...(state.label < 0 ? [] : [make("br"), "rows labelled ", make("bdi", {}, data.labels[state.label].name), "; roles and keys: of all rows"])),
    ...roleList(row),
    ...keyList(row),
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
