"""Plots are drawn from results alone, and show what stands in them."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from typing import Any

import pytest

from headwise.benchmarks import plots
from headwise.benchmarks.results import Result
from headwise.errors import InputError, MissingPackageError
from tests.benchmarks import fakes

needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")


def texts(svg: bytes) -> list[str]:
    root = ET.fromstring(svg)
    return ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]


def drawn(monkeypatch: pytest.MonkeyPatch, *results: Result) -> Any:
    """The matplotlib figure that is about to be written."""
    figures: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(plots, "_written", lambda figure, _: figures.append(figure) or b"")
        plots.draw(results, ".svg")
    return figures[0]


@needs_matplotlib
def test_ratios_by_length(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(monkeypatch, fakes.attention_result())
    assert [axes.get_title() for axes in figure.axes] == [
        "full, d_k = 32",
        "full, d_k = 64",
        "causal, d_k = 32",
        "causal, d_k = 64",
    ]
    for axes in figure.axes:
        one, *lines = axes.get_lines()
        assert set(one.get_ydata()) == {1}
        found = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in lines}
        assert found == {"fused": ([512, 2048], [1.5, 1.5]), "statistics": ([512, 2048], [0.5, 0.5])}
        assert axes.get_xscale() == "log"
        low, high = axes.get_ylim()
        assert low < 0.5 and high > 1.5


@needs_matplotlib
def test_the_drawing_says_what_it_shows() -> None:
    said = texts(plots.draw([fakes.attention_result()], ".svg"))
    for words in ("fused", "statistics", "causal, d_k = 64", "512", "2,048", "1x", "tokens"):
        assert words in said, words
    assert "portable" not in said, "it has no samples"
    assert "Abacus 3, 2 threads, torch 2.13.0" in said


@needs_matplotlib
def test_bars_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [fakes.model_result(), fakes.model_result("long", "smollm2", 1, 2048)]
    figure = drawn(monkeypatch, *results)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "minilm, 8 x 512: time",
        "extra memory",
        "smollm2, 1 x 2,048: time",
        "extra memory",
    ]
    for time, memory in (figure.axes[:2], figure.axes[2:]):
        assert [bar.get_width() for bar in time.patches] == [0.5, 0.75, 0]
        assert [bar.get_width() for bar in memory.patches] == [100e6, 120e6, 0]
        assert [label.get_text() for label in time.get_yticklabels()] == ["unwatched", "watched", "eager"]
        assert time.get_ylim()[0] > time.get_ylim()[1], "the first variant is on top"
    said = texts(plots.draw(results, ".svg"))
    assert said.count("0.75 s (1.5x)") == 2
    assert "120 MB" in said
    assert "not run: would need 72 GB for weights; 8 GB are free" in said


@needs_matplotlib
def test_a_page_s_size_and_memory_that_was_not_measured() -> None:
    made = fakes.model_result()
    made.points[0].samples["watched"] = [fakes.Sample(0.75, None, {"html_bytes": 2.5e6})] * 3
    assert "page 2.5 MB" in texts(plots.draw([made], ".svg"))


@needs_matplotlib
def test_light_and_dark() -> None:
    """Each colour of the light palette that is used has a rule for dark pages, and the paper is painted."""
    for result in (fakes.attention_result(), fakes.model_result()):
        svg = plots.draw([result], ".svg").decode()
        assert f"fill: {plots.PAPER}" in svg
        rules = re.search(r"@media \(prefers-color-scheme: dark\) \{(.*?)\}\s*\}?</style>", svg, re.DOTALL)
        assert rules
        used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg.replace(rules[0], "")))
        assert used and used <= {*plots.DARK, *plots.COLOURS}
        assert all(f'fill: {colour}"' in rules[1] and f'stroke: {colour}"' in rules[1] for colour in used)


def test_the_palettes_are_told_apart() -> None:
    assert len(set(plots.COLOURS)) == len(plots.COLOURS) == len(set(plots.DARK_COLOURS)) == len(set(plots.MARKERS))


@needs_matplotlib
def test_the_same_result_gives_the_same_file_and_png_works() -> None:
    made = fakes.model_result()
    assert plots.draw([made], ".svg") == plots.draw([made], ".svg")
    assert plots.draw([made], ".png").startswith(b"\x89PNG")


def test_what_cannot_be_drawn() -> None:
    both = [fakes.attention_result(), fakes.model_result()]
    with pytest.raises(InputError, match=r"got attention \(attention\), minilm-512 \(model\)"):
        plots.draw(both, ".svg")
    with pytest.raises(InputError, match="shows one result of attention"):
        plots.draw([both[0], both[0]], ".svg")
    empty = fakes.model_result()
    empty.points[0].samples.clear()
    with pytest.raises(InputError, match="nothing to plot: minilm-512 holds no samples"):
        plots.draw([empty], ".svg")
    for name in ("plot.pdf", "plot"):
        with pytest.raises(InputError, match=r"expected a name that ends in \.svg or \.png"):
            plots.checked_format(name)
    assert plots.checked_format("A.SVG") == ".svg"


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r'pip install "headwise\[bench\]"'):
        plots.draw([fakes.model_result()], ".svg")


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, headwise.benchmarks.plots, headwise.benchmarks.registry; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
