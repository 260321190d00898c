"""Profile: what every head did, over everything that was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.measures.catalogue import BY_NAME, CATALOGUE, Measure
from headwise.profile.accumulators import Accumulator, PartSums
from headwise.profile.highlights import Highlight, highlights
from headwise.profile.kept_weights import ExactWeights
from headwise.profile.records import Group, Layer, Sequence, Unseen, worse
from headwise.profile.sequences import ReadSequences
from headwise.profile.totals import Totals

if TYPE_CHECKING:
    import pandas as pd
    import xarray

    from headwise.measures.roles import Thresholds
    from headwise.profile.kept import Kept

KEPT_SUMS = 1 << 23
"""Numbers that the sums of single sequences may take (64 MB): two for each sequence, head and measure."""

Info = dict[str, str | int | float]


class Profile(ExactWeights):
    """What every attention head did: numbers per head, what was caught, and what was not.

    `headwise.watch` gives one; reading it while the watch runs shows what was recorded so far.

    Attributes:
        measures: Names of the measures, in table order (`headwise.measures.catalogue` says what each means).
        groups: The sums of each (layer, call, phase, kind).
        labelled: The same of the rows of one label alone, by label (`watch(groups=...)`).
        key_totals: What the keys of each group received, by position.
        pair_totals: How alike each two heads of a group are.
        entries: The catalogue entries of users' own measures.
        notes: What the numbers leave out, and why.
        info: Free facts about the run (versions, model, dtype, device, source).
        read: The sequences that were read (`headwise.profile.sequences`).
        kept: What `weights` is computed from (`watch(keep=...)`); None where nothing was kept.
    """

    def __init__(self, measures: Iterable[str] = tuple(BY_NAME)) -> None:
        self.measures: tuple[str, ...] = tuple(measures)
        self.groups: dict[Group, Accumulator] = {}
        self.labelled: dict[str, dict[Group, Accumulator]] = {}
        self.key_totals: dict[Group, Totals] = {}
        self.pair_totals: dict[Group, Totals] = {}
        self.entries: dict[str, Measure] = {}
        self.notes: list[str] = []
        self.info: Info = {}
        self.kept: Kept | None = None
        self._layers: dict[int, Layer] = {}
        self._unseen: list[Unseen] = []
        self._kept_sums = 0
        self._unpairable = ""
        # Whoever records may hold back sums on a device; called before anything is read.
        self.pending: Callable[[], None] | None = None
        self.read = ReadSequences()

    def __getstate__(self) -> dict[str, Any]:
        """Everything that was recorded; not the watch that may go on recording."""
        self._settle()
        self.read.settle()
        return self.__dict__ | {"pending": None}

    # Reading

    @property
    def layers(self) -> list[Layer]:
        """The attention modules that were caught, in order of first call."""
        self._settle()
        return [self._layers[number] for number in sorted(self._layers)]

    @property
    def unseen(self) -> list[Unseen]:
        """Attention that was not measured: where, why, and what to do."""
        self._settle()
        return list(self._unseen)

    @property
    def verified(self) -> float | None:
        """The worst `max |Pv - out| / max(1, max |v|)` of all calls (`watch(verify=True)`); None if not asked for."""
        values = [layer.verified for layer in self.layers if layer.verified is not None]
        return reduce(worse, values) if values else None

    @property
    def bound(self) -> float:
        """What `verified` must not exceed: 1e-5, or 2 eps of the outputs' dtype below float32."""
        return max((layer.bound for layer in self.layers), default=1e-5)

    @property
    def passed(self) -> bool | None:
        """Whether every layer that was verified is within its bound; None if verification was not asked for."""
        checked = [layer.verified <= layer.bound for layer in self.layers if layer.verified is not None]
        return all(checked) if checked else None

    @property
    def sequences(self) -> list[Sequence]:
        """The first sequences that the model read; `num_sequences` counts all."""
        self._settle()
        return self.read.kept()

    @property
    def num_sequences(self) -> int:
        """How many sequences the model read."""
        self._settle()
        return self.read.total

    @property
    def unpairable(self) -> str:
        """Why sequences cannot be paired with those of another profile when the two are compared; "" if they can.

        The sums of every single sequence are kept up to `KEPT_SUMS` numbers; beyond that only what all means and
        standard errors of this profile itself need.
        """
        self._settle()
        return self._unpairable

    @property
    def labels(self) -> list[str]:
        """The labels of `watch(groups=...)` that rows were recorded under."""
        self._settle()
        return list(self.labelled)

    def entry(self, measure: str) -> Measure:
        """What a measure is: its title, formula, unit, range and source."""
        return (
            self.entries.get(measure) or CATALOGUE.get(measure) or Measure(measure, measure, "", "", None, None, "", "")
        )

    def table(self, group: str | None = None) -> pd.DataFrame:
        """A row for each head of each (layer, call, phase, kind).

        Columns: `layer, head, label, name, call, phase, kind, kv_head, rows, masked_rows, padded_rows,
        nonfinite_rows`, then each measure (its mean over rows; `max_score`: the maximum) with `_std`, `_min`,
        `_max` (over rows) and `_se` (of the mean, clustered by sequence), then `alpha_first` with its `_se` where what
        keys receive was summed. NaN = undefined.

        Args:
            group: Only rows of this label of `watch(groups=...)`.

        Raises:
            ValueError: No rows were recorded under this label.
        """
        from headwise.profile.reading import heads_table

        return heads_table(self, group)

    def keys(self, group: str | None = None) -> pd.DataFrame:
        """What every key receives: `alpha_j = sum_i p_ij / #{i that may see j}`, averaged over sequences.

        Recorded by `watch(measures="all")` or `["alpha_first"]`. Source: Gu et al. 2024.

        Args:
            group: Not kept by label: anything but None is an error.

        Returns:
            Columns `layer, head, label, call, phase, kind, position, sequences, alpha, alpha_se`: position 0 is the
            first real key f of a sequence.

        Raises:
            ValueError: Keys were not recorded, or those of one label are asked for.
        """
        from headwise.profile.reading import keys_table
        from headwise.profile.totals import refuse_label

        refuse_label("keys", "what keys receive is", group)
        return keys_table(self)

    def sink_rate(self, eps: float = 0.3) -> float:
        """The share of heads whose first key receives more than `eps` from a row that may see it, 0..1.

        Published rates (Gu et al. 2024) use eps 0.3, texts of 64 tokens and 100 of them: compare at those only.
        """
        from headwise.profile.reading import sink_rate

        return sink_rate(self, eps)

    def pairs(self, measure: str = "bc", group: str | None = None) -> pd.DataFrame:
        """How alike the heads of a layer are, by a measure between heads: bc, hellinger, js or output_similarity.

        Recorded by `watch(measures="all")` or by the measure's name.

        Args:
            measure: Its name.
            group: Not kept by label: anything but None is an error.

        Returns:
            Columns `layer, a, b, call, phase, kind, <measure>, <measure>_se, sequences`: a row for each two heads.

        Raises:
            ValueError: Pairs were not recorded, or those of one label are asked for.
        """
        from headwise.profile.reading import pairs_table
        from headwise.profile.totals import refuse_label

        refuse_label("pairs", "pairs of heads are", group)
        return pairs_table(self, measure)

    def roles(self, thresholds: Thresholds | None = None, induction: pd.DataFrame | None = None) -> pd.DataFrame:
        """Labels for heads, each with its evidence; a head can have several (docs/measures.md, Roles).

        Args:
            thresholds: From where on a head has a role; None: those of docs/measures.md.
            induction: What `headwise.induction_scores` found of the same model: without it no head is labelled an
                induction head, because texts repeat themselves by chance.

        Returns:
            Columns `layer, head, label, call, phase, kind, role, value, spread, evidence`: a row for each role.
            `spread` is the standard error over sequences; `evidence` names the threshold.
        """
        from headwise.profile.reading import roles_table

        return roles_table(self, thresholds, induction)

    def to_xarray(self) -> xarray.Dataset:
        """The table as an xarray Dataset over (layer, head): needs `pip install "headwise[xarray]"`.

        Returns:
            A variable for each measure, with `units`, `long_name` and `description`; coordinates `label` and `name`.
            Layers with fewer heads are filled up with NaN. A model with several calls, phases or kinds has them as a
            third dimension `group`.

        Raises:
            ImportError: xarray is not installed.
        """
        from headwise.profile.reading import dataset

        return dataset(self)

    def heads(self, condition: str) -> list[tuple[int, int]]:
        """Heads as plain pairs (layer, head), for other tools.

        Args:
            condition: On columns of the table, as pandas' `query` takes it: `"first > 0.5 and entropy_ratio < 0.4"`.

        Raises:
            ValueError: A condition that cannot be read.
        """
        from headwise.profile.reading import heads_where

        return heads_where(self, condition)

    def by_position(self, measure: str) -> pd.DataFrame:
        """The mean of a measure by position: length effects made visible.

        Returns:
            Columns `layer, head, label, call, phase, kind, start, end, rows, mean`: positions `start..end` after the
            first real key (powers of two), for every bin that has rows.
        """
        from headwise.profile.reading import position_table

        return position_table(self, measure)

    def offsets(self) -> pd.DataFrame:
        """How many rows have their largest weight at each offset self(i) - argmax: -8..8 and "other"."""
        from headwise.profile.reading import offsets_table

        return offsets_table(self)

    def highlights(self, limit: int = 5) -> list[Highlight]:
        """The heads that stand out, in words."""
        return highlights(self.table(), limit, self.pairs("bc") if self.pair_totals else None)

    # Recording

    def record(self, layer: Layer, group: Group, part: PartSums, label: str | None = None) -> None:
        """Add the sums of one attention call, or of those of its rows that have a label."""
        if label is not None:
            self.labelled.setdefault(label, {}).setdefault(group, Accumulator(clusters=None)).add(part)
            return
        if layer.layer in self._layers:
            known = self._layers[layer.layer]
            if known.num_heads != layer.num_heads:
                raise ValueError(
                    f"layer {layer.layer} ({known.name}): expected {known.num_heads} heads as before, "
                    f"got {layer.num_heads}"
                )
            known.absorb(layer)
        else:
            self._layers[layer.layer] = layer
        sums = self._sums(group)
        before = sums.clusters.numbers if sums.clusters else 0
        sums.add(part)
        if sums.clusters:
            self._count_kept(self._kept_sums + sums.clusters.numbers - before)

    def put_keys(self, group: Group, names: tuple[int, ...], sums: dict[str, Any]) -> None:
        """Set what the keys of named sequences have received so far, arrays `[H, T]`: see `Totals`."""
        self.key_totals.setdefault(group, Totals()).put(names, sums)

    def put_pairs(self, group: Group, names: tuple[int, ...], sums: dict[str, Any]) -> None:
        """Set how alike the heads were in named sequences so far, arrays `[4, H, H]`: see `Totals`."""
        self.pair_totals.setdefault(group, Totals()).put(names, sums)

    def note(self, text: str) -> None:
        """Note what the numbers leave out, once."""
        if text not in self.notes:
            self.notes.append(text)

    def record_unseen(self, name: str, reason: str, way_out: str, count: int = 1) -> bool:
        """Note attention that was not measured; True if this is the first time."""
        for known in self._unseen:
            if (known.name, known.reason) == (name, reason):
                known.count += count
                return False
        self._unseen.append(Unseen(name, reason, way_out, count))
        return True

    def record_sequences(self, sequences: list[Sequence], total: int) -> None:
        """Note sequences that the model read: `total` were read; the first few of `sequences` are kept."""
        self.read.record(sequences, total)

    def drop_sequence_sums(self, reason: str) -> None:
        """Keep the sums of single sequences no longer; `reason` says why, to whoever compares this profile."""
        self._unpairable = self._unpairable or reason
        self._kept_sums = 0
        for sums in self.groups.values():
            sums.clusters = None

    def count_sequence_sums(self) -> None:
        """Count the sums of single sequences afresh, and drop them if they are more than may be kept."""
        self._count_kept(sum(sums.clusters.numbers for sums in self.groups.values() if sums.clusters))

    def merge(self, other: Profile) -> Profile:
        """Add everything that another profile of the same model recorded; returns this profile.

        Merging profiles of disjoint sequences, in any order, equals recording them all at once (to 1e-12).

        Raises:
            TypeError: `other` is no profile.
            ValueError: The profiles differ in their measures, layers or heads.
        """
        from headwise.profile.merging import merge

        merge(self, other)
        return self

    # Keeping and showing

    def save(self, path: str | Path) -> None:
        """Write the profile to a file (safetensors with JSON metadata), replacing it at once or not at all."""
        from headwise.profile.files import packed
        from headwise.profile.writing import replace_files

        replace_files({Path(path): packed(self)})

    def to_html(self, path: str | Path) -> None:
        """Write the profile as one offline page, replacing the file at once or not at all."""
        from headwise.profile.writing import replace_files
        from headwise.report import page

        replace_files({Path(path): page(self).encode()})

    def show(self) -> None:
        """Open the profile's page in a browser (in a notebook, a profile shows itself)."""
        import tempfile
        import webbrowser

        path = Path(tempfile.mkdtemp(prefix="headwise-")) / "profile.html"
        self.to_html(path)
        webbrowser.open(path.as_uri())

    def __repr__(self) -> str:
        from headwise.profile.reading import text_of

        return text_of(self)

    def _repr_html_(self) -> str:
        import html

        from headwise.report import page

        document = html.escape(page(self), quote=True)
        return f'<iframe srcdoc="{document}" sandbox="allow-scripts" style="width:100%;height:640px;border:0"></iframe>'

    # Parts

    def _settle(self) -> None:
        if self.pending is not None:
            self.pending()

    def _sums(self, group: Group) -> Accumulator:
        if group not in self.groups:
            self.groups[group] = Accumulator(clusters=None) if self._unpairable else Accumulator()
        return self.groups[group]

    def _count_kept(self, numbers: int) -> None:
        self._kept_sums = numbers
        if numbers > KEPT_SUMS:
            self.drop_sequence_sums(f"a profile read more sequences than it keeps one by one ({KEPT_SUMS:,} numbers)")

    def ordered(self) -> list[Group]:
        """The groups in table order."""
        self._settle()
        return sorted(self.groups, key=lambda g: (g.layer, g.call, g.phase != "prefill", g.kind))
