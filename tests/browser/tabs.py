"""A page in a tab of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Opened:
    """A page in a tab of its own, with all that it said and asked for."""

    def __init__(self, browser: Any, file: Path, width: int, fragment: str = "", **context: Any) -> None:
        self.address = file.as_uri()
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **context)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(5000)
        self.tab.set_default_navigation_timeout(60_000)  # a busy machine takes its time over a large page
        self.said: list[str] = []
        self.asked: list[str] = []
        self.tab.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(self.address + fragment)
