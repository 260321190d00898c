"""The page as text: what it holds without a script, and that nothing outside it is named."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from headwise.lesson import prose, still
from headwise.lesson.contents import LANGUAGES, filled, maps, number, texts
from headwise.lesson.page import page
from headwise.lesson.working import example, work

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\u2028'\"&amp;"
VOID = {"meta", "link", "br", "input", "img"}
LARGEST = 400_000

each_language = pytest.mark.parametrize("language", LANGUAGES)


class Reader(HTMLParser):
    """Collects elements, texts and scripts, and sees that what is opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.inside:
            self.inside[self.open[-1]].append(data)
        else:
            self.text += data

    def values(self, name: str) -> list[str]:
        return [attributes[name] or "" for _, attributes in self.elements if name in attributes]


@each_language
def test_the_page_is_whole_and_small(language: str) -> None:
    html = page(language)
    read = Reader(html)
    assert len(html.encode()) < LARGEST
    assert html == page(language), "the same page each time: it is kept under version control"
    assert [tag for tag, _ in read.elements].count("section") == len(texts(language)["steps"]) + 1
    assert read.elements[0] == ("html", {"lang": "zh-CN" if language == "zh" else "en"})
    ids = read.values("id")
    assert len(ids) == len(set(ids))
    assert set(read.values("aria-labelledby")) <= set(ids)
    anchors = [href for href in read.values("href") if href != "data:,"]
    assert len(anchors) == 13 and {href.removeprefix("#") for href in anchors} <= set(ids)


