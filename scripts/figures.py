"""The figures of the README, from the committed result files: `python scripts/figures.py` writes them into it.

A test holds the README against the result files, so that no figure can drift from its measurement.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {"README.md": "en", "README.zh-CN.md": "zh"}
BEGIN, END = "<!-- figures: from benchmarks/results -->", "<!-- end of figures -->"

CASES = ("minilm-512", "smollm2-2048", "smollm2-8192")
MODELS = {"minilm": ("MiniLM-L6", 72), "smollm2": ("SmolLM2-135M", 270)}
WORDS = {
    "en": {
        "head": "| model, tokens | unwatched | `headwise.watch`, 14 measures | `output_attentions=True`, 2 measures |",
        "case": "{} ({} heads), {}",
        "none": "would need {:.0f} GB of weights",
    },
    "zh": {
        "head": "| 模型，词元数 | 不加 watch | `headwise.watch`，14 个度量 | `output_attentions=True`，2 个度量 |",
        "case": "{}（{} 个头），{}",
        "none": "仅权重就需 {:.0f} GB",
    },
}


def table(language: str) -> str:
    """The Markdown table in a language ("en" or "zh")."""
    words = WORDS[language]
    lines = [words["head"], "|---|---|---|---|"]
    for name in CASES:
        result = json.loads((RESULTS / f"{name}.json").read_text())
        size = f"{result['batch']} x {result['tokens']:,}"
        model, heads = MODELS[result["model"]]
        cells = [
            words["case"].format(model, heads, size),
            *(_cell(result, v, words) for v in ("unwatched", "watched", "eager")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(result: dict[str, Any], variant: str, words: dict[str, str]) -> str:
    if variant not in result["median_seconds"]:
        return words["none"].format(30 * 9 * result["tokens"] ** 2 * 4 / 1e9)
    seconds, extra = result["median_seconds"][variant], result["median_extra_bytes"][variant]
    text = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
    if variant != "unwatched":
        text += f" ({result['seconds_to_unwatched'][variant]:.1f}x)"
    return f"{text}, +{extra / 1e6:,.0f} MB"


def with_figures(text: str, language: str) -> str:
    """A page's text with its table replaced by the current one."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(language)}\n{END}{after}"


def main() -> None:
    for name, language in PAGES.items():
        page = ROOT / name
        page.write_text(with_figures(page.read_text(), language))


if __name__ == "__main__":
    main()
