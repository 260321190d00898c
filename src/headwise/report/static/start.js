// @ts-check
// What a choice does, and the first view.

/** The words about the measure, and about the head that is read. */
const reword = () => {
  /** @type {HTMLSelectElement} */ (find("measure")).value = state.measure;
  meaning();
  read(Number(find("grid").querySelector('[tabindex="0"]')?.getAttribute("data-row") ?? -1));
};

const refresh = () => {
  fit();
  card();
  reword();
};

/** Leave the heads of one role alone: the others stay in the grid, faint. @param {string} role */
const lookFor = (role) => {
  state.role = role;
  /** @type {HTMLSelectElement} */ (find("role")).value = role;
  for (const chip of find("chips").children) chip.setAttribute("aria-pressed", String(chip.getAttribute("data-role") === role));
  fit();
  arrange();
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
  if (data.pairs) startPairs(data.pairs);
  if (!measures.length || !heads.label.length) return;

  find("map").hidden = false;
  if (data.roles.kinds.length) {
    for (const id of ["chips", "tags-label", "role-label"]) find(id).hidden = false;
    find("role").append(...data.roles.kinds.map((kind) => make("option", { value: kind.name }, `${kind.name} (${kind.heads.toLocaleString("en")})`)));
    chips();
    find("chips").addEventListener("click", (event) => {
      const role = event.target instanceof Element ? event.target.closest("[data-role]")?.getAttribute("data-role") : null;
      if (role) lookFor(role === state.role ? "" : role);
    });
    find("role").addEventListener("change", () => lookFor(/** @type {HTMLSelectElement} */ (find("role")).value));
    find("tags").addEventListener("change", () => {
      state.tags = /** @type {HTMLSelectElement} */ (find("tags")).value !== "";
      fit();
    });
  }
  if (data.labels.length) {
    find("rows-label").hidden = false;
    find("label").append(make("option", { value: "-1" }, "all"), ...data.labels.map((label, number) => make("option", { value: String(number) }, label.name)));
    find("label").addEventListener("change", () => {
      state.label = Number(/** @type {HTMLSelectElement} */ (find("label")).value);
      relabel();
      arrange();
      refresh();
    });
  }
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
  for (const section of document.querySelectorAll(".highlights, .roles, .plain")) section.addEventListener("click", (event) => {
    const row = rowOf(event);
    if (row === null || !(event.target instanceof HTMLElement)) return;
    event.preventDefault();
    if (byName.has(event.target.dataset.measure ?? "")) state.measure = event.target.dataset.measure ?? state.measure;
    choose(row, true);
    refresh();
  });
  buildGrid();
  reword();
  let width = box.clientWidth;
  new ResizeObserver(() => { if (box.clientWidth !== width) { width = box.clientWidth; fit(); } }).observe(box);
};
start();
