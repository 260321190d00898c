"""The page in a real browser: quiet, offline, inert to hostile text, usable by mouse, keyboard and phone."""

from __future__ import annotations

from typing import Any

import pytest

from headwise.profile import Unseen
from headwise.report import page
from tests.browser.tabs import Opened
from tests.synthetic import synthetic

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2>"
TOKENS = ["我", " are", "مرحبا", "שלום", "👩‍👩‍👧‍👦", HOSTILE, "\n", ""]


class Report(Opened):
    """A report that is open in a tab."""

    def cell(self, row: int) -> Any:
        return self.tab.locator(f'#grid td[data-row="{row}"]')

    def shown(self) -> list[str]:
        """The labels in the table, from top to bottom."""
        labels: list[str] = self.tab.locator("#table tbody tr:not([hidden]) th").all_inner_texts()
        return labels

    def sort(self, title: str) -> None:
        self.tab.get_by_role("button", name=title, exact=True).click()


@pytest.fixture
def opened(open_page: Any) -> Any:
    def open_(profile: Any, width: int = 1440, **context: Any) -> Report:
        report: Report = open_page(page(profile), width, kind=Report, **context)
        return report

    return open_


def hostile_profile() -> Any:
    profile = synthetic(3, 4, name=HOSTILE + "x" * 200 + ".{}", model=HOSTILE + "y" * 200, tokens=TOKENS * 4)
    profile.unseen = [Unseen(HOSTILE + "z" * 200, HOSTILE, HOSTILE, 2)]
    return profile


def test_hostile_text_is_inert_and_readable(opened: Any) -> None:
    one = opened(hostile_profile())
    one.cell(5).click()
    assert one.tab.evaluate("window.hacked === undefined")
    assert one.tab.locator("h1").inner_text().startswith(HOSTILE)
    assert HOSTILE in one.tab.locator("#card").inner_text()
    assert one.tab.locator(".tokens bdi[dir=auto]").count() == len(TOKENS) * 4
    assert one.tab.locator("img").count() == 0


