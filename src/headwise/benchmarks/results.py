"""Results: samples, what is derived from them, and the JSON that keeps them (described in the room's docstring)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from headwise.errors import FileFormatError, InputError
from headwise.profile.writing import replace_files

SCHEMA = 1
LEVELS = ("attention", "model", "length")


@dataclass(frozen=True)
class Sample:
    """One run of one variant, or a few that directly follow each other.

    Attributes:
        seconds: How long it took; of a few runs, their median.
        extra_bytes: The peak of resident memory above what was held before; None where the system does not say.
        more: Further numbers of the run, such as `html_bytes`.
        runs: Seconds of each run, where there were a few; memory and further numbers are the first's.
    """

    seconds: float
    extra_bytes: int | None = None
    more: Mapping[str, float] = field(default_factory=dict)
    runs: tuple[float, ...] = ()

    def numbers(self) -> dict[str, float | None]:
        """What can be compared, by name."""
        return {"seconds": self.seconds, "extra_bytes": self.extra_bytes, **self.more}

    def as_json(self) -> dict[str, Any]:
        """One flat object."""
        return {**self.numbers(), **({"runs": list(self.runs)} if self.runs else {})}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sample:
        """What `as_json` gave."""
        extra = data["extra_bytes"]
        more = {name: float(value) for name, value in data.items() if name not in ("seconds", "extra_bytes", "runs")}
        runs = tuple(float(seconds) for seconds in data.get("runs", ()))
        return cls(float(data["seconds"]), None if extra is None else int(extra), more, runs)


@dataclass
class Measured:
    """What was measured at one point.

    Attributes:
        name: The point's name.
        parameters: Its parameters.
        samples: Per variant, in the order of the turns.
        not_run: Variants without samples, or not all of them, and why.
    """

    name: str
    parameters: dict[str, str | int]
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    def seconds(self, variant: str) -> float | None:
        """Median time; None if the variant did not run."""
        return self.middle(variant, "seconds")

    def extra_bytes(self, variant: str) -> float | None:
        """Median of the extra memory; None if it was not measured."""
        return self.middle(variant, "extra_bytes")

    def middle(self, variant: str, number: str) -> float | None:
        """The median of one number of the samples; None if there is none."""
        found = [sample.numbers().get(number) for sample in self.samples.get(variant, ())]
        known = [value for value in found if value is not None]
        return median(known) if known else None

    def ratio(self, variant: str, baseline: str, number: str = "seconds") -> float | None:
        """Median over turns of a variant's number to the baseline's in the same turn; None where either has none."""
        pairs = zip(self.samples.get(variant, ()), self.samples.get(baseline, ()), strict=False)
        numbers = [(a.numbers().get(number), b.numbers().get(number)) for a, b in pairs]
        ratios = [a / b for a, b in numbers if a is not None and b]
        return median(ratios) if ratios else None

    def as_json(self, baseline: str) -> dict[str, Any]:
        """The samples, and what is derived from them."""
        ratios = {v: self.ratio(v, baseline) for v in self.samples if v != baseline}
        return {
            "name": self.name,
            "parameters": self.parameters,
            "median_seconds": {v: self.seconds(v) for v in self.samples},
            "median_extra_bytes": {v: self.extra_bytes(v) for v in self.samples},
            "to_baseline": {v: ratio for v, ratio in ratios.items() if ratio is not None},
            "not_run": self.not_run,
            "samples": {v: [sample.as_json() for sample in samples] for v, samples in self.samples.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        """What `as_json` gave; what is derived is left, to be derived again."""
        samples = {str(v): [Sample.from_json(one) for one in found] for v, found in data["samples"].items()}
        not_run = {str(variant): str(why) for variant, why in data["not_run"].items()}
        return cls(str(data["name"]), dict(data["parameters"]), samples, not_run)


@dataclass
class Result:
    """What a case gave; the attributes are the fields of the JSON."""

    case: str
    level: str
    about: str
    baseline: str
    variants: dict[str, str]
    turns: int
    planned: int
    machine: dict[str, str | int]
    versions: dict[str, str | None]
    points: list[Measured] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every point has all its turns."""
        return len(self.points) == self.planned and all(map(self.whole, self.points))

    def whole(self, point: Measured) -> bool:
        """Whether a point has all its turns of every variant that ran."""
        short = [v for v, samples in point.samples.items() if len(samples) < self.turns and v not in point.not_run]
        return not short and set(point.samples) | set(point.not_run) == set(self.variants)

    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """Geometric mean and largest of the ratios to the baseline, by the points' kind ("" where they have none)."""
        kinds: dict[str, dict[str, list[float]]] = {}
        for point in self.points:
            found = kinds.setdefault(str(point.parameters.get("kind", "")), {})
            for variant in self.variants:
                ratio = point.ratio(variant, self.baseline)
                if variant != self.baseline and ratio is not None:
                    found.setdefault(variant, []).append(ratio)
        return {
            kind: {
                variant: {"geometric_mean": geometric_mean(ratios), "largest": max(ratios), "points": len(ratios)}
                for variant, ratios in found.items()
            }
            for kind, found in kinds.items()
        }

    def as_json(self) -> dict[str, Any]:
        """The whole result."""
        return {
            "schema": SCHEMA,
            "case": self.case,
            "level": self.level,
            "about": self.about,
            "baseline": self.baseline,
            "variants": self.variants,
            "turns": self.turns,
            "planned": self.planned,
            "complete": self.complete,
            "machine": self.machine,
            "versions": self.versions,
            "summary": self.summary(),
            "points": [point.as_json(self.baseline) for point in self.points],
        }

    def packed(self) -> bytes:
        """The JSON file."""
        return (json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n").encode()

    def save(self, path: Path) -> None:
        """Write the JSON file whole, replacing what is there."""
        replace_files({path: self.packed()})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """What `as_json` gave.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: It is something else.
        """
        points = [Measured.from_json(point) for point in data["points"]]
        names = ("case", "level", "about", "baseline", "variants", "turns", "planned", "machine", "versions")
        result = cls(**{name: data[name] for name in names}, points=points)
        if result.level not in LEVELS or result.baseline not in result.variants:
            raise ValueError(f"level {result.level!r}, baseline {result.baseline!r}")
        return result


def load(path: Path) -> Result:
    """Read a result file.

    Raises:
        InputError: There is no such file.
        FileFormatError: It is no result, is damaged, or is of another schema.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise FileFormatError(f"{path} is no result of headwise bench: it is not JSON") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, int):
        raise FileFormatError(f"{path} is no result of headwise bench: it has no schema number")
    if schema != SCHEMA:
        what = "a newer headwise wrote it; update headwise" if schema > SCHEMA else "run the benchmark again"
        raise FileFormatError(f"{path} has schema {schema}, expected {SCHEMA}: {what}")
    try:
        return Result.from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{path} is damaged: {type(error).__name__}: {error}; run the benchmark again") from error
