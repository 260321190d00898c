"""The plan of a study: everything that decides what its runs compute, checked, and kept as `plan.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from headwise.errors import FileFormatError, InputError
from headwise.layer.multi_head import Init
from headwise.models.transformer import Sizes
from headwise.studies.formats import require_format
from headwise.studies.tasks.protocol import Option, Settings

Regime: TypeAlias = Literal["fixed_width", "fixed_head_size"]
REGIMES: tuple[Regime, ...] = get_args(Regime)

FORMAT, SCHEMA = "headwise-study", 1


@dataclass(frozen=True)
class DataFile:
    """A file of data, as it was when the study was planned."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True, order=True)
class RunKey:
    """One run: a regime, a number of heads, a seed. As text, and as the name of its folder: `fixed_width-h4-s0`."""

    regime: str
    heads: int
    seed: int

    def __str__(self) -> str:
        return f"{self.regime}-h{self.heads}-s{self.seed}"


@dataclass(frozen=True)
class Plan:
    """What a study trains.

    Attributes:
        task: A task of headwise, or `module:Class`.
        options: The task's own options.
        data: The files that it reads.
        heads: The numbers of heads h.
        seeds: The seeds; one gives initial weights and the order of the data, to all h alike.
        regimes: "fixed_width": `d_k = d_model / h`, the same parameters for all h; "fixed_head_size":
            `d_k = head_dim` for all h, so that parameters grow with h.
        head_dim: d_k where the head size is fixed; `d_model / max(heads)` unless told otherwise.
        d_model: Width of a token.
        num_layers: Blocks (of the encoder and of the decoder each, where there are both).
        d_ff: Hidden width of the feed-forward network; 0: none.
        dropout: Probability of dropping a number of what a sublayer adds, while training.
        steps: Steps of AdamW (Loshchilov & Hutter 2019).
        batch: Sequences of a step.
        length: The most positions of a sequence.
        learning_rate: Its peak, after `warmup` steps; it falls to a tenth along a cosine.
        warmup: Steps in which it rises from 0.
        weight_decay: Of matrices alone.
        clip: The largest norm of all gradients together.
        evaluate_every: Steps between two evaluations, each of which is a checkpoint.
        threads: Threads of a run: sums of floating point numbers depend on it, so it belongs to the plan.
        init: Initial weights of Q, K and V: "fused", the same for every h at fixed width, or the control "per_head"
            (`headwise.MultiHeadAttention`).
    """

    task: str
    options: Mapping[str, Option]
    data: tuple[DataFile, ...]
    heads: tuple[int, ...]
    seeds: tuple[int, ...]
    d_model: int
    num_layers: int
    d_ff: int
    dropout: float
    steps: int
    batch: int
    length: int
    learning_rate: float
    warmup: int
    weight_decay: float
    evaluate_every: int
    head_dim: int
    regimes: tuple[Regime, ...] = REGIMES
    clip: float = 1.0
    threads: int = field(default=1)
    init: Init = "fused"

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be run.

        Raises:
            InputError: What was expected, what came, what to do.
        """
        for name in ("heads", "seeds", "regimes"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise InputError(f"{flag(name)}: expected at least one, each once; got {_listed(values) or 'none'}")
        for name, least in _LEAST.items():
            values = getattr(self, name)
            for value in values if isinstance(values, tuple) else (values,):
                if not isinstance(value, int) or isinstance(value, bool) or value < least:
                    raise InputError(f"{flag(name)}: expected whole numbers of at least {least}; got {value!r}")
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{flag(name)}: expected a number above 0; got {getattr(self, name)!r}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"--dropout: expected a probability below 1; got {self.dropout!r}")
        if not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"--weight-decay: expected a number of at least 0; got {self.weight_decay!r}")
        if unknown := [regime for regime in self.regimes if regime not in REGIMES]:
            raise InputError(f"--regimes: expected {' or '.join(REGIMES)}; got {unknown[0]!r}")
        if self.init not in get_args(Init):
            raise InputError(f"--init: expected {' or '.join(get_args(Init))}; got {self.init!r}")
        if self.evaluate_every > self.steps:
            raise InputError(f"--evaluate-every {self.evaluate_every}: there are only {self.steps} steps")
        for heads in self.heads if "fixed_width" in self.regimes else ():
            if self.d_model % heads:
                raise InputError(
                    f"--heads {heads}: d_model = {self.d_model} does not divide into {heads} heads; head counts that "
                    f"fit: {_listed(h for h in range(1, self.d_model + 1) if self.d_model % h == 0)}; or study "
                    "--regimes fixed_head_size alone"
                )

    @property
    def runs(self) -> list[RunKey]:
        """All runs; the seeds outermost, so that a study that is stopped has whole comparisons."""
        return [RunKey(regime, heads, seed) for seed in self.seeds for regime in self.regimes for heads in self.heads]

    @property
    def digest(self) -> str:
        """What tells this plan from any other. Data are what they hold, wherever they lie, whatever they are called."""
        values = self.to_json()
        for one in values["data"]:
            del one["path"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def sizes(self, key: RunKey) -> Sizes:
        """The sizes of a run's model."""
        head_dim = self.d_model // key.heads if key.regime == "fixed_width" else self.head_dim
        return Sizes(self.d_model, self.num_layers, self.d_ff, key.heads, head_dim, self.dropout, self.init)

    def settings(self, folder: Path) -> Settings:
        """What the task of a study in this folder is made with."""
        return Settings(self.batch, self.length, self.options, tuple(Path(one.path) for one in self.data), folder)

    def evaluations(self) -> list[int]:
        """The steps after which a run is evaluated: 0, every `evaluate_every`, the last."""
        return sorted({*range(0, self.steps, self.evaluate_every), self.steps})

    def check_data(self) -> None:
        """See that the data are what they were.

        Raises:
            InputError: A file changed or is gone.
        """
        for one in self.data:
            if data_file(Path(one.path)).sha256 != one.sha256:
                raise InputError(
                    f"--data {one.path}: has changed since the study was planned, so runs would not be comparable: "
                    "put the old file back, or start another study"
                )

    def with_data(self, paths: Sequence[Path]) -> Plan:
        """The same plan, its data read from these files; they hold what the plan's own held.

        Raises:
            InputError: They are others.
        """
        found = tuple(data_file(path) for path in paths)
        if [one.sha256 for one in found] != [one.sha256 for one in self.data]:
            named = _listed([Path(one.path).name for one in self.data]) or "no files"
            raise InputError(
                f"--data: the study was planned with {named}; these hold something else: give the same files in the "
                "same order"
            )
        return replace(self, data=found)

    def to_json(self) -> dict[str, Any]:
        """As plain values; those of `_LATER` only where they are not as they always were, so that digests stay."""
        values = {name: value for name, value in asdict(self).items() if value != _LATER.get(name)}
        return {"format": FORMAT, "schema": SCHEMA, **values}

    @classmethod
    def from_json(cls, document: Any, source: str = "plan.json") -> Plan:
        """The plan that `to_json` gave.

        Raises:
            FileFormatError: It is none, or was written by a newer headwise.
        """
        require_format(document, FORMAT, SCHEMA, source, "plan")
        values = {one.name: document[one.name] for one in fields(cls) if one.name in document}
        missing = [one.name for one in fields(cls) if one.name not in values and one.name not in _LATER]
        if missing:
            raise FileFormatError(f"{source}: is damaged: {', '.join(missing)} is missing")
        try:
            values["data"] = tuple(DataFile(**one) for one in values["data"])
            values |= {name: tuple(values[name]) for name in ("heads", "seeds", "regimes")}
            return cls(**values)
        except (TypeError, InputError) as error:
            raise FileFormatError(f"{source}: is damaged: {error}") from None


_LEAST = {
    "heads": 1, "seeds": 0, "d_model": 1, "num_layers": 1, "d_ff": 0, "steps": 1, "batch": 1, "length": 1,
    "warmup": 0, "evaluate_every": 1, "head_dim": 1, "threads": 1,
}  # fmt: skip

_LATER = {"init": "fused"}
"""Settings that studies did not have from the beginning, and what they were then."""


def data_file(path: Path) -> DataFile:
    """A file with its checksum.

    Raises:
        InputError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return DataFile(str(path.resolve()), digest, path.stat().st_size)
    except OSError as error:
        raise InputError(f"--data {path}: cannot be read: {error.strerror or error}") from None


def flag(name: str) -> str:
    """The option of the command line that says it."""
    return "--" + {"num_layers": "layers"}.get(name, name).replace("_", "-")


def _listed(values: Iterator[Any] | Sequence[Any]) -> str:
    return ", ".join(map(str, values))
