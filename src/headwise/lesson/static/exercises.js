// @ts-check
// Five questions with a number for an answer.

/** @param {Exercise} exercise @param {string} text */
const isRight = (exercise, text) => readings(text).some((value) => Math.abs(value - exercise.answer) <= exercise.tolerance);

/** @param {State} state @param {Numbers} numbers @returns {Child} */
const exercises = (state, numbers) => [
  el("p", { class: "progress", role: "status" }, ui("progress", { done: view.done.size, all: words().exercises.length })),
  el(
    "ol",
    { class: "exercises" },
    words().exercises.map((exercise) => {
      const { id } = exercise,
        done = view.done.has(id),
        tried = view.checked.get(id);
      const hinted = view.hints.has(id),
        open = (done && tried !== false) || view.everything,
        verdict = tried ? "correct" : readings(view.answers.get(id) ?? "").length ? "incorrect" : "invalid";
      return el(
        "li",
        { class: done ? "done" : null },
        el("p", { class: "ask", id: `ask-${id}` }, inline(exercise.ask, state, numbers)),
        el(
          "form",
          { class: "answer-line", "data-exercise": id },
          el("input", {
            type: "text",
            inputmode: "decimal",
            autocomplete: "off",
            spellcheck: "false",
            enterkeyhint: "done",
            "data-answer": id,
            "aria-label": ui("your_answer"),
            "aria-describedby": `ask-${id}`,
            value: view.answers.get(id) ?? "",
          }),
          el("button", { type: "submit" }, ui("check")),
          button("hint", ui("hint"), { "data-value": id, "aria-expanded": String(hinted), class: "quiet" }),
        ),
        el(
          "div",
          { role: "status" },
          tried !== undefined && el("p", { class: tried ? "verdict right" : "verdict wrong" }, ui(verdict)),
        ),
        el("p", { class: `hint-text${hinted ? " shown" : ""}` }, ui("hint"), ui("colon"), inline(exercise.hint, state, numbers)),
        el("p", { class: `because${open ? " shown" : ""}` }, inline(exercise.because, state, numbers)),
      );
    }),
  ),
];
