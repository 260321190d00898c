"""The page of a verdict in a real browser: in both themes, on a phone, under its own policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headwise.studies import evidence
from headwise.studies.page.document import page
from tests.browser.tabs import Opened
from tests.studies.small import finished, small_plan


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("matplotlib", reason="needs matplotlib (pip install headwise[study])")
    plan = small_plan(heads=(1, 2), seeds=2, steps=2)
    study = finished(plan, tmp_path_factory.mktemp("verdict") / "study")
    return page([study.path], evidence.read([study.path]), "en")


COLOURS = """() => {
    const marks = [...document.querySelectorAll('svg path[stroke="var(--s1)"]')];
    return [marks.length, getComputedStyle(marks[0]).stroke, getComputedStyle(document.querySelector('svg text')).fill];
}"""


def test_charts_follow_the_theme(open_page: Callable[..., Any], html: str) -> None:
    """The fixture sees to it that nothing was loaded, and that no policy had to refuse a style."""
    light: Opened = open_page(html, color_scheme="light")
    dark: Opened = open_page(html, color_scheme="dark")
    marks, *colours = light.tab.evaluate(COLOURS)
    assert marks > 10
    assert colours == ["rgb(0, 103, 163)", "rgb(88, 96, 104)"]
    assert dark.tab.evaluate(COLOURS) == [marks, "rgb(85, 174, 232)", "rgb(155, 164, 172)"]


@pytest.mark.parametrize("width", [360, 1440])
def test_nothing_is_wider_than_the_window(open_page: Callable[..., Any], html: str, width: int) -> None:
    opened: Opened = open_page(html, width)
    opened.tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
    sizes = opened.tab.evaluate(
        "[...document.querySelectorAll('.maprow img, .figures svg')].map(one => one.getBoundingClientRect().width)"
    )
    assert min(sizes) >= 60
    assert max(sizes) <= width
