// @ts-check
// The page: its state, what is drawn of it, and what the reader does.

const root = document.documentElement;
/** @type {State} */
let state = structuredClone(data.opening);

/** The parts of the page that are painted, with what was in them without a script taken away. */
const canvases = [...document.querySelectorAll("[data-paint]")].map((element) => {
  const [painter, id] = (element.getAttribute("data-paint") ?? "").split(":");
  element.replaceChildren();
  return { element, painter: painters[painter], id };
});

const paper = matchMedia("print");
let printing = false;

const render = () => {
  const numbers = work(state);
  for (const { element, painter, id } of canvases) {
    // What is folded costs nothing, unless it is for paper.
    if (painter !== painters.open || isOpen(id) || printing || paper.matches) patch(element, painter(id, state, numbers));
  }
  for (const id of STEPS) document.getElementById(id)?.classList.toggle("shown", isOpen(id));
  const changed = differences(state, data.example).length > 0;
  /** @type {HTMLElement} */ (document.getElementById("changed")).hidden = !changed;
  root.lang = view.language === "zh" ? "zh-CN" : "en";
  document.title = `${words().title} · headwise`;
  document.querySelector("nav")?.setAttribute("aria-label", ui("contents"));
  for (const link of document.querySelectorAll("nav a")) {
    const id = link.getAttribute("href")?.slice(1) ?? "";
    link.classList.toggle("read", view.open.has(id));
  }
  remember();
};

/** The address, as far as it differs from the page as it was made. */
const address = () => {
  const said = differences(state, data.opening);
  if (view.language !== data.language) said.push(["lang", view.language]);
  if (view.everything) said.push(["all", "1"]);
  if (view.open.size)
    said.push([
      "open",
      STEPS.filter((id) => view.open.has(id))
        .map((id) => STEPS.indexOf(id) + 1)
        .join(","),
    ]);
  if (view.layer) said.push(["layer", String(view.layer)]);
  if (view.done.size) said.push(["done", EXERCISES.filter((id) => view.done.has(id)).join(",")]);
  return said.map(([name, value]) => `${name}=${value}`).join("&");
};

let waiting = 0;
/** Browsers refuse too many changes of the address in a row. */
const remember = () => {
  clearTimeout(waiting);
  waiting = window.setTimeout(write, 150);
};

const write = () => {
  clearTimeout(waiting);
  const now = address();
  if (now === location.hash.slice(1)) return;
  try {
    history.replaceState(history.state, "", now ? `#${now}` : location.pathname + location.search);
  } catch {
    // Where a page has no address of its own, the numbers still change.
  }
};

/** Take state and view from the address; a mere place in the page is none. */
const read = () => {
  const hash = location.hash.slice(1);
  if (hash && !hash.includes("=")) return;
  const said = new Map(
    hash.split("&").map((pair) => {
      const at = pair.indexOf("=");
      return /** @type {[string, string]} */ (at < 0 ? [pair, ""] : [pair.slice(0, at), pair.slice(at + 1)]);
    }),
  );
  state = restored(said, data.opening);
  view.language = Object.hasOwn(data.languages, said.get("lang") ?? "") ? (said.get("lang") ?? "") : data.language;
  view.everything = said.get("all") === "1";
  view.open = new Set(
    (said.get("open") ?? "")
      .split(",")
      .map((n) => STEPS[Number(n) - 1])
      .filter(Boolean),
  );
  view.done = new Set((said.get("done") ?? "").split(",").filter((id) => EXERCISES.includes(id)));
  const layer = Number(said.get("layer") ?? 0);
  view.layer = data.maps.thousandths[layer] ? layer : 0;
  view.drafts.clear();
};

/** What the buttons do. @type {Record<string, (value: string, element: HTMLElement) => void>} */
const acts = {
  language: () => {
    view.language = Object.keys(data.languages).find((name) => name !== view.language) ?? view.language;
  },
  everything: () => {
    view.everything = !view.everything;
  },
  reset: () => {
    state = structuredClone(data.example);
    view.drafts.clear();
  },
  print: () => window.print(),
  reveal: (_, { dataset: { step = "" } }) => {
    const open = !isOpen(step);
    // Closing one step of an open page leaves the others open.
    if (view.everything) view.open = new Set(STEPS);
    view.everything = false;
    if (open) view.open.add(step);
    else view.open.delete(step);
  },
  choose: (value, { dataset: { step = "" } }) => {
    view.choices.set(step, Number(value));
    view.open.add(step);
  },
  add: (_, { dataset: { list } }) => resize(list, 1),
  remove: (_, { dataset: { list } }) => resize(list, -1),
  look: (value) => {
    state.look = Number(value);
  },
  heads: (value) => {
    state.heads = Number(value);
  },
  cut: (value) => {
    state.wide.heads = Number(value);
  },
  layer: (value) => {
    view.layer = Number(value);
  },
  draw: (value) => {
    const draw = /** @type {Draw} */ ({ kind: value, seed: value ? (drawOf(state).seed % 999999) + 1 : 0 });
    const next = baseline(data.example, state.tokens, state.target, draw).wide;
    state.wide = { ...next, heads: state.wide.heads };
    forget("wide.");
  },
  hint: (value) => {
    if (!view.hints.delete(value)) view.hints.add(value);
  },
};

