"""The lesson as tests use it: open in a tab, with its numbers."""

from __future__ import annotations

from typing import Any

from headwise.lesson.contents import texts
from tests.browser.tabs import Opened

STEPS = [step["id"] for step in texts("en")["steps"]]
HOSTILE = "</script><img src=x onerror=window.hacked=1>"
SHORT = "</script><img src=x>"
ODD = [SHORT, "👩‍👩‍👧‍👦", "مرحبا", HOSTILE, "x" * 200, ""]
ISOLATES = dict.fromkeys((0x2068, 0x2069))
AGREES = 4e-6


class Lesson(Opened):
    """The lesson, open in a tab."""

    def cell(self, path: str) -> Any:
        return self.tab.locator(f'input[data-cell="{path}"]')

    def step(self, name: str) -> Any:
        return self.tab.locator(f"#{name}")

    def matrix(self, step: str, name: str, nth: int = 0) -> list[list[str]]:
        """The cells of a step's matrix or weights, as they are written."""
        figures = self.step(step).locator(f'figure.matrix:has(table[aria-label="{name}"])')
        read = """figure => [...figure.querySelectorAll("tbody tr")].map(
            (tr) => [...tr.querySelectorAll("td:not(.extra)")].map((td) => td.textContent))"""
        found: list[list[str]] = figures.nth(nth).evaluate(read)
        return found

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.tab.evaluate("headwise.state()")
        return found

    def tip(self) -> str:
        """What a weight says, without the marks that isolate its tokens."""
        assert self.tab.locator("#tip.shown").count() == 1
        return str(self.tab.locator("#tip").inner_text()).translate(ISOLATES)

    def fragment(self) -> str:
        """The address's part after #, once it is written."""
        self.tab.wait_for_timeout(250)
        found: str = self.tab.evaluate("location.hash")
        return found

    def reload(self) -> None:
        self.tab.wait_for_timeout(250)
        self.tab.reload()


def agree(found: Any, expected: Any, path: str = "") -> None:
    """The same structure, and every number equal up to float32 sums in another order."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for key, value in expected.items():
            agree(found[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for i, value in enumerate(expected):
            agree(found[i], value, f"{path}.{i}")
    elif isinstance(expected, str):
        assert found == expected, path
    else:
        assert found is not None and abs(found - expected) <= AGREES * max(1, abs(expected)), (
            f"{path}: {found}, expected {expected}"
        )
