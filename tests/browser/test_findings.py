"""Roles, pairs and labels in a real browser: by pointer, by keyboard, on a phone, with hostile strings."""

from __future__ import annotations

from typing import Any

import pytest

from headwise.report import page
from tests.browser.test_page import Report
from tests.report.recorded import HOSTILE, alike, filled, whole


@pytest.fixture
def opened(open_page: Any) -> Any:
    def open_(profile: Any, width: int = 1440, **context: Any) -> Report:
        report: Report = open_page(page(profile), width, kind=Report, **context)
        return report

    return open_


def test_roles_are_seen_in_cells_and_chosen_by_a_chip(opened: Any) -> None:
    one = opened(whole())
    assert one.cell(0).inner_text().split() == [">0.99", "PO"]
    assert one.cell(0).get_attribute("aria-label") == "L0H0: 0.9999, positional(0), self"
    chip = one.tab.locator('#chips [data-role="sink"]')
    assert chip.inner_text().split() == ["S", "sink", "2"]
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    assert one.shown() == ["L0H1", "L0H2"]
    assert one.tab.locator("#grid td.faint").count() == 4
    assert one.tab.locator("#role").input_value() == "sink"
    chip.click()
    assert len(one.shown()) == 6
    one.tab.select_option("#role", "self")
    assert one.shown() == ["L0H0", "L1H2"]
    one.tab.select_option("#role", "")
    one.tab.select_option("#tags", "1")
    assert [one.cell(row).inner_text() for row in range(6)] == ["PO", "S", "S", "", "", "PO"]


def test_roles_sort_and_filter_the_table(opened: Any) -> None:
    one = opened(whole())
    one.sort("Roles")
    assert one.shown() == ["L0H0", "L1H2", "L0H1", "L0H2", "L1H0", "L1H1"], "heads without a role stay last"
    one.sort("Roles")
    assert one.shown()[:2] == ["L0H1", "L0H2"]
    one.tab.fill("#filter", "positional l1")
    assert one.shown() == ["L1H2"]


def test_the_card_gives_the_evidence_and_the_keys(opened: Any) -> None:
    one = opened(whole())
    one.cell(2).click()
    card = one.tab.locator("#card").inner_text()
    assert "sink weight that the first key receives from a row that may see it: 0.8 ± 0 over texts (> 0.3)" in card
    items = one.tab.locator("#card .received li").all_inner_texts()
    assert items[0].endswith(" 0.8 ± 0")
    assert HOSTILE in items[0]
    one.cell(3).click()
    assert "no number of this head passes a threshold" in one.tab.locator("#card").inner_text()


def test_the_keyboard_reads_every_pair(opened: Any) -> None:
    one = opened(whole())
    read, at = one.tab.locator("#pair-readout"), "document.activeElement.dataset.pair"
    assert read.inner_text().startswith("L1H1 – L1H2"), "the most alike pair is there first"
    assert "Bhattacharyya coefficient 0.99996" in read.inner_text()
    one.tab.locator('#pair-box [data-pair="1,2"]').focus()
    for key, pair in {
        "ArrowLeft": "1,1",
        "ArrowUp": "0,1",
        "Home": "0,0",
        "Control+End": "2,2",
        "ArrowDown": "2,2",
    }.items():
        one.tab.keyboard.press(key)
        assert one.tab.evaluate(at) == pair, key
    one.tab.keyboard.press("Home")
    assert read.inner_text().startswith("L1H2 – L1H0")
    assert "Hellinger distance 0.25 ± 0" in read.inner_text()
    assert one.tab.locator('#pair-box [tabindex="0"]').count() == 1


def test_pairs_by_pointer_list_and_table(opened: Any) -> None:
    one = opened(whole())
    one.tab.select_option("#pair-layer", "0")
    one.tab.hover('#pair-box [data-pair="0,2"]')
    assert one.tab.locator("#pair-readout").inner_text().startswith("L0H0 – L0H2 Bhattacharyya coefficient 0.25")
    assert one.tab.locator('#pair-box [data-pair="2,0"]').inner_text() == "0.25"
    one.tab.select_option("#pair-measure", "js")
    assert one.tab.locator('#pair-box [data-pair="2,0"]').get_attribute("aria-label") == "H2 and H0: 0.75 ± 0"
    one.tab.locator("#top button").first.click()
    assert one.tab.locator("#pair-layer").input_value() == "1"
    assert one.tab.evaluate("document.activeElement.dataset.pair") == "1,2"
    one.tab.click("#pair-all summary")
    rows = one.tab.locator("#pair-all tbody tr")
    rows.first.wait_for()
    assert [text.split("\t")[0] for text in rows.all_inner_texts()] == ["H1 – H2", "H0 – H2", "H0 – H1"]


def test_a_label_changes_grid_card_and_table_and_back(opened: Any) -> None:
    one = opened(whole())
    cell = one.tab.locator("#row-1 td").first
    before = cell.inner_text()
    one.tab.select_option("#label", "1")
    assert cell.inner_text() == "0.400" != before
    assert one.cell(1).get_attribute("aria-label") == "L0H1: 0.4, sink"
    one.cell(1).click()
    assert f"rows labelled {HOSTILE}; roles and keys: of all rows" in one.tab.locator("#card .where").first.inner_text()
    assert one.tab.locator("#shown").inner_text() == f"6 heads, rows labelled {HOSTILE}"
    assert one.tab.evaluate("window.hacked === undefined")
    one.tab.select_option("#label", "-1")
    assert cell.inner_text() == before
    assert one.tab.locator("#shown").inner_text() == "6 heads"


def test_the_table_of_a_label_is_written_like_that_of_all_rows(opened: Any) -> None:
    """Two implementations, one of them in Python, format the cells."""
    values = [[0.9999, 1.0, 0.00004, 0.0], [0.5, 0.12345, 0.99951, 0.0005]]
    means = {"self_focus": values, "distance": [[1234.5678, 0.04, 20.0, 3.0], [0.0, 0.051, 12.26, 9999.0]]}
    one = opened(filled(means, labels={"all of them": means}))
    cells = one.tab.locator("#table tbody td")
    before = cells.all_inner_texts()
    assert ">0.999" in before
    assert "1,234.6" in before
    one.tab.select_option("#label", "0")
    assert cells.all_inner_texts() == before


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_never_scrolls_sideways_whatever_is_opened(opened: Any, scheme: str) -> None:
    one = opened(whole(), width=360, color_scheme=scheme)
    one.cell(1).click()
    one.tab.select_option("#label", "1")
    one.tab.click("#pair-all summary")
    one.tab.locator("#pair-all tbody tr").first.wait_for()
    assert one.tab.evaluate("document.documentElement.scrollWidth") == 360


def test_pairs_alone_are_shown_without_any_measure_of_rows(opened: Any) -> None:
    one = opened(filled({"first": [[0.1] * 3]}, pairs=[alike(0.5, 0.25, 0.75)]))
    assert one.tab.locator("#pair-box td[data-pair]").count() == 9
    assert not one.tab.locator("#rows-label").is_visible()


def test_measures_that_are_left_out_say_where_they_are(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.report.pairs.EMBEDDED", 6)
    one = opened(whole())
    one.tab.select_option("#pair-measure", "js")
    assert 'profile.pairs("js") has them' in one.tab.locator("#pair-box").inner_text()
    assert one.tab.locator("#top tbody tr").count() == 6