/** @param {string | undefined} list @param {1 | -1} by */
const resize = (list, by) => {
  const key = list === "target" ? "target" : "tokens",
    more = key === "target" ? MORE_TARGETS : MORE_TOKENS;
  const now = state[key],
    next = by > 0 ? [...now, more[now.length]] : now.slice(0, -1);
  if (next.length < 1 || next.length > MOST_TOKENS) return;
  state = resized(state, data.opening, key === "tokens" ? next : state.tokens, key === "target" ? next : state.target);
  for (const path of view.drafts.keys()) if (valueAt(state, path) === undefined) view.drafts.delete(path);
};

/** @param {string} prefix */
const forget = (prefix) => {
  for (const path of view.drafts.keys()) if (path.startsWith(prefix)) view.drafts.delete(path);
};

/** @param {Event} event */
const onInput = ({ target }) => {
  if (!(target instanceof HTMLInputElement)) return;
  const { cell: path, list, index, option, answer } = target.dataset;
  if (path !== undefined) {
    const value = parsed(target.value, path);
    if (typeof value === "number") setAt(state, path, value);
    view.drafts.set(path, { text: target.value, why: typeof value === "number" ? "" : value });
  } else if (list === "tokens" || list === "target") state[list][Number(index)] = cleaned(target.value);
  else if (option === "scale" || option === "causal") state[option] = target.checked;
  else if (answer !== undefined) {
    view.answers.set(answer, target.value);
    view.checked.delete(answer);
  } else return;
  render();
};

/** A number that was typed stands as it was typed until one leaves it; what is none stays, and is marked. @param {FocusEvent} event */
const onLeave = ({ target }) => {
  const path = target instanceof HTMLElement ? target.dataset.cell : undefined;
  if (path === undefined || view.drafts.get(path)?.why !== "") return;
  view.drafts.delete(path);
  render();
};

/** @param {MouseEvent} event */
const onClick = (event) => {
  const link = event.target instanceof Element ? event.target.closest("nav a, a.skip") : null;
  if (link && !event.metaKey && !event.ctrlKey && !event.shiftKey) {
    event.preventDefault();
    goTo(link.getAttribute("href")?.slice(1) ?? "");
    return;
  }
  const element = event.target instanceof Element ? event.target.closest("[data-act]") : null;
  if (!(element instanceof HTMLElement)) return;
  acts[element.dataset.act ?? ""]?.(element.dataset.value ?? "", element);
  render();
};

/** The address holds the numbers, so the page goes to a place itself. @param {string} id */
const goTo = (id) => {
  const section = document.getElementById(id),
    heading = section?.querySelector("h2");
  section?.scrollIntoView();
  if (heading instanceof HTMLElement) heading.focus({ preventScroll: true });
  const menu = document.querySelector("nav details");
  if (menu instanceof HTMLDetailsElement && !wideScreen.matches) menu.open = false;
};

/** @param {SubmitEvent} event */
const onSubmit = (event) => {
  event.preventDefault();
  const id = event.target instanceof HTMLElement ? (event.target.dataset.exercise ?? "") : "";
  const exercise = words().exercises[EXERCISES.indexOf(id)],
    text = view.answers.get(id) ?? "";
  if (!exercise || !text.trim()) return;
  const right = isRight(exercise, text);
  view.checked.set(id, right);
  if (right) view.done.add(id);
  render();
};

const wideScreen = matchMedia("(min-width: 68rem)");

const start = () => {
  root.classList.add("live");
  read();
  render();
  document.addEventListener("input", onInput);
  document.addEventListener("focusout", onLeave);
  document.addEventListener("click", onClick);
  document.addEventListener("submit", onSubmit);
  listenToKeys();
  listenToPointing();
  window.addEventListener("hashchange", () => {
    read();
    render();
  });
  window.addEventListener("pagehide", write);
  const menu = document.querySelector("nav details");
  const fitMenu = () => {
    if (menu instanceof HTMLDetailsElement) menu.open = wideScreen.matches;
  };
  wideScreen.addEventListener("change", fitMenu);
  fitMenu();
  unfoldForPaper();
  followReading();
};

const unfoldForPaper = () => {
  /** @type {HTMLDetailsElement[]} */
  let folded = [];
  window.addEventListener("beforeprint", () => {
    printing = true;
    render();
    folded = /** @type {HTMLDetailsElement[]} */ ([...document.querySelectorAll("main details:not([open])")]);
    for (const one of folded) one.open = true;
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    for (const one of folded) one.open = false;
  });
  paper.addEventListener("change", render);
};

/** Mark in the list of steps where the reader is. */
const followReading = () => {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.getAttribute("href")?.slice(1), link]));
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const [id, link] of links) {
          if (id === entry.target.id) link.setAttribute("aria-current", "true");
          else link.removeAttribute("aria-current");
        }
      }
    },
    { rootMargin: "-30% 0px -65% 0px" },
  );
  for (const id of links.keys()) {
    const section = document.getElementById(id ?? "");
    if (section) watcher.observe(section);
  }
};

// For a curious reader's console.
Object.assign(globalThis, { headwise: { work, attention, state: () => structuredClone(state) } });
start();
