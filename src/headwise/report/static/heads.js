// @ts-check
// The table of all heads: order, filters, and the rows of one label.

const table = find("table");
const tbody = /** @type {HTMLTableSectionElement} */ (table.querySelector("tbody"));
const tableRows = [...tbody.rows].map((element, row) => ({
  element,
  row,
  text: [heads.label[row], heads.phase[row], heads.kind[row], `call ${heads.call[row]}`, data.names[heads.layer[row]], ...rolesOf[row].map(([, label]) => label)].join(" ").toLowerCase(),
}));

/** @param {string} key @param {number} row @returns {number | string | null} */
const sortValue = (key, row) => {
  if (key === "label") return heads.layer[row] * 1e6 + heads.head[row];
  if (key === "name") return data.names[heads.layer[row]] ?? "";
  if (key in values) return column(key)[row] ?? null;
  if (key === "rows") return rowsOf(row);
  // A head without a role comes last in both directions, like an undefined value.
  if (key === "roles") return rolesOf[row].map(([, label]) => label).join(", ") || null;
  return /** @type {Record<string, (string | number)[]>} */ (/** @type {unknown} */ (heads))[key]?.[row] ?? null;
};

/** Order, filter and count the rows; undefined values stay last in both directions. */
const arrange = () => {
  const words = /** @type {HTMLInputElement} */ (find("filter")).value.toLowerCase().split(/[\s,]+/).filter(Boolean);
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
    const keep = here && hasRole(tr.row) && words.every((word) => tr.text.includes(word));
    tr.element.hidden = !keep;
    all += Number(here);
    shown += Number(keep);
  }
  const count = shown === all ? `${all.toLocaleString("en")} heads` : `${shown.toLocaleString("en")} of ${all.toLocaleString("en")} heads`;
  find("shown").replaceChildren(count, ...(state.label < 0 ? [] : [", rows labelled ", make("bdi", {}, data.labels[state.label].name)]));
};

/** @param {string} key */
const sortBy = (key) => {
  const texts = ["label", "name", "phase", "kind", "call", "roles"];
  // Numbers are asked for the largest first, names from the beginning.
  state.up = state.sort === key ? !state.up : texts.includes(key);
  state.sort = key;
  for (const th of table.querySelectorAll("thead th")) {
    if (th instanceof HTMLElement && th.dataset.key === key) th.setAttribute("aria-sort", state.up ? "ascending" : "descending");
    else th.removeAttribute("aria-sort");
  }
  arrange();
};

/** The numbers of the chosen label in every cell of the table. */
const relabel = () => {
  [...table.querySelectorAll("thead th")].forEach((th, place) => {
    const key = th instanceof HTMLElement ? th.dataset.key ?? "" : "";
    const shown = key === "rows" ? tableRows.map((tr) => String(rowsOf(tr.row))) : key in values ? columnText(tableRows.map((tr) => column(key)[tr.row] ?? null), byName.get(key)?.fixed ?? false) : null;
    if (shown) tableRows.forEach((tr, row) => { tr.element.cells[place].textContent = shown[row]; });
  });
};
