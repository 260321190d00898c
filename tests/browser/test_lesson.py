"""The lesson in a real browser: its numbers are Python's, and they follow whatever a reader changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from headwise.equations import attention
from headwise.lesson.contents import LANGUAGES, number, texts
from headwise.lesson.working import CUTS, example, normals, work
from tests.browser.lessons import ODD, STEPS, Lesson, agree


def varied_states() -> list[dict[str, Any]]:
    """The example, and states of every size, with huge numbers and with zeros among them."""
    rng = np.random.default_rng(5)
    states = [example()]
    for case in range(40):
        N, T = 1 + case % 6, 1 + case % 5
        size = (1.0, 1.0, 0.0, 1.0, 60.0)[case % 5]

        def rows(n: int, m: int, size: float = size) -> list[list[float]]:
            made: list[list[float]] = (size * rng.normal(0, 1.5, (n, m))).round(1).tolist()
            return made

        state = example() | {
            "tokens": [f"t{i}" for i in range(N)],
            "x": rows(N, 4),
            **{name: rows(4, 4) for name in ("wq", "wk", "wv", "wo")},
            "target": [f"y{i}" for i in range(T)],
            "y": rows(T, 4),
            "pad": rows(1, 4)[0],
            "look": int(rng.integers(N)),
            "heads": (1, 2, 4)[case % 3],
            "scale": case % 4 != 3,
            "causal": case % 2 == 1,
            "random": {"seed": case * 997, "queries": 1 + case, "keys": 2 + case % 30},
        }
        state["wide"] = {"x": rows(N, 12), **{name: rows(12, 12) for name in ("wq", "wk", "wv")}, "heads": 2}
        states.append(state)
    # Scores of 10,000 overflow exp.
    huge = example() | {"x": [[100, 0, 0, 0], [0, -100, 0, 0], [100, 100, 0, 0]], "scale": False}
    huge["wq"] = huge["wk"] = np.eye(4).tolist()
    assert np.abs(work(huge)["scores"]["scores"]).max() == 2e4
    return [*states, huge]


# The numbers


def test_every_number_is_pythons(lesson: Callable[..., Lesson]) -> None:
    states = varied_states()
    found = lesson().tab.evaluate("states => states.map(headwise.work)", states)
    for i, state in enumerate(states):
        agree(found[i], work(state), f"state {i}")


def test_attention_is_headwises(lesson: Callable[..., Lesson]) -> None:
    rng = np.random.default_rng(3)
    cases = []
    for _ in range(40):
        N, M, d_k, d_v = rng.integers(1, 10, 4)
        shapes = ((N, d_k), (M, d_k), (M, d_v))
        q, k, v = ((rng.normal(0, 2, shape)).tolist() for shape in shapes)
        options: dict[str, Any] = {"causal": bool(rng.integers(2)), "mask": (rng.random(M) < 0.7).tolist()}
        if rng.integers(2):
            options["scale"] = float(rng.normal(0, 3))
        cases.append([q, k, v, options])
    found = lesson().tab.evaluate("cases => cases.map((case_) => headwise.attention(...case_))", cases)
    for (q, k, v, options), got in zip(cases, found, strict=True):
        tensors = (torch.tensor(one, dtype=torch.float64) for one in (q, k, v))
        options["mask"] = torch.tensor(options["mask"])
        out, weights = attention(*tensors, **options, return_weights=True)
        agree(got, {"weights": weights.tolist(), "output": out.tolist()})


@pytest.mark.parametrize("language", LANGUAGES)
def test_prose_is_the_same_with_and_without_a_script(lesson: Callable[..., Lesson], language: str) -> None:
    read = """() => [...document.querySelectorAll("h1, h2, .prose, .where, .ask, .answer p, .loose, .because, nav a")]
        .map((e) => e.textContent.trim())"""
    for case in (0, 5, 34):
        state = varied_states()[case]
        state["tokens"] = ODD[: len(state["tokens"])]
        still = lesson(language, state=state, java_script_enabled=False)
        live = lesson(language, state=state, fragment="#all=1")
        # Rounding errors are each one's own.
        found, expected = (
            sorted(re.sub("(between them is|它们之间最大的差是) .*", "", text) for text in one.tab.evaluate(read))
            for one in (live, still)
        )
        assert found == expected
        assert len(found) > 85


def test_a_tie_is_rounded_as_in_python(lesson: Callable[..., Lesson]) -> None:
    state = example()
    state["x"][0], state["wq"][0] = [1, 0, 0, 0], [0.125, 0.375, -0.125, 0.005]
    q = [number(value) for value in work(state)["qkv"]["q"][0]]
    assert q == ["0.12", "0.38", "−0.12", "0.01"]
    assert lesson(state=state, fragment="#open=2").matrix("qkv", "Q")[0] == q


# Think first


def test_the_working_waits_for_an_answer(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    for step in STEPS:
        section = one.step(step)
        assert not section.locator(".open").is_visible() and not section.locator(".answer").is_visible()
    weights = one.step("weights")
    reveal = weights.locator(".reveal")
    assert reveal.get_attribute("aria-expanded") == "false"
    weights.locator(".choices button").nth(0).click()
    assert weights.locator(".verdict").inner_text() == "Not quite."
    assert weights.locator(".open .working").is_visible()
    assert "Answer: the largest grows" in weights.locator(".answer").inner_text()
    assert reveal.get_attribute("aria-expanded") == "true"
    weights.locator(".choices button").nth(2).click()
    assert weights.locator(".verdict").inner_text() == "Right."
    assert one.tab.evaluate("document.activeElement.dataset.value") == "2"
    reveal.click()
    assert not weights.locator(".open").is_visible()
    assert not one.step("output").locator(".open").is_visible()


def test_everything_can_be_shown_at_once(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    everything = one.tab.get_by_role("button", name="Show everything")
    everything.click()
    assert everything.get_attribute("aria-pressed") == "true"
    assert all(one.step(step).locator(".open").is_visible() for step in STEPS[1:])
    assert one.tab.locator(".loose").count() == sum("note" in step for step in texts("en")["steps"])
    one.step("qkv").locator(".reveal").click()
    assert not one.step("qkv").locator(".open").is_visible() and one.step("output").locator(".open").is_visible()
    everything.click()
    everything.click()
    one.reload()
    assert one.step("qkv").locator(".open").is_visible() is False
    assert one.step("weights").locator(".open").is_visible()


# Changing numbers


def test_what_is_below_follows_at_once(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    one.tab.get_by_role("button", name="Show everything").click()
    state = example()
    changes = {
        "x.1.0": "−3",
        "wq.0.2": "0,5",
        "wk.3.3": "1e-1",
        "wv.2.2": ".25",
        "wo.0.1": "4",
        "pad.0.1": "2",
        "y.1.1": "-1",
    }
    for path, typed in changes.items():
        one.cell(path).fill(typed)
    values = {"x.1.0": -3, "wq.0.2": 0.5, "wk.3.3": 0.1, "wv.2.2": 0.25, "wo.0.1": 4, "pad.0.1": 2, "y.1.1": -1}
    for path, value in values.items():
        name, i, j = path.split(".")
        (state["pad"] if name == "pad" else state[name][int(i)])[int(j)] = value
    assert one.state() == state
    found = work(state)
    as_written = lambda rows: [[number(value) for value in row] for row in rows]  # noqa: E731
    assert one.matrix("weights", "weights") == as_written(found["scores"]["weights"])
    assert one.matrix("output", "Z") == as_written(found["output"]["z"])
    assert one.matrix("masks", "no mask") == as_written(found["masks"]["none"])
    assert one.matrix("places", "decoder reads encoder") == as_written(found["places"]["cross"])
    assert one.matrix("heads", "MultiHead(X)") == as_written(found["heads"]["out"])
    assert one.matrix("heads", "head 2") == as_written(found["heads"]["heads"][1]["weights"])
    mix = one.tab.locator(".mix tfoot td.value").all_inner_texts()
    assert mix == [number(value) for value in found["output"]["sum"]]


def test_the_wide_numbers_follow_too(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    one.tab.get_by_role("button", name="Show everything").click()
    one.tab.locator("details.given summary").click()
    one.cell("wide.wk.11.0").fill("7")
    one.cell("wide.x.2.11").fill("-5")
    one.step("cuts").get_by_role("button", name="h = 4").click()
    state = example()
    state["wide"]["wk"][11][0], state["wide"]["x"][2][11], state["wide"]["heads"] = 7, -5, 4
    cut = work(state)["cuts"][CUTS.index(4)]
    for i, part in enumerate(cut["parts"], 1):
        assert one.matrix("cuts", f"Q_{i} K_{i}ᵀ") == [[number(value) for value in row] for row in part]
        assert one.matrix("cuts", f"h = 4, head {i}") == [[number(v) for v in row] for row in cut["weights"][i - 1]]
    assert one.matrix("cuts", "Q Kᵀ") == [[number(value) for value in row] for row in cut["sum"]]
    assert one.state()["wide"]["heads"] == 4


def test_scale_masks_heads_and_rows_are_switches(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    one.tab.get_by_role("button", name="Show everything").click()
    one.step("weights").get_by_label("divide by").uncheck()
    one.step("heads").get_by_label("causal").check()
    one.step("heads").get_by_role("button", name="4", exact=True).click()
    one.step("output").get_by_role("button", name="谁").click()
    assert one.state() == example() | {"scale": False, "causal": True, "heads": 4, "look": 2}
    assert one.step("weights").get_by_label("causal").is_checked()
    assert one.matrix("weights", "weights")[0] == ["1.00", "–", "–"]
    assert one.step("heads").locator(".card").count() == 4
    assert "code of 谁" in one.step("output").locator(".prose").first.inner_text()


def test_what_is_no_number_is_marked_and_changes_nothing(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    cell = one.cell("x.0.1")
    for typed in ("", "-", "abc", "1e999", "1e7", "2..3", "1 2x", "0x10", "Infinity"):
        cell.fill("5")
        cell.fill(typed)
        assert one.state()["x"][0][1] == 5, typed
        assert cell.get_attribute("aria-invalid") == "true", typed
        problem = one.tab.locator(f'[id="{cell.get_attribute("aria-errormessage")}"]')
        assert "X row 1 (我) column 2" in problem.inner_text() and "5 stays in force" in problem.inner_text()
        one.cell("x.0.2").focus()
        assert cell.input_value() == typed and cell.get_attribute("aria-invalid") == "true"
        cell.focus()
        one.tab.keyboard.press("Escape")
        assert cell.input_value() == "5" and cell.get_attribute("aria-invalid") is None


def test_typing_is_not_interfered_with(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    cell = one.cell("x.0.0")
    cell.focus()
    for typed in ("-", "0", ".", "5", "0"):
        one.tab.keyboard.press(typed)
    assert cell.input_value() == "-0.50"
    assert one.state()["x"][0][0] == -0.5
    one.cell("x.2.3").focus()
    assert cell.input_value() == "−0.5"


def test_tokens_come_and_go(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    add, remove = (one.step("tokens").get_by_role("button", name=name) for name in ("Add a token", "Remove the last"))
    one.cell("x.2.3").fill("7")
    for _ in range(3):
        add.click()
    assert add.is_disabled()
    state = one.state()
    assert [len(state[name]) for name in ("tokens", "x")] == [6, 6] and len(state["wide"]["x"]) == 6
    assert state["x"][2][3] == 7
    agree(one.tab.evaluate("headwise.work(headwise.state())"), work(state))
    for _ in range(5):
        remove.click()
    assert remove.is_disabled()
    assert one.state()["tokens"] == ["我"] and one.state()["look"] == 0
    add.click()
    assert one.state()["x"][1] == example()["x"][1]


def test_the_random_draw_is_made_only_when_its_inputs_change(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    one.step("scale").locator(".reveal").click()
    one.tab.evaluate(
        "() => { window.calls = 0; const cos = Math.cos; Math.cos = (x) => { window.calls++; return cos(x); }; }"
    )
    one.cell("x.0.0").fill("3")
    assert one.tab.evaluate("window.calls") == 0
    one.cell("random.seed").fill("12")
    one.cell("random.keys").fill("1")
    one.cell("random.keys").fill("40")
    assert one.tab.evaluate("window.calls") > 100_000
    expected = work(example() | {"random": {"seed": 12, "queries": 64, "keys": 40}})["random"]
    last = one.step("scale").locator("table.random tbody tr").last.locator("td").all_inner_texts()
    names = ("deviation", "entropy", "largest", "gradient")
    assert last == [number(expected[-1][side][name]) for name in names for side in ("unscaled", "scaled")]


def test_the_chart_draws_the_table(lesson: Callable[..., Lesson]) -> None:
    one = lesson(fragment="#open=5")
    random = work(example())["random"]
    charts = one.step("scale").locator(".chart svg")
    for name, chart, top in (("entropy", charts.nth(0), np.log(16)), ("gradient", charts.nth(1), 1.0)):
        label = chart.get_attribute("aria-label") or ""
        for side, series in (("scaled", 0), ("unscaled", 1)):
            values = [found[side][name] for found in random]
            assert ", ".join(number(value) for value in values) in label
            heights = (
                chart.locator("g")
                .nth(series)
                .locator("circle")
                .evaluate_all("c => c.map((one) => one.cy.baseVal.value)")
            )
            zero, full = (chart.locator("line").nth(i).evaluate("line => line.y1.baseVal.value") for i in (0, 1))
            assert zero > full, "more is higher"
            assert heights == pytest.approx([zero + (full - zero) * value / top for value in values], abs=0.01)


def test_an_update_touches_only_what_differs(lesson: Callable[..., Lesson]) -> None:
    """A page with all steps open has some 9,000 elements: a number that changes must not cost them all."""
    one = lesson()
    one.tab.get_by_role("button", name="Show everything").click()
    touched = """(path) => {
        const watcher = new MutationObserver(() => {}), cell = document.querySelector(`[data-cell="${path}"]`);
        watcher.observe(document.querySelector("main"), {
            subtree: true, childList: true, attributes: true, characterData: true });
        cell.value = "1.5";
        cell.dispatchEvent(new Event("input", { bubbles: true }));
        const records = watcher.takeRecords(), of = (node) => node.closest ? node : node.parentElement;
        return {
            added: records.flatMap((record) => [...record.addedNodes].map((node) => node.nodeName)),
            steps: [...new Set(records.map((record) => of(record.target).closest("section")?.id))].sort(),
        };
    }"""
    later = ["heads", "masks", "output", "places", "qkv", "weights"]
    for path, steps in (("y.0.0", ["places"]), ("wide.wv.0.0", ["cuts"]), ("x.0.0", ["", *later])):
        assert one.tab.evaluate(touched, path) == {"added": [], "steps": steps}


# Draws of step 9


def uniforms(seed: int, count: int) -> list[float]:
    """mulberry32, in whole numbers."""
    made = []
    for _ in range(count):
        seed = (seed + 0x6D2B79F5) % 2**32
        t = (seed ^ (seed >> 15)) * (seed | 1) % 2**32
        t ^= (t + (t ^ (t >> 7)) * (t | 61)) % 2**32
        made.append((t ^ (t >> 14)) / 2**32)
    return made


def drawn(kind: str, seed: int) -> dict[str, Any]:
    tenths = lambda values: np.floor(10 * values + 0.5) / 10  # noqa: E731
    noise = [normals(seed * 4 + stream, 144).reshape(12, 12) for stream in (1, 2, 3)]
    wq = tenths(0.3 * noise[0])
    return {
        "x": np.floor(5 * np.array(uniforms(seed * 4, 72)).reshape(6, 12)) - 2,
        "wq": wq,
        "wk": tenths((0.5 if kind == "alike" else 0) * wq + 0.3 * noise[1]),
        "wv": tenths(0.3 * noise[2]),
    }


def test_a_draw_is_the_same_everywhere(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    one.step("cuts").locator(".reveal").click()
    one.step("cuts").get_by_role("button", name="independent").click()
    one.step("cuts").get_by_role("button", name="independent").click()
    assert "draw=free-2" in one.fragment()
    expected = drawn("free", 2)
    for name in ("wq", "wk", "wv"):
        np.testing.assert_allclose(one.state()["wide"][name], expected[name], atol=1e-12)
    assert one.state()["wide"]["x"] == expected["x"][:3].tolist()
    other = lesson(fragment="#draw=free-2")
    assert other.state() == one.state()
    one.step("cuts").get_by_role("button", name="The example’s numbers").click()
    assert one.state() == example()


@pytest.mark.parametrize(("n", "scale", "causal"), [(3, True, False), (5, False, True)])
def test_the_count_over_draws_is_what_it_says(lesson: Callable[..., Lesson], n: int, scale: bool, causal: bool) -> None:
    tokens = ",".join("abcde"[:n])
    one = lesson(fragment=f"#open=9&tokens={tokens}&scale={int(scale)}&causal={int(causal)}")
    rows = one.tab.locator("table.tally tbody tr")
    found = {}
    for row, kind in enumerate(("alike", "free")):
        wins = dict.fromkeys(CUTS[1:], 0)
        for seed in range(1, 201):
            made = drawn(kind, seed)
            q, k = made["x"][:n] @ made["wq"], made["x"][:n] @ made["wk"]
            focus = {}
            for h in CUTS:
                scores = np.stack(np.split(q, h, 1)) @ np.stack(np.split(k, h, 1)).transpose(0, 2, 1)
                scores = scores / (np.sqrt(12 / h) if scale else 1) - (
                    1e9 * np.triu(np.ones((n, n)), 1) if causal else 0
                )
                e = np.exp(scores - scores.max(-1, keepdims=True))
                focus[h] = (e / e.sum(-1, keepdims=True))[:, range(n), range(n)].mean()
            for h in wins:
                wins[h] += focus[1] > focus[h]
        found[kind] = [int(text) for text in rows.nth(row).locator("td").all_text_contents()]
        assert found[kind] == list(wins.values())
    if scale and not causal:
        # What the text says of it.
        assert min(found["alike"]) > 160 and all(70 < count < 130 for count in found["free"])
