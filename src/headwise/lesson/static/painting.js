// @ts-check
// What each painted part of the page shows: prose, questions, answers, controls.

/** Steps whose numbers are given rather than worked out: they are there before the question. */
const GIVEN = ["tokens"];
const STEPS = data.languages[data.language].steps.map((step) => step.id);
const EXERCISES = data.languages[data.language].exercises.map((exercise) => exercise.id);

/** @param {string} id */
const isOpen = (id) => view.everything || view.open.has(id);

/** What a part of the page shows. @type {Record<string, (id: string, state: State, numbers: Numbers) => Child>} */
const painters = {
  text: (path, state, numbers) => inline(textAt(path), state, numbers),
  prose: (path, state, numbers) => paragraphs(textAt(path), state, numbers),
  where: (id) => [
    el("span", { class: "count" }, ui("step", { n: STEPS.indexOf(id) + 1 })),
    " ",
    el("span", null, ui("article"), ui("colon"), stepOf(id).figure),
  ],
  think: (id, state, numbers) => think(stepOf(id), state, numbers),
  given: (id, state, numbers) => workings[id](state, numbers),
  open: (id, state, numbers) => opened(stepOf(id), state, numbers),
  exercises: (_, state, numbers) => exercises(state, numbers),
  controls: () => [
    button("language", ui("language"), { lang: view.language === "en" ? "zh-CN" : "en" }),
    button("everything", ui("everything"), { "aria-pressed": String(view.everything) }),
    button("reset", ui("reset")),
    button("print", ui("print")),
  ],
  hero: (_, state, { cuts }) => hero(cuts),
  made: () => ui("made_by", { version: data.version }),
  changed: () => [el("span", null, ui("changed")), " ", button("reset", ui("reset"))],
};

/** All weights of step 9 in small, a row for each head count: the page in one picture. @param {Numbers["cuts"]} cuts */
const hero = (cuts) =>
  cuts.map((cut) =>
    el(
      "div",
      { class: "row" },
      el("span", { class: "h" }, symbols(`h = ${cut.h}`)),
      cut.weights.map((p) =>
        el(
          "div",
          { class: "mini" },
          p.map((row, i) =>
            el(
              "div",
              null,
              row.map((weight, j) => {
                const seen = seenBy(state.causal)(i, j);
                return el("i", { t: seen ? weight : null, class: seen ? null : "hidden" });
              }),
            ),
          ),
        ),
      ),
    ),
  );

/** @param {string} path such as "steps.2.text" or "ui.contents" @returns {string} */
const textAt = (path) => path.split(".").reduce((/** @type {any} */ found, key) => found[key], words());

/** @param {string} id @returns {Step} */
const stepOf = (id) => words().steps[STEPS.indexOf(id)];

/** The question, its choices, and the button that opens the working. @param {Step} step @param {State} state @param {Numbers} numbers */
const think = (step, state, numbers) => {
  const chosen = view.choices.get(step.id),
    open = isOpen(step.id),
    worked = step.id in workings && !GIVEN.includes(step.id);
  const reveal = worked ? ui(open ? "hide" : "reveal") : ui(open ? "hide_answer" : "reveal_answer");
  return [
    el("h3", null, ui("ask")),
    el("p", { class: "ask", id: `ask-${step.id}` }, inline(step.ask, state, numbers)),
    el(
      "ol",
      { class: "choices", "aria-labelledby": `ask-${step.id}` },
      step.choices.map((text, i) => {
        const mark = chosen === undefined || !open ? null : i === step.right ? "right" : i === chosen ? "wrong" : null;
        return el(
          "li",
          null,
          button("choose", el("span", { class: "text" }, inline(text, state, numbers)), {
            "data-step": step.id,
            "data-value": i,
            class: mark,
            "aria-pressed": String(i === chosen),
          }),
        );
      }),
    ),
    button("reveal", reveal, { class: "reveal", "data-step": step.id, "aria-expanded": String(open), "aria-controls": `open-${step.id}` }),
    el(
      "div",
      { role: "status" },
      el(
        "div",
        { class: "answer" },
        chosen !== undefined &&
          el("p", { class: chosen === step.right ? "verdict right" : "verdict wrong" }, ui(chosen === step.right ? "right" : "wrong")),
        el(
          "p",
          null,
          el("b", null, ui("answer"), ui("colon"), inline(step.choices[step.right], state, numbers)),
          ui("stop"),
          inline(step.answer, state, numbers),
        ),
      ),
    ),
  ];
};

/** @param {Step} step @param {State} state @param {Numbers} numbers */
const opened = (step, state, numbers) => [
  step.id in workings && !GIVEN.includes(step.id) && el("div", { class: "working" }, workings[step.id](state, numbers)),
  step.after && el("div", { class: "prose" }, paragraphs(step.after, state, numbers)),
  step.note && el("aside", { class: "loose" }, el("h3", null, ui("note")), el("p", null, inline(step.note, state, numbers))),
];
