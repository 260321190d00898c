"""The lesson as a page: its address, languages, keys, phones, paper, and hostile text."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable

import pytest

from headwise.lesson.contents import LANGUAGES, maps, number, texts
from headwise.lesson.working import example
from tests.browser.lessons import HOSTILE, ISOLATES, ODD, SHORT, STEPS, Lesson

# The address


def test_the_address_holds_what_differs(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    assert one.fragment() == ""
    one.cell("x.0.1").fill("2,5")
    assert one.fragment() == "#x.0.1=2.5"
    one.step("heads").locator(".reveal").click()
    one.step("heads").get_by_role("button", name="4", exact=True).click()
    one.step("tokens").locator("input.token").nth(2).fill("他, 她")
    one.step("tokens").get_by_role("button", name="Add a token").click()
    one.step("output").locator(".reveal").click()
    one.step("output").get_by_role("button", name="他, 她").click()
    one.step("places").locator(".reveal").click()
    one.step("places").locator("input.token").nth(1).fill("谁&=?")
    one.step("places").get_by_role("button", name="Remove the last").click()
    one.tab.get_by_role("button", name="中文").click()
    one.step("model").locator(".reveal").click()
    one.step("model").get_by_role("button", name="L3").click()
    state = one.state()
    fragment = one.fragment()
    assert {"heads=4", "x.0.1=2.5", "lang=zh", "open=4,7,8,10", "layer=3", "look=3"} <= set(fragment[1:].split("&"))
    one.tab.reload()
    assert one.state() == state and state["tokens"] == ["我", "是", "他, 她", "的"]
    assert state["target"] == ["<s>", "谁&=?", "am"] and state["look"] == 2
    assert one.tab.evaluate("document.documentElement.lang") == "zh-CN"
    assert one.step("model").locator("[aria-pressed=true]", has_text="L3").is_visible()
    one.tab.goto("about:blank")
    one.tab.go_back()
    assert one.state() == state
    one.tab.evaluate("location.hash = '#causal=1'")
    one.tab.wait_for_timeout(50)
    assert one.state() == example() | {"causal": True}


def test_garbage_in_the_address_is_passed_over(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    for fragment in (
        "#x.0.1=NaN&x.9.9=1&wq.0=3&nonsense=1&=&&=5&%E0%A4%A&look=99&heads=3&cut=5&scale=maybe&layer=77&open=0,99,x&done=all",
        "#__proto__.polluted=1&constructor.0.0=2&x.__proto__=1&toString.0.0=1&lang=__proto__&random.seed=-1&random.keys=1e9",
        "#draw=alike-99999999&draw=&random.queries=1.5&wide.x.0.0=1e400&pad.0.0=" + "9" * 400,
        "#" + "&" * 5000 + "=",
    ):
        one.tab.goto(one.address + fragment)
        one.tab.reload()
        assert one.state() == example(), fragment
        assert one.tab.evaluate("({}).polluted === undefined")
        assert one.step("tokens").locator("input.token").count() == 3


def test_tokens_in_the_address_may_be_anything(lesson: Callable[..., Lesson]) -> None:
    one = lesson(fragment="#tokens=%E0%A4%A")
    assert one.state()["tokens"] == ["%E0%A4%A"] and one.state()["look"] == 0
    one.tab.evaluate("location.hash = 'tokens=' + Array(9).fill('a').join() + '&wide.x.5.0=3'")
    one.tab.wait_for_timeout(50)
    assert one.state()["tokens"] == ["a"] * 6 and one.state()["wide"]["x"][5][0] == 3


def test_a_place_in_the_page_is_no_state(lesson: Callable[..., Lesson]) -> None:
    one = lesson(fragment="#cuts")
    assert one.tab.evaluate("scrollY") > 1000
    one.cell("x.0.0").fill("4")
    one.tab.locator("nav a", has_text="Scores become weights").click()
    assert one.state()["x"][0][0] == 4
    assert one.tab.evaluate("document.activeElement.id") == "title-weights"
    assert one.fragment() == "#x.0.0=4"
    one.tab.evaluate("location.hash = 'exercises'")
    one.tab.wait_for_timeout(50)
    assert one.state()["x"][0][0] == 4


def test_reset_brings_the_article_back(lesson: Callable[..., Lesson]) -> None:
    one = lesson(fragment="#x.0.0=9&tokens=a,b&draw=alike-3&causal=1&random.seed=5")
    assert one.tab.locator("#changed").is_visible()
    one.cell("x.0.1").fill("oops")
    one.tab.locator("#changed").get_by_role("button").click()
    assert one.state() == example()
    assert one.tab.locator("[aria-invalid]").count() == 0
    assert not one.tab.locator("#changed").is_visible()
    assert one.fragment() == ""


def test_hostile_tokens_are_inert(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    for _ in range(3):
        one.step("tokens").get_by_role("button", name="Add a token").click()
    for i, text in enumerate(ODD):
        one.step("tokens").locator("input.token").nth(i).fill(text)
    one.tab.get_by_role("button", name="Show everything").click()
    one.reload()
    assert one.state()["tokens"] == ODD
    assert one.tab.evaluate("window.hacked === undefined") and one.tab.locator("img").count() == 0
    assert SHORT in one.step("tokens").locator(".prose").first.inner_text()
    assert HOSTILE[:20] in one.step("tokens").locator(".prose").first.inner_text()
    assert "∅" in one.step("tokens").locator(".prose").first.inner_text()
    assert one.step("weights").locator("th bdi[dir=auto]").count() > 6
    for width in (360, 1440):
        one.tab.set_viewport_size({"width": width, "height": 800})
        assert one.tab.evaluate("document.documentElement.scrollWidth") == width
    made = lesson(state=example() | {"tokens": ODD[:3]}, java_script_enabled=False)
    assert made.tab.locator("img").count() == 0


def test_the_policy_stops_what_escaping_would_miss(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    one.tab.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.hacked = 3";
        document.body.append(script);
        new Image().src = "http://127.0.0.1:9/x.png";
    }""")
    one.tab.wait_for_timeout(100)
    assert one.tab.evaluate("window.hacked === undefined")
    assert len([text for text in one.said if "Content Security Policy" in text]) == 2
    # What this test did on purpose is not the page's doing.
    one.said.clear()
    one.asked.clear()


