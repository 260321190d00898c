"""A profile in the terminal: a header, the heads that stand out, a line a layer, what was not measured."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from headwise.profile.numbers import fixed, is_share, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from headwise.cli.outputs import Output
    from headwise.profile import Profile

# Measure, heading, decimals. A layer shows the mean over its heads, of max_score the maximum.
_COLUMNS = (
    ("self_focus", "self", 3),
    ("first", "first", 3),
    ("previous", "prev", 3),
    ("entropy_ratio", "entropy", 3),
    ("distance", "distance", 1),
    ("max_score", "max score", 2),
)
_LEFT_OUT = {
    "masked_rows": "with no visible key",
    "padded_rows": "of padding",
    "nonfinite_rows": "with NaN or infinite scores",
}
_UNSEEN_SHOWN = 6
_ROLES_SHOWN = 8
_OTHERS_SHOWN = 6
_NAME_SHOWN = 40
WIDEST = 1000


def show(profile: Profile, written: Sequence[Output] = (), console: Console | None = None) -> None:
    """Print a profile, and where it was written to."""
    from rich.console import Console

    console = console or Console(highlight=False)
    table = profile.table()
    console.print(_text(_header(profile, table), style="bold"))
    if facts := _facts(profile):
        console.print(_text(facts))
    for note in filter(None, str(profile.info.get("notes", "")).split("; ")):
        console.print(_text(f"Note: {note}", style="yellow"))
    for note in profile.notes:
        console.print(_text(f"Note: {note}", style="yellow"))
    console.print()
    _highlights(profile, console)
    _roles(profile, console)
    print_whole(console, _layers(profile, table, wide=console.width >= 100))
    console.print()
    console.print(_text(_legend(profile), style="dim"))
    for line in _left_out(table):
        console.print(_text(line, style="yellow"))
    if (verified := _verified(profile)) is not None:
        console.print(verified)
    _unseen(profile, console)
    for output in written:
        console.print(_text(f"Wrote {output.path}"), soft_wrap=True)


def print_whole(console: Console, grid: Table) -> None:
    """Print a table as wide as it is, unless a column of words can fold: a number that is cut off is another number."""
    from rich.measure import Measurement

    folds = any(not column.no_wrap for column in grid.columns)
    needed = 0 if folds else Measurement.get(console, console.options.update(width=WIDEST), grid).maximum
    before = console.width
    try:
        console.width = max(before, needed)
        console.print(grid)
    finally:
        console.width = before


def _header(profile: Profile, table: pd.DataFrame) -> str:
    name = str(profile.info.get("model") or "profile")
    if len(name) > _NAME_SHOWN:
        name = "..." + name[-_NAME_SHOWN:]
    heads = sorted({layer.num_heads for layer in profile.layers})
    each = f"{heads[0]}" if len(heads) == 1 else f"{heads[0]} to {heads[-1]}"
    total = len(table.drop_duplicates(["layer", "head"]))
    layers = len(profile.layers)
    return f"{name}: {layers} attention layer{'s' if layers != 1 else ''} x {each} heads = {total}"


def _facts(profile: Profile) -> str:
    info = profile.info
    facts = []
    if "windows" in info and "tokens" in info:
        windows = "1 window" if info["windows"] == 1 else f"{info['windows']:,} windows"
        facts.append(f"{info.get('source', 'text')}: {windows}, {info['tokens']:,} tokens")
    if info.get("dtype"):
        facts.append(f"{info['dtype']} on {info.get('device', '?')}")
    if info.get("attention"):
        facts.append(f"attention: {info['attention']}")
    if pattern := _pattern(profile):
        facts.append(f"modules: {pattern}")
    return "; ".join(facts)


def _highlights(profile: Profile, console: Console) -> None:
    from rich.padding import Padding

    console.print(_text("What stands out", style="bold"))
    for highlight in profile.highlights():
        sentence = _text(f"- {highlight.sentence}")
        sentence.highlight_regex(r"\bL\d+H\d+\b", style="cyan")
        console.print(Padding(sentence, (0, 0, 0, 1), expand=False))
    console.print()


def _roles(profile: Profile, console: Console) -> None:
    """Roles, where what they rest on was recorded beyond the row measures."""
    from rich.padding import Padding

    if not profile.key_totals:
        return
    table = profile.roles()
    console.print(_text("Roles (thresholds and evidence: --json, or roles() in Python)", style="bold"))
    for role, heads in table[table["role"] != "mixed"].groupby("role", sort=False):
        names = heads["label"].drop_duplicates().tolist()
        more = f" and {len(names) - _ROLES_SHOWN} more" if len(names) > _ROLES_SHOWN else ""
        line = _text(f"- {role}: {', '.join(names[:_ROLES_SHOWN])}{more}")
        console.print(Padding(line, (0, 0, 0, 1), expand=False))
    rate = percent(profile.sink_rate())
    console.print(_text(f" {rate} of the heads give the first key more than 0.3 (sink rate).", style="dim"))
    console.print()


def _layers(profile: Profile, table: pd.DataFrame, *, wide: bool) -> Table:
    from rich import box
    from rich.table import Table

    shown = _shown(profile)
    keys = [name for name in ("kind", "phase") if table[name].nunique() > 1]
    leads = "self_focus" in profile.measures and (wide or len(keys) < 2)  # what fits in 80 columns
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("layer", no_wrap=True)
    for key in keys:
        grid.add_column(key, no_wrap=True)
    for _, heading, _ in shown:
        grid.add_column(heading, justify="right", no_wrap=True)
    if leads:
        grid.add_column("most self", no_wrap=True)
    named = wide and _pattern(profile) is None
    if named:
        grid.add_column("module", overflow="fold", style="dim")
    for group, heads in table.groupby(["layer", *keys], sort=True):
        cells: list[str | Text] = [f"L{group[0]}", *map(_text, group[1:])]
        cells += [_number(profile, heads, measure, decimals) for measure, _, decimals in shown]
        if leads:
            defined = heads[heads["self_focus"].notna()].sort_values("self_focus")
            best = None if defined.empty else defined.iloc[-1]
            cells.append("-" if best is None else f"{best['label']} {fixed(best['self_focus'], 3, share=True)}")
        if named:
            cells.append(_text(heads["name"].iloc[0]))
        grid.add_row(*cells)
    return grid


def _shown(profile: Profile) -> list[tuple[str, str, int]]:
    """The columns of the table: measure, heading, decimals; the first few recorded ones where none is usual."""
    usual = [column for column in _COLUMNS if column[0] in profile.measures]
    return usual or [(measure, measure, 3) for measure in profile.measures[:_OTHERS_SHOWN]]


def _pattern(profile: Profile) -> str | None:
    """What the module paths of all layers have in common, with * for the number of the layer; None if they differ."""
    patterns = {re.sub(r"\d+", "*", layer.name) for layer in profile.layers}
    return patterns.pop() if len(patterns) == 1 else None


def _number(profile: Profile, heads: pd.DataFrame, measure: str, decimals: int) -> str:
    """The mean of these heads, or their maximum."""
    values, entry = heads[measure], profile.entry(measure)
    value = float(values.max() if entry.summary == "max" else values.mean())
    return "-" if math.isnan(value) else fixed(value, decimals, share=is_share(entry))


def _text(content: Any, style: str = "") -> Text:
    """Text as it is: what stands in brackets is no markup, and no control character reaches the terminal."""
    from rich.text import Text

    from headwise.report.text import plain

    return Text(plain(content), style=style)


def _legend(profile: Profile) -> str:
    meanings = {
        "self_focus": "self: weight on the own token; most self: the head with the most",
        "first": "first: weight on the first token",
        "previous": "prev: weight on the token before",
        "entropy_ratio": "entropy: 1 = even, 0 = one key",
        "distance": "distance: tokens",
        "max_score": "max score: largest scaled logit of any head",
    }
    shown = [meaning for measure, meaning in meanings.items() if measure in profile.measures]
    return "; ".join(["Means over the heads of a layer", *shown, "-: undefined"]) + "."


def _left_out(table: pd.DataFrame) -> list[str]:
    """Rows that no mean contains; a row is counted once, not once a head."""
    lines = []
    for column, what in _LEFT_OUT.items():
        per_head = table.groupby(["layer", "head"])[column].sum()
        if len(per_head) and (most := int(per_head.max())):
            layers = sorted({int(layer) for layer, _ in per_head[per_head > 0].index})
            where = "every layer" if len(layers) == table["layer"].nunique() else _listed(layers)
            lines.append(f"Left out of every mean: up to {most:,} rows a head {what}, in {where}.")
    return lines


def _listed(layers: list[int]) -> str:
    names = [f"L{layer}" for layer in layers[:8]]
    return ", ".join(names) + (f" and {len(layers) - 8} more" if len(layers) > 8 else "")


def _verified(profile: Profile) -> Text | None:
    worst = profile.verified
    if worst is None:
        return None
    verdict = "Verified" if profile.passed else "NOT VERIFIED"
    text = f"{verdict}: weights x values are within {worst:.1e} of the model's output (limit {profile.bound:.1e})."
    return _text(text, style="green" if profile.passed else "bold red")


def _unseen(profile: Profile, console: Console) -> None:
    from rich.padding import Padding

    if not profile.unseen:
        return
    console.print(_text("Not measured", style="bold yellow"))
    for unseen in profile.unseen[:_UNSEEN_SHOWN]:
        text = f"- {unseen.name or 'outside any module'} ({unseen.count}x): {unseen.reason}; {unseen.way_out}"
        console.print(Padding(_text(text), (0, 0, 0, 1), expand=False))
    if len(profile.unseen) > _UNSEEN_SHOWN:
        console.print(_text(f"  and {len(profile.unseen) - _UNSEEN_SHOWN} more"))
