"""What was kept, in a profile's file: arrays, and a part of its JSON document."""

from __future__ import annotations

from typing import Any

from headwise.profile.kept import Held, Kept, KeptCall, Keys, joined, size_of
from headwise.profile.records import Group

PREFIX = "kept"

NUMBERS = {"float64", "float32", "float16", "bfloat16", "bits"}

PLAIN = (
    "sequences", "keys", "num_keys", "mask", "causal", "scale", "softcap", "window", "hide_below", "of_text",
)  # fmt: skip
"""Fields of a call that are no arrays."""


def packed_kept(kept: Kept) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document and the arrays of what was kept."""
    arrays: dict[str, Any] = {}

    def put(name: str, held: Held | None) -> str | None:
        if held is None:
            return None
        arrays[f"{PREFIX}/{name}"] = held.array
        return held.dtype

    calls = [
        {name: getattr(call, name) for name in PLAIN}
        | {"group": call.group}
        | {name: put(f"call{i}/{name}", getattr(call, name)) for name in ("q", "lse", "sinks")}
        for i, call in enumerate(kept.calls)
    ]
    keys = [
        {
            name: put(f"keys{i}/{name}", joined(pieces) if pieces else None)
            for name, pieces in (("k", one.k), ("v", one.v))
        }
        for i, one in enumerate(kept.keys)
    ]
    masks = [put(f"mask{i}", mask) for i, mask in enumerate(kept.masks)]
    dropped = list(kept.dropped.items())
    return {"limit": kept.limit, "calls": calls, "keys": keys, "masks": masks, "dropped": dropped}, arrays


def read_kept(document: dict[str, Any], arrays: dict[str, Any]) -> Kept:
    """What `packed_kept` packed.

    Raises:
        ValueError: Parts that do not fit each other.
        LookupError: An array is missing.
    """

    def get(name: str, dtype: str | None) -> Held | None:
        if dtype is None:
            return None
        if dtype not in NUMBERS:
            raise ValueError(f"a kept array is of dtype {dtype!r}")
        return Held(arrays[f"{PREFIX}/{name}"], dtype)

    kept = Kept(int(document["limit"]))
    for i, one in enumerate(document["keys"]):
        k, v = get(f"keys{i}/k", one["k"]), get(f"keys{i}/v", one["v"])
        kept.keys.append(Keys([k] if k else [], [v] if v else []))
    kept.masks = [_there(get(f"mask{i}", dtype)) for i, dtype in enumerate(document["masks"])]
    for i, one in enumerate(document["calls"]):
        plain = {name: one[name] for name in PLAIN}
        window = plain["window"]
        plain |= {
            "sequences": tuple(plain["sequences"]),
            "window": tuple(window) if isinstance(window, list) else window,
        }
        held = {name: get(f"call{i}/{name}", one[name]) for name in ("q", "lse", "sinks")}
        call = KeptCall(group=Group(*one["group"]), **plain, **held)  # type: ignore[arg-type]
        _check(call, kept)
        kept.calls.append(call)
    kept.dropped = {Group(*group): int(count) for group, count in document["dropped"]}
    kept.used = size_of(
        [
            *(held for call in kept.calls for held in (call.q, call.lse, call.sinks) if held is not None),
            *(held for keys in kept.keys for held in (*keys.k, *keys.v)),
            *kept.masks,
        ]
    )
    return kept


def _there(held: Held | None) -> Held:
    if held is None:
        raise ValueError("a kept mask is missing")
    return held


def _check(call: KeptCall, kept: Kept) -> None:
    """Raise unless a call's parts fit each other."""
    if call.q is None or call.lse is None or not kept.keys[call.keys].k:
        raise ValueError("a kept call has no queries, lse or keys")
    B, H, N, d = call.q.array.shape
    b, kv, m, width = kept.keys[call.keys].k[0].array.shape
    fits = (b, width, len(call.sequences)) == (B, d, B) and H % kv == 0 and 0 < call.num_keys <= m
    if not fits or call.lse.array.shape != (B, H, N) or (call.mask is not None and not call.mask < len(kept.masks)):
        raise ValueError(
            f"a kept call of queries {(B, H, N, d)} and keys {(b, kv, m, width)} has parts that do not fit"
        )
