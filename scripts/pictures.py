"""The pictures of the README: `python scripts/pictures.py report.html` takes them of a report page, light and dark."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
WIDTH = 1100


def main() -> None:
    page_file = Path(sys.argv[1]).resolve()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme, viewport={"width": WIDTH, "height": 800})
            page = context.new_page()
            page.goto(page_file.as_uri())
            page.select_option("#measure", "entropy_ratio")
            grid = page.locator("[role=grid]").first.bounding_box()
            assert grid is not None, "the page has no grid"
            bottom = grid["y"] + grid["height"] + 40
            page.screenshot(
                path=IMAGES / f"report-{scheme}.png",
                full_page=True,
                clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom},
            )
        browser.close()


if __name__ == "__main__":
    main()