# Languages, keys, sizes, paper


def test_one_switch_changes_the_language_and_nothing_else(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    one.cell("x.0.0").fill("4")
    one.tab.get_by_role("button", name="Show everything").click()
    switch = one.tab.get_by_role("button", name="中文")
    switch.click()
    assert one.tab.title() == f"{texts('zh')['title']} · headwise"
    assert one.tab.locator("html").get_attribute("lang") == "zh-CN"
    assert one.tab.evaluate("document.activeElement.textContent") == "English"
    assert one.state()["x"][0][0] == 4
    words = one.tab.locator("body").inner_text().replace(" ".join(maps()["tokens"]), "")
    assert re.findall(r"[A-Za-z]{3,} [a-z]{3,} [a-z]{2,}", words) == []
    one.tab.get_by_role("button", name="English").click()
    assert one.tab.locator("h1").inner_text() == texts("en")["title"]
    assert not re.search(r"[一-鿿]{4,}", one.tab.locator("main").inner_text())


def test_every_input_and_button_has_a_name(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    one.tab.get_by_role("button", name="Show everything").click()
    one.tab.locator("details.given summary").click()
    assert one.cell("wq.1.2").get_attribute("aria-label") == "W^Q row 2 column 3"
    nameless = one.tab.evaluate("""() => [...document.querySelectorAll("input, button, a, table, svg, [tabindex]")]
        .filter((e) => !(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim()))
        .map((e) => e.outerHTML)""")
    assert nameless == []
    labels = one.tab.evaluate("[...document.querySelectorAll('input.cell')].map((e) => [e.ariaLabel, e.dataset.cell])")
    # Step 9 has matrices of the same names as steps 1 and 2.
    assert len({label for label, path in labels if not path.startswith("wide")}) == len(
        [path for _, path in labels if not path.startswith("wide")]
    )
    assert all(one.tab.evaluate("[...document.querySelectorAll('input.cell')].map((e) => e.inputMode === 'decimal')"))


def test_keys_lead_from_cell_to_cell(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    focused = "document.activeElement.dataset.cell"
    one.cell("x.0.1").focus()
    for key, path in {"Enter": "x.1.1", "ArrowDown": "x.2.1", "ArrowRight": "x.2.2", "ArrowUp": "x.1.2"}.items():
        one.tab.keyboard.press(key)
        assert one.tab.evaluate(focused) == path, key
    # Inside a number the arrows belong to the caret.
    one.tab.keyboard.type("123")
    one.tab.keyboard.press("ArrowLeft")
    assert one.tab.evaluate(focused) == "x.1.2"
    one.tab.keyboard.press("Home")
    one.tab.keyboard.press("ArrowLeft")
    assert one.tab.evaluate(focused) == "x.1.1"
    one.tab.keyboard.press("Shift+Tab")
    assert one.tab.evaluate(focused) == "x.1.0"


def test_a_weight_says_in_words_what_it_is(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    one.step("weights").locator(".reveal").click()
    grid = one.step("weights").locator("[role=grid]")
    grid.locator("td[role=gridcell]").nth(2).hover()
    assert one.tip() == "我 gives 0.10 to 谁"
    assert grid.locator('[tabindex="0"]').count() == 1
    grid.locator('[tabindex="0"]').focus()
    one.tab.keyboard.press("ArrowDown")
    one.tab.keyboard.press("ArrowRight")
    assert one.tab.evaluate("document.activeElement.ariaLabel").translate(ISOLATES) == "是 gives 0.50 to 是"
    assert one.tip() == "是 gives 0.50 to 是"
    assert grid.locator('[tabindex="0"]').all_inner_texts() == ["0.50"]
    one.tab.keyboard.press("Escape")
    assert not one.tab.locator("#tip").is_visible()
    one.step("weights").get_by_label("causal").check()
    hidden = grid.locator("td.hidden").first
    assert hidden.get_attribute("aria-label").translate(ISOLATES) == "我 may not see 是"
    assert (
        "gradient" in hidden.evaluate("e => getComputedStyle(e).backgroundImage")
        and hidden.get_attribute("data-t") is None
    )
    zero = one.tab.evaluate("""() => { const cell = document.querySelector('#weights td[role=gridcell][data-t]');
        cell.style.setProperty('--t', '0'); return getComputedStyle(cell).backgroundImage; }""")
    assert zero == "none"


def test_the_maps_of_the_model(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    one.step("model").locator(".reveal").click()
    one.step("model").get_by_role("button", name="L2").click()
    found = maps()
    seven = one.step("model").locator(".map").nth(7)
    focus, entropy = (number(found[name][2][7]) for name in ("self_focus", "entropy"))
    assert seven.locator(".cells").get_attribute("aria-label") == f"L2H7: self-focus {focus}, entropy {entropy} nats"
    assert seven.locator("figcaption").inner_text().split("\n") == ["L2H7", f"self-focus {focus}", f"entropy {entropy}"]
    shades = seven.locator("i").evaluate_all("cells => cells.map((cell) => Number(cell.style.getPropertyValue('--t')))")
    assert shades == pytest.approx([value / 1000 for value in found["thousandths"][2][7]])
    seven.locator(".cells").focus()
    weights = found["thousandths"][2][7]
    i, j = divmod(max((at for at in range(256) if at // 16 != at % 16 > 1), key=lambda at: weights[at]), 16)
    # The first arrow shows where one is.
    for press in ["ArrowLeft", *["ArrowDown"] * i, *["ArrowRight"] * j]:
        one.tab.keyboard.press(press)
    a, b = found["tokens"][i], found["tokens"][j]
    assert one.tip() == f"L2H7: {a} gives {number(weights[16 * i + j] / 1000)} to {b}"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_scrolls_sideways(lesson: Callable[..., Lesson], language: str, scheme: str) -> None:
    one = lesson(
        language, fragment="#all=1&tokens=a,b,c,d,e,f&target=u,v,w,x,y,z&heads=1&x.0.0=-123456.789", color_scheme=scheme
    )
    for width in (320, 360, 768, 1088, 1440):
        one.tab.set_viewport_size({"width": width, "height": 800})
        assert one.tab.evaluate("document.documentElement.scrollWidth") == width
    one.tab.set_viewport_size({"width": 360, "height": 800})
    sizes = one.tab.evaluate(
        "[...document.querySelectorAll('main input[type=text]')].map((e) => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 16, "a phone zooms into an input with smaller letters"


def test_the_list_of_steps_folds_on_a_phone(lesson: Callable[..., Lesson]) -> None:
    one = lesson(width=360)
    link = one.tab.locator("nav a", has_text="Two masks")
    assert not link.is_visible()
    one.tab.locator("nav summary").click()
    link.click()
    assert not link.is_visible()
    assert one.step("masks").locator("h2").evaluate("e => e === document.activeElement")
    one.tab.set_viewport_size({"width": 1440, "height": 800})
    assert link.is_visible() and not one.tab.locator("nav summary").is_visible()


def test_paper_gets_everything(lesson: Callable[..., Lesson]) -> None:
    one = lesson(color_scheme="dark")
    one.tab.emulate_media(media="print", color_scheme="dark")
    one.tab.locator("table.tally").wait_for()
    for step in STEPS:
        assert one.step(step).locator(".answer").is_visible(), step
    assert all(one.step(step).locator(".working").is_visible() for step in STEPS[:-1])
    for gone in ("nav", ".controls", "#changed", ".buttons", ".reveal"):
        assert not one.tab.locator(gone).first.is_visible(), gone
    assert one.tab.locator(".because").first.is_visible()
    assert one.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    breaks = "figures => figures.map((figure) => getComputedStyle(figure).breakInside)"
    assert set(one.tab.locator("main figure").evaluate_all(breaks)) == {"avoid"}
    assert one.tab.locator("td[data-t]").first.evaluate("e => getComputedStyle(e).printColorAdjust") == "exact"
    one.tab.set_viewport_size({"width": 680, "height": 900})
    assert one.tab.evaluate("document.documentElement.scrollWidth") <= 680
    assert set(one.tab.locator(".scroll").evaluate_all("e => e.map((box) => getComputedStyle(box).overflowX)")) == {
        "visible"
    }
    pdf = one.tab.pdf(prefer_css_page_size=True)
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert 8 <= len(boxes) <= 20 and {(round(float(w)), round(float(h))) for w, h in boxes} == {(595, 842)}
    # The folded matrices were unfolded for the paper, and are folded again.
    assert not one.tab.locator("details.given").evaluate("e => e.open")


def test_without_javascript_all_of_it_can_be_read(lesson: Callable[..., Lesson]) -> None:
    one = lesson(java_script_enabled=False)
    for step in STEPS:
        assert one.step(step).locator(".answer").is_visible(), step
    assert one.tab.locator("math").count() >= 8
    rows = one.step("weights").locator("table.still").nth(2).locator("tbody tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["我", "0.70", "0.20", "0.10"],
        ["是", "0.20", "0.50", "0.30"],
        ["谁", "0.20", "0.10", "0.70"],
    ]
    shades = (
        one.step("weights")
        .locator("td[data-t]")
        .evaluate_all("e => e.map((td) => getComputedStyle(td).backgroundColor)")
    )
    assert len(set(shades)) == 5
    assert one.tab.locator("noscript").is_visible()
    assert one.tab.evaluate("document.documentElement.scrollWidth") == 1440


# Exercises


def test_exercises_are_checked(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    forms = one.tab.locator("form[data-exercise]")
    answers = [["0.1", "0,7"], ["65", "64"], ["1.5", "1,600"], ["4", "1.39"], ["8000", "8,000,000"]]
    for i, (wrong, right) in enumerate(answers):
        item = one.tab.locator(".exercises > li").nth(i)
        field = forms.nth(i).locator("input")
        field.fill(wrong)
        field.press("Enter")
        assert item.locator(".verdict").inner_text() == "Not yet."
        assert not item.locator(".because").is_visible()
        forms.nth(i).get_by_role("button", name="Hint").click()
        assert item.locator(".hint-text").is_visible()
        field.fill(right)
        forms.nth(i).get_by_role("button", name="Check").click()
        assert item.locator(".verdict").inner_text() == "Correct."
        assert item.locator(".because").is_visible()
        assert one.tab.locator(".progress").inner_text() == f"{i + 1} of 5 solved"
    one.reload()
    assert one.tab.locator(".progress").inner_text() == "5 of 5 solved"


def test_answers_in_many_ways_of_writing(lesson: Callable[..., Lesson]) -> None:
    one = lesson()
    ways = {
        "count": (["8e6", "8 000 000", "８０００000", "8.000.000"], ["8", "800000"]),
        "softmax": ([".7", "0。7", "0.70", "7/10"], ["7", "-0.7"]),
        "entropy": (["1,386", "1.39"], ["1386", "0"]),
    }
    for exercise, (right, wrong) in ways.items():
        item = one.tab.locator(".exercises > li", has=one.tab.locator(f"form[data-exercise={exercise}]"))
        for typed, verdict in [(t, "Correct.") for t in right] + [(t, "Not yet.") for t in wrong]:
            item.locator("input").fill(typed)
            item.locator("input").press("Enter")
            assert item.locator(".verdict").inner_text() == verdict, typed
            assert item.locator(".because").is_visible() == (verdict == "Correct."), typed
        for typed in ("eight", "1/0", "7/", "1/2/3"):
            item.locator("input").fill(typed)
            item.locator("input").press("Enter")
            assert item.locator(".verdict").inner_text() == "not a number", typed


def test_the_page_can_open_with_other_numbers(lesson: Callable[..., Lesson]) -> None:
    state = copy.deepcopy(example())
    state["tokens"], state["causal"], state["x"][0][0] = ["a", "b", "c"], True, 5
    one = lesson("zh", state=state)
    assert json.dumps(one.state(), sort_keys=True) == json.dumps(state, sort_keys=True)
    assert one.fragment() == ""
    one.tab.locator("#changed").get_by_role("button").click()
    assert one.state() == example()
    one.reload()
    assert one.state() == example()


def test_a_phone_without_a_minus_key_can_change_the_sign(lesson: Callable[..., Lesson]) -> None:
    one = lesson(width=360, has_touch=True, is_mobile=True)
    sign = one.tab.locator("#sign")
    assert not sign.is_visible()
    one.cell("x.1.1").tap()
    sign.tap()
    assert one.state()["x"][1][1] == -2 and one.tab.evaluate("document.activeElement.dataset.cell") == "x.1.1"
    sign.tap()
    assert one.state()["x"][1][1] == 2
    one.step("tokens").locator("input.token").first.tap()
    assert not sign.is_visible()
