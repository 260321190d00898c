"""The figures of the README, from the committed result files: `python scripts/figures.py` writes them into it.

A test holds the README against the result files, so that no figure can drift from its measurement.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headwise.benchmarks.results import Measured, Result, load

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {"README.md": "en", "README.zh-CN.md": "zh"}
BEGIN, END = "<!-- figures: from benchmarks/results -->", "<!-- end of figures -->"

CASES = ("minilm-512", "smollm2-2048", "smollm2-8192")
MODELS = {"minilm": ("MiniLM-L6", 6, 12), "smollm2": ("SmolLM2-135M", 30, 9)}
"""Name, layers, heads of a layer."""

COLUMNS = ("unwatched", "watched", "fused", "eager")
WORDS = {
    "en": {
        "model": "model, tokens",
        "unwatched": "unwatched",
        "watched": "`headwise.watch`, 14 measures",
        "fused": "`headwise.watch(fuse=True)`",
        "eager": "`output_attentions=True`, 2 measures",
        "case": "{} ({} heads), {}",
        "none": "would need {:.0f} GB of weights",
    },
    "zh": {
        "model": "模型，词元数",
        "unwatched": "不加 watch",
        "watched": "`headwise.watch`，14 个度量",
        "fused": "`headwise.watch(fuse=True)`",
        "eager": "`output_attentions=True`，2 个度量",
        "case": "{}（{} 个头），{}",
        "none": "仅权重就需 {:.0f} GB",
    },
}


def table(language: str) -> str:
    """The Markdown table in a language ("en" or "zh"); a variant that no result has measured has no column."""
    words = WORDS[language]
    results = [load(RESULTS / f"{name}.json") for name in CASES]
    columns = [v for v in COLUMNS if any(v in point.samples for result in results for point in result.points)]
    lines = [_row(words[name] for name in ("model", *columns)), "|" + "---|" * (len(columns) + 1)]
    for result in results:
        (point,) = result.points
        model, layers, heads = MODELS[str(point.parameters["model"])]
        size = f"{point.parameters['batch']} x {point.parameters['tokens']:,}"
        case = words["case"].format(model, layers * heads, size)
        lines.append(_row([case, *(_cell(result, point, variant, words) for variant in columns)]))
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(result: Result, point: Measured, variant: str, words: dict[str, str]) -> str:
    seconds, extra, ratio = point.seconds(variant), point.extra_bytes(variant), point.ratio(variant, result.baseline)
    if seconds is None or extra is None:
        _, layers, heads = MODELS[str(point.parameters["model"])]
        batch, tokens = int(point.parameters["batch"]), int(point.parameters["tokens"])
        return words["none"].format(4 * layers * heads * batch * tokens**2 / 1e9)
    text = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
    if variant != result.baseline:
        text += f" ({ratio:.1f}x)"
    return f"{text}, +{extra / 1e6:,.0f} MB"


def with_figures(text: str, language: str) -> str:
    """A page's text with its table replaced by the current one."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(language)}\n{END}{after}"


def main() -> None:
    for name, language in PAGES.items():
        page = ROOT / name
        page.write_text(with_figures(page.read_text("utf-8"), language), "utf-8")


if __name__ == "__main__":
    main()
