"""The file of a profile: safetensors for the numbers, JSON metadata for the rest. No pickle anywhere."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headwise.errors import FileFormatError, InputError
from headwise.measures.catalogue import OFFSETS, POSITION_BINS, Measure
from headwise.profile.accumulators import CLUSTERS, COUNTS, MOMENTS, Accumulator
from headwise.profile.clusters import Clusters
from headwise.profile.kept_files import packed_kept, read_kept
from headwise.profile.profiles import Profile
from headwise.profile.records import Group, Layer, Sequence, Unseen
from headwise.profile.totals import Totals

FORMAT = "headwise-profile"
SCHEMA = 2
"""2 adds the sums of each sequence, of labelled rows, of keys and of pairs; a file of format 1 has none of them."""

OLDER = "a profile's file is of format 1, which has no sums of single sequences"
LABEL, KEYS, PAIRS = "label", "keys", "pairs"
CLUSTER_ARRAYS = ("cluster_sum", "cluster_rows", "cluster_identity")


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
    for i, group in enumerate(groups):
        if (clusters := profile.groups[group].by_sequence()) is not None:
            kept = zip(CLUSTER_ARRAYS, clusters.arrays(), strict=True)
            arrays |= {f"{i}/{name}": np.ascontiguousarray(array) for name, array in kept}
    labelled = {label: sorted(profile.labelled[label]) for label in profile.labels}
    for j, (label, of_label) in enumerate(labelled.items()):
        for i, group in enumerate(of_label):
            sums = profile.labelled[label][group].closed().arrays
            arrays |= {f"{LABEL}{j}/{i}/{name}": np.ascontiguousarray(array) for name, array in sums.items()}
    for kind, kept_totals in ((KEYS, profile.key_totals), (PAIRS, profile.pair_totals)):
        for i, group in enumerate(groups):
            if group in kept_totals:
                sums = kept_totals[group].closed().arrays
                arrays |= {f"{kind}/{i}/{name}": np.ascontiguousarray(array) for name, array in sums.items()}
    document = {
        "measures": profile.measures,
        "labelled": labelled,
        "entries": {name: asdict(entry) for name, entry in profile.entries.items()},
        "notes": profile.notes,
        "groups": groups,
        "layers": [asdict(layer) for layer in layers],
        "unseen": [asdict(unseen) for unseen in profile.unseen],
        "sequences": [asdict(sequence) for sequence in profile.sequences],
        "num_sequences": profile.num_sequences,
        "unpairable": profile.unpairable,
        "info": profile.info,
    }
    if profile.kept is not None:
        document["kept"], of_kept = packed_kept(profile.kept)
        arrays |= of_kept
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
    except (SafetensorError, ValueError, KeyError) as error:
        raise FileFormatError(f"{path}: is no headwise profile, or is damaged: {error}") from None
    if metadata.get("format") != FORMAT:
        raise FileFormatError(f"{path}: is a safetensors file, but no headwise profile")
    schema = metadata.get("schema", "")
    if schema.isdecimal() and (len(schema) > 9 or int(schema) > SCHEMA):
        raise FileFormatError(
            f"{path}: has profile format {schema[:20]!r}; this headwise reads format {SCHEMA}: upgrade headwise"
        )
    text = metadata.get("profile", "")
    if schema not in ("1", str(SCHEMA)) or metadata.get("sha256") != _digest(text, arrays):
        raise FileFormatError(
            f"{path}: is damaged: its contents do not match its checksum; copy it again, or record it again"
        )
    try:
        document = json.loads(text)
        if schema == "1":
            document |= {"unpairable": OLDER, "labelled": {}, "entries": {}, "notes": []}
        return _from_document(document, arrays)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise FileFormatError(f"{path}: is damaged: {type(error).__name__}: {error}") from None


def _digest(text: str, arrays: dict[str, Any]) -> str:
    """SHA-256 of everything that a profile file says."""
    import numpy as np

    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).data)
    return digest.hexdigest()


def _from_document(document: dict[str, Any], arrays: dict[str, Any]) -> Profile:
    profile = Profile(document["measures"])
    profile.notes = [str(note) for note in document["notes"]]
    profile.entries = {name: Measure(**entry) for name, entry in document["entries"].items()}
    unpairable = str(document["unpairable"])
    for record in document["layers"]:
        fixed = {name: tuple(record[name]) for name in ("kinds", "phases", "causal")}
        layer = Layer(**{**record, **fixed})
        profile._layers[layer.layer] = layer
    for i, (layer, call, phase, kind) in enumerate(document["groups"]):
        prefix = f"{i}/"
        own = _part(arrays, prefix)
        sizes = len(profile.measures), profile._layers[layer].num_heads
        clusters = None if unpairable else _clusters([own.pop(name) for name in CLUSTER_ARRAYS], sizes)
        _check(own, *sizes)
        group = Group(layer, call, phase, kind)
        profile.groups[group] = Accumulator(own, clusters=clusters)
        heads = sizes[1]
        for one, shape, totals in (
            (KEYS, (heads, -1), profile.key_totals),
            (PAIRS, (4, heads, heads), profile.pair_totals),
        ):
            found = _part(arrays, f"{one}/{i}/")
            if found:
                totals[group] = Totals(_checked_totals(found, shape))
    for j, (label, groups) in enumerate(document["labelled"].items()):
        for i, (layer, call, phase, kind) in enumerate(groups):
            own = _part(arrays, f"{LABEL}{j}/{i}/")
            _check(own, len(profile.measures), profile._layers[layer].num_heads)
            of_label = profile.labelled.setdefault(label, {})
            of_label[Group(layer, call, phase, kind)] = Accumulator(own, clusters=None)
    if unpairable:
        profile.drop_sequence_sums(unpairable)
    else:
        profile.count_sequence_sums()
    for record in document["unseen"]:
        profile._unseen.append(Unseen(**record))
    profile.record_sequences([Sequence(**record) for record in document["sequences"]], document["num_sequences"])
    # A file without what was kept is of the same format.
    if "kept" in document:
        profile.kept = read_kept(document["kept"], arrays)
    profile.info = {str(name): value for name, value in document["info"].items()}
    for layer in profile.layers:
        if layer.verified is not None:
            layer.verified = float(layer.verified)
    return profile


def _part(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _checked_totals(arrays: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """The sums of `Totals`; raise unless they are all there, in one shape (-1: any size)."""
    shapes = {array.shape for array in arrays.values()}
    found = next(iter(shapes))
    fits = len(found) == len(shape) and all(want in (-1, size) for want, size in zip(shape, found, strict=True))
    if set(arrays) != set(CLUSTERS) or len(shapes) != 1 or not fits:
        raise ValueError(f"sums over sequences are missing or have another shape than {shape}: {sorted(shapes)}")
    return arrays


def _clusters(arrays: list[Any], sizes: tuple[int, int]) -> Clusters:
    """The sums of each sequence; raise unless they have their shapes."""
    total, rows, identities = arrays
    clusters = Clusters()
    count = len(identities)
    if count or total.size or rows.size:
        found, expected = (total.shape, rows.shape, identities.shape), (*sizes, count)
        if found != (expected, expected, (count,)) or identities.dtype.kind != "u":
            raise ValueError(f"the sums of {count} sequences have shapes {found}")
        clusters.append(total, rows, identities)
    return clusters


def _check(arrays: dict[str, Any], measures: int, heads: int) -> None:
    """Raise unless there is every sum of an accumulator, in its shape."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys((*MOMENTS, *CLUSTERS), (measures, heads))
    shapes |= {"counts": (len(COUNTS), heads), "offsets": (heads, len(OFFSETS) + 1)}
    shapes |= dict.fromkeys(("bin_sum", "bin_rows"), (measures, heads, POSITION_BINS))
    found = {name: array.shape for name, array in arrays.items()}
    if found != shapes:
        wrong = sorted(name for name in found.keys() | shapes.keys() if found.get(name) != shapes.get(name))
        raise ValueError(f"sums are missing or have another shape than {measures} measures and {heads} heads: {wrong}")