def test_the_policy_stops_what_escaping_would_miss(opened: Any) -> None:
    one = opened(synthetic(1, 1))
    failures: list[str] = []
    one.tab.on("requestfailed", lambda request: failures.append(request.failure))
    one.tab.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.hacked = 3";
        document.body.append(script);
        new Image().src = "http://127.0.0.1:9/x.png";
    }""")
    one.tab.wait_for_timeout(100)
    assert one.tab.evaluate("window.hacked === undefined")
    assert failures == ["csp"], "the image was refused by the policy, not by the network"
    assert len([text for text in one.said if "Content Security Policy" in text]) == 2
    # What this test did on purpose is not the page's doing.
    one.said.clear()
    one.asked.clear()


def test_a_measure_changes_cells_legend_and_words(opened: Any) -> None:
    profile = synthetic(3, 4)
    one = opened(profile)
    assert one.cell(5).inner_text() == f"{profile.rows['self_focus'][5]:.2f}"
    one.tab.uncheck("#stretch")
    assert one.tab.locator("#legend .marks").inner_text().split() == ["0", "0.5", "1"]
    before = one.cell(5).get_attribute("style")
    one.tab.select_option("#measure", "distance")
    assert one.cell(5).get_attribute("aria-label") == f"L1H1: {float(f'{profile.rows.distance[5]:.4g}')}"
    assert one.cell(5).get_attribute("style") != before
    assert one.tab.locator("#legend .marks span").last.inner_text() == f"{profile.rows.distance.max():.1f}"
    assert "how far away a row reads" in one.tab.locator("#meaning").inner_text()


def test_undefined_cells_are_hatched_and_say_so(opened: Any) -> None:
    one = opened(synthetic(2, 2))
    assert one.tab.locator("#grid td.undefined").count() == 0
    one.tab.select_option("#measure", "next")
    assert one.tab.locator("#grid td.undefined").count() == 4
    assert one.cell(0).get_attribute("aria-label") == "L0H0: undefined"
    assert "undefined" in one.tab.locator("#legend").inner_text()


def test_stretching_colours_to_the_data(opened: Any) -> None:
    profile = synthetic(2, 2)
    one = opened(profile)
    largest = int(profile.rows["self_focus"].argmax())
    assert one.cell(largest).evaluate("e => e.style.getPropertyValue('--t')") == "1.0000"
    one.tab.uncheck("#stretch")
    value = profile.rows["self_focus"][largest]
    assert float(one.cell(largest).evaluate("e => e.style.getPropertyValue('--t')")) == pytest.approx(value, abs=1e-4)


def test_sorting_and_filtering(opened: Any) -> None:
    profile = synthetic(3, 4)
    profile.rows.loc[7, "previous"] = float("nan")
    one = opened(profile)
    falling = profile.rows.sort_values("previous", ascending=False, na_position="last")["label"].tolist()
    one.sort("Previous token")
    header = one.tab.locator("th[data-key=previous]")
    assert header.get_attribute("aria-sort") == "descending"
    assert one.shown() == falling
    one.sort("Previous token")
    assert header.get_attribute("aria-sort") == "ascending"
    assert one.shown() == [*falling[-2::-1], falling[-1]], "an undefined value stays last"
    one.sort("Head")
    assert header.get_attribute("aria-sort") is None
    assert one.shown() == profile.rows["label"].tolist()
    one.tab.fill("#filter", "L1H")
    assert one.shown() == ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert one.tab.locator("#shown").inner_text() == "4 of 12 heads"


def test_the_keyboard_reaches_every_head(opened: Any) -> None:
    one = opened(synthetic(3, 4))
    one.cell(0).focus()
    focused = "document.activeElement.dataset.row"
    steps = {
        "ArrowRight": 1,
        "ArrowDown": 5,
        "End": 7,
        "Home": 4,
        "ArrowUp": 0,
        "Control+End": 11,
        "ArrowLeft": 10,
    }
    for key, row in steps.items():
        one.tab.keyboard.press(key)
        assert one.tab.evaluate(focused) == str(row), key
    one.tab.keyboard.press("ArrowDown")
    assert one.tab.evaluate(focused) == "10", "the last layer is the end"
    assert one.tab.locator("#readout b").first.inner_text() == "L2H2"
    assert one.tab.locator('#grid [tabindex="0"]').count() == 1
    one.tab.keyboard.press("Enter")
    assert one.tab.locator("#card h3").inner_text() == "L2H2"
    assert one.cell(10).get_attribute("aria-selected") == "true"
    assert one.tab.locator("#table tr.chosen th").all_inner_texts() == ["L2H2"]


def test_a_sentence_leads_to_its_head_and_phase(opened: Any) -> None:
    one = opened(synthetic(3, 4, phases=("prefill", "decode")))
    link = one.tab.locator(".highlights li", has_text="While decoding").locator("a").last
    label, row, measure = (
        link.inner_text(),
        link.get_attribute("data-row"),
        link.get_attribute("data-measure"),
    )
    link.click()
    assert one.tab.locator("#card h3").inner_text() == label
    assert "decode" in one.tab.locator("#card .where").inner_text()
    assert one.tab.locator("#group option:checked").inner_text() == "decode"
    assert one.tab.locator("#measure").input_value() == measure
    assert one.tab.evaluate("document.activeElement.dataset.row") == row
    assert len(one.shown()) == 12


def test_the_card_tells_all_measures_and_their_readings(opened: Any) -> None:
    profile = synthetic(3, 4)
    one = opened(profile)
    one.tab.locator("#row-6").click()
    card = one.tab.locator("#card").inner_text()
    assert "the weight that a position gives itself" in card
    assert f"{profile.rows['entropy'][6]:.4g} nats" in card
    assert one.tab.locator("#card dt").count() == len(profile.measures)


@pytest.mark.parametrize("profile", [hostile_profile, lambda: synthetic(8, 64)], ids=["long-names", "64-heads"])
def test_a_phone_never_scrolls_sideways(opened: Any, profile: Any) -> None:
    one = opened(profile(), width=360)
    one.cell(1).click()
    assert one.tab.evaluate("document.documentElement.scrollWidth") == 360


def test_the_desktop_shows_64_heads_in_one_view(opened: Any) -> None:
    one = opened(synthetic(16, 64))
    assert one.tab.locator("#grid-box").evaluate("box => box.scrollWidth <= box.clientWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_digits_stand_out_from_every_colour_of_the_scale(opened: Any, scheme: str) -> None:
    one = opened(synthetic(1, 1), color_scheme=scheme, reduced_motion="reduce")
    worst, lightness = one.tab.evaluate("""() => {
        const cell = document.querySelector("#grid td[data-row]");
        const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
        const luminance = (colour) => {
            pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
            const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
                .map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
            return .2126 * r + .7152 * g + .0722 * b;
        };
        const steps = [];
        let worst = 99;
        cell.style.transition = "none";
        for (let t = 0; t <= 1.0001; t += .01) {
            cell.style.setProperty("--t", String(t));
            const style = getComputedStyle(cell);
            const [back, ink] = [luminance(style.backgroundColor), luminance(style.color)];
            worst = Math.min(worst, (Math.max(back, ink) + .05) / (Math.min(back, ink) + .05));
            steps.push(back);
        }
        return [worst, steps];
    }""")
    assert worst >= 4.4
    ordered = sorted(lightness, reverse=scheme == "light")
    assert lightness == ordered, "more must always look like more"
    assert abs(lightness[0] - lightness[-1]) > 0.5


def test_without_javascript_the_table_is_whole(opened: Any) -> None:
    one = opened(synthetic(2, 3, phases=("prefill", "decode")), java_script_enabled=False)
    assert len(one.shown()) == 12
    assert not one.tab.locator("#map").is_visible()
    assert not one.tab.locator("#filter").is_visible()