def test_it_names_nothing_outside() -> None:
    html = page("en")
    read = Reader(html)
    assert read.values("src") == []
    assert set(re.findall(r"https?://[^\s\"'<)]*", html)) == {"http://www.w3.org/2000/svg"}, "a name, not a place"
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|localStorage|sessionStorage|innerHTML|eval\(", html)


def test_the_policy_admits_its_own_style_and_script_alone() -> None:
    html = page("en")
    read = Reader(html)
    policy = next(a["content"] for _, a in read.elements if a.get("http-equiv") == "Content-Security-Policy") or ""
    data, script = read.inside["script"]
    (style,) = read.inside["style"]
    for name, text in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert not read.values("style") and not [name for _, a in read.elements for name in a if name.startswith("on")]
    assert json.loads(data)["example"] == example()


@each_language
def test_every_text_can_be_read_without_a_script(language: str) -> None:
    state = example()
    numbers, words = work(state), texts(language)
    bare = lambda text: re.sub(r"[\s_^ᵀT·⋅]", "", text)  # noqa: E731 - what typesetting changes
    text = bare(Reader(page(language)).text)
    said = [words[name] for name in ("title", "subtitle", "lead")]
    for step in words["steps"]:
        said += [step[key] for key in ("title", "text", "after", "ask", "answer", "note") if key in step]
        said += step["choices"]
    for exercise in words["exercises"]:
        said += [exercise[key] for key in ("ask", "hint", "because")]
    # An index below and one above stand in another order than they are written.
    swapped = lambda text: re.sub(r"W_i\^([QKV])", r"W\1i", text)  # noqa: E731
    for one in said:
        for paragraph in swapped(filled(one, state, numbers)).strip().split("\n\n"):
            assert bare(paragraph) in text, paragraph
    assert Reader(page(language)).elements.count(("math", {"display": "block"})) >= 12


def test_both_languages_are_in_each_page() -> None:
    for language in LANGUAGES:
        data = json.loads(Reader(page(language)).inside["script"][0])
        assert data["language"] == language
        for name in LANGUAGES:
            assert data["languages"][name]["steps"] == texts(name)["steps"]
            assert data["languages"][name]["ui"] == texts(name)["ui"]


def test_hostile_tokens_stay_text() -> None:
    state = example() | {"tokens": [HOSTILE, "", "مرحبا"], "target": [HOSTILE] * 4}
    html = page("en", state)
    read = Reader(html)
    assert len(read.inside["script"]) == 2 and "img" not in [tag for tag, _ in read.elements]
    assert json.loads(read.inside["script"][0])["opening"]["tokens"] == state["tokens"]
    assert f"{HOSTILE[:23]}…" in read.text and "∅" in read.text


def test_other_numbers_are_in_the_tables() -> None:
    state = example()
    state["x"][0], state["causal"] = [5, 0, 0, 0], True
    text = Reader(page("en", state)).text
    assert number(work(state)["scores"]["weights"][2][0]) in text
    assert Reader(page("en", state)).values("class").count("hidden") > Reader(page("en")).values("class").count(
        "hidden"
    )


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of en, zh; got 'fr'"):
        page("fr")


# The tables that stand still


def table(step: str, caption: str, state: Any = None) -> still.Table:
    state = example() if state is None else state
    found = still.tables(step, state, work(state), texts("en")["ui"])
    return next(one for one in found if one.caption == caption)


def test_weights_have_their_shade_and_masks_hide() -> None:
    weights = table("weights", "weights")
    assert [cell.text for cell in weights.rows[0][1]] == ["0.70", "0.20", "0.10"]
    assert [cell.shade for cell in weights.rows[0][1]] == [14, 4, 2]
    masked = table("masks", "padding mask")
    assert [cell.hidden for cell in masked.rows[0][1]] == [False, False, False, True]
    both = table("masks", texts("en")["ui"]["both"])
    assert [[cell.hidden for cell in cells] for _, cells in both.rows][1] == [False, False, True, True]


def test_numbers_have_as_many_decimals_as_they_need() -> None:
    assert still.decimals([[1.0, 2.0], [-3.0, 0.0]]) == 0
    assert still.decimals([[0.1 + 0.2, 1.0]]) == 1
    assert still.decimals([[1 / 3, 1.0]]) == 2
    assert [cell.text for cell in table("qkv", "K").rows[2][1]] == ["1.4", "0.5", "−2.4", "−1.6"]
    assert [cell.text for cell in table("qkv", "Q").rows[2][1]] == ["2", "3", "1", "1"]


def test_every_step_but_the_last_has_tables() -> None:
    state = example()
    numbers = work(state)
    for language in LANGUAGES:
        for step in texts(language)["steps"]:
            made = still.tables(step["id"], state, numbers, texts(language)["ui"])
            assert bool(made) == (step["id"] != "claims")
            for one in made:
                assert {len(cells) for _, cells in one.rows} == {len(one.columns)}
    layers = table("model", texts("en")["ui"]["entropy"]).rows
    assert [cell.text for cell in layers[5][1]] == [number(value) for value in maps()["entropy"][5]]


# Symbols


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("d_k", '<span class="sym"><i>d</i><sub><i>k</i></sub></span>'),
        ("d_model", '<span class="sym"><i>d</i><sub>model</sub></span>'),
        ("W^Q", '<span class="sym"><i>W</i><sup><i>Q</i></sup></span>'),
        (
            "W_i^Q",
            '<span class="sym"><i>W</i><span class="both"><sup><i>Q</i></sup><sub><i>i</i></sub></span></span>',
        ),
        ("K_iᵀ", '<span class="sym"><i>K</i><sub><i>i</i></sub><sup>T</sup></span>'),
        ("head_1", '<span class="sym">head<sub>1</sub></span>'),
        ("√d_k", '<span class="sym">√<span class="rooted"><i>d</i><sub><i>k</i></sub></span></span>'),
        ("Q、K", '<span class="sym"><i>Q</i></span>、<span class="sym"><i>K</i></span>'),
        ("P V", '<span class="sym"><i>P</i></span>\u00a0<span class="sym"><i>V</i></span>'),
        ("N² = 4", '<span class="sym"><i>N</i></span>²\u00a0=\u00a04'),
    ],
)
def test_symbols_are_set(text: str, html: str) -> None:
    assert prose.symbols(text) == html


@pytest.mark.parametrize("text", ["head_dim", "L0H2", "I am", "MultiHeadAttention", "<b>", "768", "own"])
def test_words_stay_words(text: str) -> None:
    assert "<span" not in prose.symbols(text) and "<b>" not in prose.symbols(text)


def test_tokens_are_no_symbols() -> None:
    state = example() | {"tokens": ["K", "是", "x" * 99]}
    made = prose.inline("{state.tokens.0} d_k {state.tokens} {scores.divisor}", state, work(state))
    assert made.startswith('<bdi class="token" dir="auto">K</bdi> <span class="sym">')
    assert f'<bdi class="token" dir="auto">{"x" * 23}…</bdi>' in made
    assert made.endswith('<span class="n">2.00</span>')
