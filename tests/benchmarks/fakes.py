"""A case whose variants take times that are written down, and results made up from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headwise.benchmarks.cases import Case, NotRunError, Operation, Parameters, Point, Variant
from headwise.benchmarks.results import Measured, Result, Sample

VARIANTS = ("base", "double", "half")


@dataclass
class Script:
    """What happens: seconds of each run of a variant in order, or an exception to be raised; and what did happen."""

    seconds: dict[str, list[float | BaseException]] = field(default_factory=dict)
    clock: float = 100.0
    ran: list[str] = field(default_factory=list)
    parameters: list[Parameters] = field(default_factory=list)

    def perf_counter(self) -> float:
        return self.clock


SCRIPT = Script()


class Recorder:
    """A runner.Watching that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str, int]] = []
        self.finished_points: list[str] = []
        self.expected: list[str] = []

    def starts(self, case: Case, points: Sequence[Point]) -> None:
        self.expected = [point.name for point in points]

    def step(self, case: Case, point: Point, variant: str, turn: int) -> None:
        self.steps.append((point.name, variant, turn))

    def finished(self, case: Case, measured: Measured) -> None:
        self.finished_points.append(measured.name)


def workload(parameters: Parameters) -> Callable[[str], Operation]:
    """Moves the clock as the script says, a second where it says nothing."""
    SCRIPT.parameters.append(dict(parameters))

    def operation(variant: str) -> Operation:
        if variant == "absent":
            raise NotRunError("absent is not installed: pip install absent")

        def run() -> Mapping[str, float] | None:
            SCRIPT.ran.append(variant)
            left = SCRIPT.seconds.get(variant)
            taken = left.pop(0) if left else 1.0
            if isinstance(taken, BaseException):
                raise taken
            SCRIPT.clock += taken
            return {"html_bytes": 50.0} if variant == "half" else None

        return run

    return operation


def in_process(parameters: Parameters) -> Callable[[str], Operation]:
    """For a process of its own: says which process it was, dies, or fails."""

    def operation(variant: str) -> Operation:
        if variant == "killed":
            os.kill(os.getpid(), 9)
        if variant == "fails":
            raise ValueError(f"no good:\n{parameters['tokens']} tokens")
        held = bytearray(int(parameters["megabytes"]) * 10**6) if variant == "before" else None

        def run() -> Mapping[str, float]:
            taken = b"x" * (int(parameters["megabytes"]) * 10**6)
            return {"process": os.getpid(), "held": len(taken) + len(held or b"")}

        print("chatter that is no sample")
        return run

    return operation


def case(
    *variants: str, points: Sequence[str] = ("one",), turns: int = 3, workload: str = "workload", **changes: object
) -> Case:
    """A case of the script's workload."""
    fields: dict[str, object] = {
        "name": "fake", "level": "model", "about": "a made-up case", "baseline": (variants or VARIANTS)[0],
        "points": tuple(Point(name, {"tokens": 8, "which": name}) for name in points),
        "variants": tuple(Variant(name, f"what {name} is") for name in variants or VARIANTS),
        "workload": f"{__name__}:{workload}", "turns": turns,
    }  # fmt: skip
    return Case(**{**fields, **changes})  # type: ignore[arg-type]


def samples(*seconds: float, extra_bytes: int | None = 10**6) -> list[Sample]:
    return [Sample(one, extra_bytes) for one in seconds]


def result(level: str, variants: Sequence[str], points: Sequence[Measured], name: str = "made-up") -> Result:
    """A result with these points; the first variant is the baseline."""
    return Result(
        case=name,
        level=level,
        about=f"made up, of {level}",
        baseline=variants[0],
        variants={variant: f"what {variant} is" for variant in variants},
        turns=3,
        planned=len(points),
        machine={"processor": "Abacus 3", "threads": 2, "native": "AVX2"},
        versions={"torch": "2.13.0", "bertviz": None},
        points=list(points),
    )


def attention_result() -> Result:
    """Two lengths, two head sizes, two kinds; ratios known: fused 1.5, statistics 0.5."""
    points = [
        Measured(
            f"{n} x {d}, {kind}",
            {"tokens": n, "head_dim": d, "heads": 2, "kind": kind},
            {"sdpa": samples(2, 2, 2), "fused": samples(3, 3, 3), "statistics": samples(1, 1, 1)},
            {"portable": "not run beyond 2,048 tokens: seconds a call"},
        )
        for n in (512, 2048)
        for d in (32, 64)
        for kind in ("full", "causal")
    ]
    return result("attention", ("sdpa", "fused", "statistics", "portable"), points, "attention")


def model_result(name: str = "minilm-512", model: str = "minilm", batch: int = 8, tokens: int = 512) -> Result:
    """unwatched 0.5 s, watched 0.75 s, eager left out."""
    point = Measured(
        f"{model}, {batch} x {tokens:,}",
        {"model": model, "batch": batch, "tokens": tokens},
        {
            "unwatched": samples(0.4, 0.5, 0.6, extra_bytes=100_000_000),
            "watched": samples(0.6, 0.75, 0.9, extra_bytes=120_000_000),
        },
        {"eager": "would need 72 GB for weights; 8 GB are free"},
    )
    return result("model", ("unwatched", "watched", "eager"), [point], name)
