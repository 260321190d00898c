"""A real browser for the pages, and what a page must never do: complain, or ask the network for anything."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.lesson.page import page
from tests.browser.lessons import Lesson
from tests.browser.tabs import Opened

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install headwise[dev])")
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH: the page cannot be opened")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens HTML as a file; at the end, no page may have complained or asked for anything but itself."""
    pages: list[Opened] = []

    def open_(html: str, width: int = 1440, kind: type[Opened] = Opened, **context: Any) -> Opened:
        file = tmp_path / f"page-{len(pages)}.html"
        file.write_text(html, encoding="utf-8")
        pages.append(kind(browser, file, width, **context))
        return pages[-1]

    yield open_
    for one in pages:
        one.context.close()
        assert one.said == []
        assert [url for url in one.asked if url.partition("#")[0] not in (one.address, "data:,")] == []


@pytest.fixture
def lesson(open_page: Callable[..., Any]) -> Callable[..., Lesson]:
    """Opens the lesson in a language, with the article's numbers or others."""

    def open_(language: str = "en", width: int = 1440, state: Any = None, **context: Any) -> Lesson:
        made: Lesson = open_page(page(language, state), width, kind=Lesson, **context)
        return made

    return open_
