// @ts-check
// Keys and pointing: from cell to cell, and what a weight says in words.

/** @param {Element} cell @param {number} down @param {number} right */
const neighbour = (cell, down, right) => {
  const td = cell.closest("td, th"),
    row = td?.closest("tr"),
    body = row?.closest("tbody");
  if (!(td instanceof HTMLTableCellElement) || !(row instanceof HTMLTableRowElement) || !body) return null;
  const to = body.rows[[...body.rows].indexOf(row) + down]?.cells[td.cellIndex + right];
  const found = cell instanceof HTMLInputElement ? to?.querySelector("input") : to;
  return found instanceof HTMLElement && (found instanceof HTMLInputElement || found.getAttribute("role") === "gridcell") ? found : null;
};

/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** @param {KeyboardEvent} event */
const onKey = (event) => {
  const { target, key } = event;
  if (key === "Escape") return onEscape(target);
  if (!(target instanceof HTMLElement) || event.altKey || event.ctrlKey || event.metaKey || event.isComposing) return;
  if (target.dataset.map !== undefined && ARROWS[key]) {
    event.preventDefault();
    return moveOnMap(target, ARROWS[key]);
  }
  const input = target instanceof HTMLInputElement && (target.dataset.cell !== undefined || target.dataset.list !== undefined);
  if (!input && target.getAttribute("role") !== "gridcell") return;
  const [down, right] = key === "Enter" ? [event.shiftKey ? -1 : 1, 0] : (ARROWS[key] ?? [0, 0]);
  if (!down && !right) return;
  // Inside a number the arrows move the caret; at its ends they move on.
  if (input && right && !caretAtEnd(/** @type {HTMLInputElement} */ (target), right)) return;
  event.preventDefault();
  const to = neighbour(target, down, right);
  to?.focus();
};

/** @param {HTMLInputElement} input @param {number} side */
const caretAtEnd = ({ value, selectionStart, selectionEnd }, side) =>
  (selectionStart === 0 && selectionEnd === value.length) ||
  (selectionStart === selectionEnd && selectionStart === (side < 0 ? 0 : value.length));

/** @param {EventTarget | null} target */
const onEscape = (target) => {
  hideTip();
  const path = target instanceof HTMLInputElement ? target.dataset.cell : undefined;
  if (path === undefined) return;
  view.drafts.delete(path);
  render();
  /** @type {HTMLInputElement} */ (target).select();
};

/** One weight of a table takes part in the tab order: the last one visited. @param {HTMLElement} cell */
const rove = (cell) => {
  cell.closest("table")?.querySelector('[role="gridcell"][tabindex="0"]')?.setAttribute("tabindex", "-1");
  cell.setAttribute("tabindex", "0");
};

/** Where the keys are on a map. @type {WeakMap<Element, number>} */
const places = new WeakMap();

/** @param {HTMLElement} map @param {[number, number]} by */
const moveOnMap = (map, [down, right]) => {
  const n = data.maps.tokens.length,
    at = places.get(map) ?? 0;
  const clamp = (/** @type {number} */ value) => Math.min(n - 1, Math.max(0, value));
  const to = places.has(map) ? clamp(Math.floor(at / n) + down) * n + clamp((at % n) + right) : 0;
  readMap(map, to);
};

/** @param {HTMLElement} map @param {number} at */
const readMap = (map, at) => {
  const cell = map.children[at];
  if (!cell) return;
  map.querySelector(".here")?.classList.remove("here");
  cell.classList.add("here");
  places.set(map, at);
  showTip(cell, mapWords(Number(map.dataset.map), at), true);
};

const tip = /** @type {HTMLElement} */ (document.getElementById("tip"));

/** Words next to what they are about. @param {Element} cell @param {string} text @param {boolean} [aloud] */
const showTip = (cell, text, aloud = false) => {
  tip.textContent = text;
  // A weight's cell bears the same words as its own name; a map's cells have none.
  tip.setAttribute("aria-live", aloud ? "polite" : "off");
  tip.classList.add("shown");
  const box = cell.getBoundingClientRect(),
    own = tip.getBoundingClientRect(),
    gap = 8;
  const left = Math.min(Math.max(gap, box.left + box.width / 2 - own.width / 2), root.clientWidth - own.width - gap);
  const above = box.top - own.height - gap;
  tip.style.setProperty("left", `${left}px`);
  tip.style.setProperty("top", `${above > 0 ? above : box.bottom + gap}px`);
  Object.assign(tipped, { cell, top: box.top, left: box.left });
};

const hideTip = () => tip.classList.remove("shown");

/** What the tip is about, and where that was. */
const tipped = { cell: /** @type {Element | null} */ (null), top: 0, left: 0 };

/** A tip does not stay behind when its cell scrolls away. */
const onScroll = () => {
  const box = tipped.cell?.getBoundingClientRect();
  if (box && (box.top !== tipped.top || box.left !== tipped.left)) hideTip();
};

/** @param {Event} event */
const onPoint = ({ target, type }) => {
  if (!(target instanceof HTMLElement)) return;
  const map = target.parentElement;
  if (target.dataset.tip !== undefined) {
    showTip(target, target.getAttribute("aria-label") ?? "");
    if (type === "focusin") rove(target);
  } else if (map?.dataset.map !== undefined) {
    readMap(map, [...map.children].indexOf(target));
  } else if (type === "focusin" && target.dataset.map !== undefined) {
    // Under a finger the cell that was touched has been read already.
    if (target.matches(":focus-visible")) readMap(target, places.get(target) ?? 0);
  } else {
    hideTip();
    if (type === "focusin" && target instanceof HTMLInputElement && target.type === "text") target.select();
  }
};

const signButton = /** @type {HTMLButtonElement} */ (document.getElementById("sign"));
const touch = matchMedia("(pointer: coarse)");

/** A phone's keyboard for numbers may have no minus. @param {EventTarget | null} target */
const offerSign = (target) => {
  const fits = touch.matches && target instanceof HTMLInputElement && target.dataset.cell !== undefined && !(target.dataset.cell in WHOLE);
  signButton.hidden = !fits;
  if (!fits) return;
  signButton.setAttribute("aria-label", ui("sign"));
  const box = /** @type {Element} */ (target).getBoundingClientRect();
  signButton.style.setProperty("left", `${box.left + scrollX}px`);
  signButton.style.setProperty("top", `${box.top + scrollY - signButton.offsetHeight - 6}px`);
};

const changeSign = () => {
  const input = document.activeElement;
  if (!(input instanceof HTMLInputElement) || input.dataset.cell === undefined) return;
  input.value = /^\s*[-\u2212\u2013]/.test(input.value) ? input.value.replace(/[-\u2212\u2013]/, "") : `\u2212${input.value}`;
  input.dispatchEvent(new Event("input", { bubbles: true }));
};

const listenToKeys = () => document.addEventListener("keydown", onKey);

const listenToPointing = () => {
  for (const type of ["pointerover", "focusin"]) document.addEventListener(type, onPoint);
  document.addEventListener("focusin", ({ target }) => offerSign(target));
  document.addEventListener("focusout", () => {
    signButton.hidden = true;
  });
  // The input keeps the focus, and the keyboard stays.
  signButton.addEventListener("pointerdown", (event) => event.preventDefault());
  signButton.addEventListener("click", changeSign);
  document.addEventListener("scroll", onScroll, { passive: true, capture: true });
};
