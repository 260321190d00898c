"""What a profile says beside its numbers: the layers it caught, what it could not see, the sequences it read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Group(NamedTuple):
    """The attention calls that are summed up together."""

    layer: int
    call: int
    phase: str
    kind: str


@dataclass
class Layer:
    """One attention module that was caught.

    Attributes:
        layer: Its number, in order of first call.
        name: Its module path.
        num_heads: Query heads H.
        num_kv_heads: Key-value heads of the model.
        head_dim: Width of a query d_k.
        kinds: "self", "cross", "window".
        phases: "prefill", "decode".
        calls: Attention calls recorded.
        causal: Alignments of the causal limit that it ran with, "none" among them where it had no such flag.
        verified: Worst `max |Pv - out| / max(1, max |v|)` over its calls; None where not asked for.
        bound: What `verified` must not exceed: 1e-5, or 2 eps of the output's dtype below float32.
        not_verifiable: Calls that verification had to pass over (active dropout).
        fused: Calls whose output came from the kernel that measured them (`watch(fuse=True)`).
    """

    layer: int
    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kinds: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    calls: int = 0
    causal: tuple[str, ...] = ()
    verified: float | None = None
    bound: float = 1e-5
    not_verifiable: int = 0
    fused: int = 0

    def absorb(self, other: Layer) -> None:
        """Take over what another record of the same module adds."""
        self.kinds = _union(self.kinds, other.kinds)
        self.phases = _union(self.phases, other.phases)
        self.causal = _union(self.causal, other.causal)
        self.calls += other.calls
        self.not_verifiable += other.not_verifiable
        self.fused += other.fused
        self.bound = max(self.bound, other.bound)
        if other.verified is not None:
            self.verified = other.verified if self.verified is None else worse(self.verified, other.verified)


@dataclass
class Unseen:
    """Attention that was not measured.

    Attributes:
        name: Module path, "" outside any module.
        reason: Why.
        way_out: What to do.
        count: How often.
    """

    name: str
    reason: str
    way_out: str
    count: int = 1


@dataclass
class Sequence:
    """One sequence that the model read.

    Attributes:
        length: Tokens, padding not counted.
        ids: Token ids, padding left out; None where the model was given none.
        tokens: The same as text, where a tokenizer was given.
    """

    length: int
    ids: list[int] | None = None
    tokens: list[str] | None = None


def worse(a: float, b: float) -> float:
    """The larger error; NaN is worse than any number."""
    return a if a != a or a > b else b


def _union(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    return a + tuple(x for x in b if x not in a)
