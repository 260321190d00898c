"""The file of a profile: safetensors for the numbers, JSON metadata for the rest. No pickle anywhere."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headwise.errors import FileFormatError, InputError
from headwise.measures.catalogue import OFFSETS, POSITION_BINS
from headwise.profile.accumulators import CLUSTERS, COUNTS, MOMENTS, Accumulator
from headwise.profile.profiles import Profile
from headwise.profile.records import Group, Layer, Sequence, Unseen

FORMAT = "headwise-profile"
SCHEMA = 1


def packed(profile: Profile) -> bytes:
    """What a profile's file holds."""
    import numpy as np
    from safetensors.numpy import save

    layers = profile.layers
    groups = sorted(profile.groups)
    arrays = {
        f"{i}/{name}": np.ascontiguousarray(array, dtype=np.float64)
        for i, group in enumerate(groups)
        for name, array in profile.groups[group].closed().arrays.items()
    }
    document = {
        "measures": profile.measures,
        "groups": groups,
        "layers": [asdict(layer) for layer in layers],
        "unseen": [asdict(unseen) for unseen in profile.unseen],
        "sequences": [asdict(sequence) for sequence in profile.sequences],
        "num_sequences": profile.num_sequences,
        "info": profile.info,
    }
    text = json.dumps(document)
    metadata = {"format": FORMAT, "schema": str(SCHEMA), "profile": text, "sha256": _digest(text, arrays)}
    return save(arrays, metadata=metadata)


def load(path: str | Path) -> Profile:
    """Read a profile that `Profile.save` wrote.

    Raises:
        InputError: The file cannot be read.
        FileFormatError: It is no profile, is damaged, or was written by a newer headwise.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    from safetensors import SafetensorError
    from safetensors.numpy import load as read_arrays

    try:
        arrays = read_arrays(data)
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except (SafetensorError, ValueError) as error:
        raise FileFormatError(f"{path}: is no headwise profile, or is damaged: {error}") from None
    if metadata.get("format") != FORMAT:
        raise FileFormatError(f"{path}: is a safetensors file, but no headwise profile")
    schema = metadata.get("schema", "")
    if schema.isdecimal() and (len(schema) > 9 or int(schema) > SCHEMA):
        raise FileFormatError(
            f"{path}: has profile format {schema[:20]!r}; this headwise reads format {SCHEMA}: upgrade headwise"
        )
    text = metadata.get("profile", "")
    if schema != str(SCHEMA) or metadata.get("sha256") != _digest(text, arrays):
        raise FileFormatError(f"{path}: is damaged: its contents do not match its checksum; save the profile again")
    try:
        return _from_document(json.loads(text), arrays)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path}: is damaged: {type(error).__name__}: {error}") from None


def _digest(text: str, arrays: dict[str, Any]) -> str:
    """SHA-256 of everything that a profile file says."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def _from_document(document: dict[str, Any], arrays: dict[str, Any]) -> Profile:
    profile = Profile(document["measures"])
    for record in document["layers"]:
        fixed = {name: tuple(record[name]) for name in ("kinds", "phases", "causal")}
        layer = Layer(**{**record, **fixed})
        profile._layers[layer.layer] = layer
    for i, (layer, call, phase, kind) in enumerate(document["groups"]):
        prefix = f"{i}/"
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        _check(own, len(profile.measures), profile._layers[layer].num_heads)
        profile.groups[Group(layer, call, phase, kind)] = Accumulator(own)
    for record in document["unseen"]:
        profile._unseen.append(Unseen(**record))
    profile.record_sequences([Sequence(**record) for record in document["sequences"]], document["num_sequences"])
    profile.info = {str(name): value for name, value in document["info"].items()}
    for layer in profile.layers:
        if layer.verified is not None:
            layer.verified = float(layer.verified)
    return profile


def _check(arrays: dict[str, Any], measures: int, heads: int) -> None:
    """Raise unless there is every sum of an accumulator, in its shape."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys((*MOMENTS, *CLUSTERS), (measures, heads))
    shapes |= {"counts": (len(COUNTS), heads), "offsets": (heads, len(OFFSETS) + 1)}
    shapes |= dict.fromkeys(("bin_sum", "bin_rows"), (measures, heads, POSITION_BINS))
    found = {name: array.shape for name, array in arrays.items()}
    if found != shapes:
        wrong = sorted(name for name in found.keys() | shapes.keys() if found.get(name) != shapes.get(name))
        raise ValueError(f"sums are missing or have another shape than {measures} measures and {heads} heads: {wrong}")
