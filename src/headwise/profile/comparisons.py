"""Comparison: the differences between two profiles, as a table and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwise.errors import shown
from headwise.measures.catalogue import PAIR_MEASURES
from headwise.profile.differences import NO_ERROR_OF_AN_EXTREME, WITHIN_ROUNDING
from headwise.profile.numbers import significant
from headwise.profile.significance import METHODS

if TYPE_CHECKING:
    import pandas as pd

    from headwise.profile.profiles import Info

SHOWN = ("label", "call", "phase", "kind", "measure", "a", "b", "difference", "size", "se", "t")
TITLES = {"holm": "Holm", "fdr": "false discovery rate"}
NAMED = 8
_SIGNED = {"difference": "{:+.4g}", "size": "{:+.2f}", "t": "{:+.2f}"}


class Comparison:
    """What `headwise.compare` found between two profiles, a and b.

    Attributes:
        match: How heads were matched: "place", "pattern" or "layer".
        correct_over: What p-values are corrected for: "all" heads and measures, or the "heads" within each measure.
        sequences: How many sequences a and b read.
        pairing: Whether sequences were paired, in words.
        notes: What could not be compared.
        infos: Facts about the runs of a and of b.
    """

    def __init__(
        self,
        table: pd.DataFrame,
        *,
        match: str,
        correct_over: str,
        sequences: tuple[int, int],
        pairing: str,
        notes: list[str],
        infos: tuple[Info, Info],
    ) -> None:
        self._table = table
        self.match = match
        self.correct_over = correct_over
        self.sequences = sequences
        self.pairing = pairing
        self.notes = notes
        self.infos = infos

    def table(self, alpha: float = 0.05, method: str = "holm") -> pd.DataFrame:
        """A row for each head and measure, what differs beyond chance first.

        Those come first, the largest change (`size`) before the smaller ones; the others follow by their p-value, and
        last what cannot be tested.

        Columns: `layer, head, label`, `head_b` (the head of b that it is compared with), `name, call, phase, kind,
        measure`, the values `a` and `b`, `difference` (b - a), `size` (the difference in standard deviations of rows,
        of keys and pairs in those of sequences, pooled over both), `se` (clustered by sequence), `t`, `df`, `p`
        (two-sided), `p_holm` and `p_fdr` (corrected), `paired`, `note` (why something is NaN). With match="layer",
        `head` is "mean", "least" or "most".

        Args:
            alpha: A difference is beyond chance if its corrected p-value is at most this.
            method: "holm" (the chance of any false finding), or "fdr" (the expected share of false ones).
        """
        import numpy as np

        found = self._is_significant(alpha, method)
        p = self._table["p"].fillna(2.0)
        size = self._table["size"].abs().fillna(-1.0)
        order = np.lexsort((-size, p, np.where(found, -size, 0.0), ~found))
        return self._table.iloc[order].reset_index(drop=True)

    def largest(self, n: int = 10, *, alpha: float = 0.05, method: str = "holm") -> pd.DataFrame:
        """The first n rows of the table."""
        return self.table(alpha, method).head(n)

    def significant(self, alpha: float = 0.05, method: str = "holm") -> pd.DataFrame:
        """The rows that differ beyond chance, the largest change first."""
        return self.table(alpha, method).head(int(self._is_significant(alpha, method).sum()))

    def findings(self, alpha: float = 0.05, method: str = "holm", limit: int = 5) -> list[str]:
        """What differs, in sentences: how much in all, then the first few heads."""
        found = self.significant(alpha, method)
        tested = self._table[self._table["p"].notna()]
        if tested.empty:
            notes = self._table["note"]
            why = notes[~notes.str.startswith("undefined") & (notes != NO_ERROR_OF_AN_EXTREME)]
            return [f"Nothing can be tested: {(notes if why.empty else why).mode().iloc[0]}."]
        how = f"at {100 * alpha:g} % ({TITLES[method]}, {self._tests(tested)})"
        if (tested["note"].str.startswith(WITHIN_ROUNDING)).all():
            return [f"Nothing differs: all {len(tested):,} values that can be tested are {WITHIN_ROUNDING}."]
        if found.empty:
            return [f"Nothing differs beyond chance {how}."]
        heads = list(dict.fromkeys(map(self._place, found.to_dict("records"))))
        unit = self._unit(found)
        named = ", ".join(heads[:NAMED]) + (f" and {len(heads) - NAMED} more" if len(heads) > NAMED else "")
        sentences = [
            f"{len(found):,} of {len(tested):,} differences are beyond chance {how}, "
            f"in {len(heads):,} {_plural(unit, len(heads))}: {named}."
        ]
        places = found.apply(lambda row: self._place(row.to_dict()), axis=1)
        for head in heads[:limit]:
            rows = found[places == head]
            first = rows.iloc[0]
            more = f"; {len(rows) - 1} more of its measures differ" if len(rows) > 1 else ""
            sentences.append(
                f"{head}: {first['measure']} {significant(first['a'], 4)} in a, {significant(first['b'], 4)} in b "
                f"({first['difference']:+.3g}, standard error {first['se']:.2g}, "
                f"corrected p {_p(first[f'p_{method}'])}){more}."
            )
        return sentences

    def __repr__(self) -> str:
        shown = _readable(self.largest(), "holm").to_string(index=False, na_rep="-")
        return "\n".join([*self.findings(), shown, *self._remarks()])

    def _repr_html_(self) -> str:
        import html

        table = _readable(self.largest(), "holm").to_html(index=False, na_rep="-", border=0)
        above, below = (
            "".join(f"<p>{html.escape(line)}</p>" for line in lines) for lines in (self.findings(), self._remarks())
        )
        return f"<div>{above}{table}{below}</div>"

    # Parts

    def _remarks(self) -> list[str]:
        a, b = self.sequences
        return [f"a: {a:,} sequence{'s' if a != 1 else ''}; b: {b:,}; {self.pairing}.", *(f"{n}." for n in self.notes)]

    def _is_significant(self, alpha: float, method: str) -> pd.Series[bool]:
        if method not in METHODS:
            raise ValueError(f"compare: method: expected one of {', '.join(map(repr, METHODS))}; got {shown(method)}")
        if not 0 < alpha < 1:
            raise ValueError(f"compare: alpha: expected a number between 0 and 1; got {shown(alpha)}")
        return self._table[f"p_{method}"] <= alpha

    def _tests(self, tested: pd.DataFrame) -> str:
        places = ["layer", "head", "call", "phase", "kind"]
        units, measures = len(tested[places].drop_duplicates()), tested["measure"].nunique()
        unit = self._unit(tested)
        what = f"{units:,} {_plural(unit, units)}"
        if units * measures != len(tested):  # a measure that some heads lack
            what = f"{len(tested):,} tests: {what}"
        if self.correct_over == "heads":
            return f"{what} within each measure"
        return f"{what} x {measures} measure{'s' if measures != 1 else ''}"

    def _unit(self, rows: pd.DataFrame) -> str:
        """What a row of the table is about."""
        pairs = set(rows["measure"]) & {measure.name for measure in PAIR_MEASURES}
        if self.match == "layer" or not pairs:
            return "layer" if self.match == "layer" else "head"
        return "pair" if len(pairs) == rows["measure"].nunique() else "head or pair"

    def _place(self, row: dict[Any, Any]) -> str:
        """The label of a row, with what else it takes to tell it from the others."""
        several = [name for name in ("phase", "kind", "call") if self._table[name].nunique() > 1]
        more = ", ".join(f"call {row[name]}" if name == "call" else str(row[name]) for name in several)
        return f"{row['label']} ({more})" if more else str(row["label"])


def _readable(table: pd.DataFrame, method: str) -> pd.DataFrame:
    """The columns that a reader needs, as text; those that say the same everywhere are left out."""
    columns = [c for c in SHOWN if c in table and (c not in ("call", "phase", "kind") or table[c].nunique() > 1)]
    shown = table[columns].copy()
    for column in shown.columns:
        if shown[column].dtype.kind == "f":
            form = _SIGNED.get(column)
            shown[column] = [
                "-" if x != x else significant(x, 4) if form is None else form.format(x) for x in shown[column]
            ]
    shown[f"p_{method}"] = [_p(value) for value in table[f"p_{method}"]]
    return shown


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else " or ".join(f"{word}s" for word in noun.split(" or "))


def _p(value: float) -> str:
    return "-" if value != value else "1" if value > 0.9995 else f"{value:.2g}"
