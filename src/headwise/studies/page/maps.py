"""Weights of the same layer on the same held-out sequence, for each number of heads: computed anew in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.capture.texts import token_texts
from headwise.errors import FileFormatError
from headwise.layer import MultiHeadAttention
from headwise.studies import resplit, tasks
from headwise.studies.claims import REGIME
from headwise.studies.folders import RunFolder, read_json
from headwise.studies.formats import require_format
from headwise.studies.page import pixels
from headwise.studies.page.gathered import Gathered
from headwise.studies.plans import RunKey
from headwise.studies.ranks import alone
from headwise.studies.tasks.protocol import Task
from headwise.studies.tasks.text import Text

FORMAT, SCHEMA = "headwise-maps", 1
MOST_HEADS = 8
MOST_POSITIONS = 64


@dataclass(frozen=True)
class HeadMap:
    """One head: its image, and the mean weight on the own key of rows that see two keys or more (None: no such row)."""

    head: int
    self_focus: float | None
    image: str


@dataclass(frozen=True)
class Row:
    """The heads of one model; `more` of them are not shown."""

    heads: int
    maps: tuple[HeadMap, ...]
    more: int


@dataclass(frozen=True)
class LayerMaps:
    """One layer of self-attention in all models.

    Attributes:
        name: Its path in the model.
        seed: The seed of the models.
        length: Positions of the sequence.
        shown: How many of them, from the first on, the images show.
        tokens: Their text; empty where nothing is known.
        rows: A row for each number of heads.
    """

    name: str
    seed: int
    length: int
    shown: int
    tokens: tuple[str, ...]
    rows: tuple[Row, ...]


def kept_maps(study: Gathered) -> list[LayerMaps]:
    """Those of `maps.json` where the study has it, else made from its models: see `maps_of`.

    Raises:
        InputError: The data are not what they were, or are gone.
        FileFormatError: A file cannot be read, or is damaged.
    """
    path = study.folder.maps_file
    return from_json(read_json(path), str(path)) if path.is_file() else maps_of(study)


def to_json(layers: Sequence[LayerMaps]) -> dict[str, Any]:
    """Maps as plain values."""
    return {"format": FORMAT, "schema": SCHEMA, "layers": [asdict(layer) for layer in layers]}


def from_json(document: Any, source: str = "maps.json") -> list[LayerMaps]:
    """What `to_json` gave.

    Raises:
        FileFormatError: It is none, is damaged, or was written by a newer headwise.
    """
    require_format(document, FORMAT, SCHEMA, source, "file of weights")
    try:
        return [
            LayerMaps(
                str(layer["name"]),
                int(layer["seed"]),
                int(layer["length"]),
                int(layer["shown"]),
                tuple(map(str, layer["tokens"])),
                tuple(
                    Row(int(row["heads"]), tuple(_head_map(one) for one in row["maps"]), int(row["more"]))
                    for row in layer["rows"]
                ),
            )
            for layer in document["layers"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{source}: is damaged: {error}") from None


def _head_map(one: dict[str, Any]) -> HeadMap:
    focus = one["self_focus"]
    return HeadMap(int(one["head"]), None if focus is None else float(focus), str(one["image"]))


def maps_of(study: Gathered) -> list[LayerMaps]:
    """The maps of all layers of self-attention at fixed width, of the seed that has the most numbers of heads.

    Raises:
        InputError: The data are not what they were, or are gone.
        FileFormatError: A model cannot be read.
    """
    plan = study.numbers.plan
    runs = {key: study.folder.run(key) for key in study.course if key.regime == REGIME}
    if not runs:
        return []
    seed = max(plan.seeds, key=lambda one: sum(key.seed == one for key in runs))
    plan.check_data()
    task = tasks.make(plan.task, plan.settings(study.folder.path))
    found: dict[str, list[tuple[int, Tensor, Tensor]]] = {}
    for heads in plan.heads:
        run = runs.get(RunKey(REGIME, heads, seed))
        if run is not None:
            for name, weights, ids in _weights(study, run, task):
                found.setdefault(name, []).append((heads, weights, ids))
    return [_layer(name, seed, several, task) for name, several in found.items()]


@torch.no_grad()
def _weights(study: Gathered, run: RunFolder, task: Task) -> list[tuple[str, Tensor, Tensor]]:
    """By layer: weights `[H, N, N]` of the first measured sequence, and its token ids (empty: vectors)."""
    model = copy.deepcopy(resplit.model_of(study.numbers.plan, run, task)).double().eval()
    inputs = alone(dict(task.measured()[0].inputs), 0)
    found: list[tuple[str, Tensor, Tensor]] = []

    def listen(name: str, layer: MultiHeadAttention) -> None:
        def heard(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if (args[1] if len(args) > 1 else kwargs.get("context")) is None:
                weights = cast(tuple[Tensor, Tensor], layer.forward(*args, **kwargs, return_weights=True))[1]
                ids = inputs.get("decoder_input_ids" if name.startswith("decoder") else "input_ids")
                found.append((name, weights[0], torch.empty(0) if ids is None else ids[0]))

        layer.register_forward_pre_hook(heard, with_kwargs=True)

    for name, layer in model.named_modules():
        if isinstance(layer, MultiHeadAttention):
            listen(name, layer)
    model(**inputs)
    return found


def _layer(name: str, seed: int, several: Sequence[tuple[int, Tensor, Tensor]], task: Task) -> LayerMaps:
    _, weights, ids = several[0]
    length = weights.shape[-1]
    # Under a causal mask the first rows see only the first keys, so that nothing of them is cut away.
    causal = bool(torch.triu(weights.sum(0), 1).eq(0).all())
    shown = min(length, MOST_POSITIONS) if causal else length
    rows = tuple(
        Row(
            heads,
            tuple(
                HeadMap(head, own_weight(of_head), pixels.uri(of_head[:shown, :shown].numpy()))
                for head, of_head in enumerate(of_layer[:MOST_HEADS])
            ),
            max(0, len(of_layer) - MOST_HEADS),
        )
        for heads, of_layer, _ in several
    )
    return LayerMaps(name, seed, length, shown, _tokens(task, ids, length)[:shown], rows)


def own_weight(weights: Tensor) -> float | None:
    """Mean of the diagonal of `[N, N]` over rows that see two keys or more."""
    chosen = (weights > 0).sum(-1) > 1
    return float(weights.diagonal()[chosen].mean()) if bool(chosen.any()) else None


def _tokens(task: Task, ids: Tensor, length: int) -> tuple[str, ...]:
    told = task.tokens()
    if told is not None and told:
        return tuple(told[0]) if len(told[0]) == length else ()
    if ids.dim() != 1 or len(ids) != length:
        return ()
    raw = _byte if isinstance(task, Text) else _unknown
    return tuple(token_texts([int(one) for one in ids], task.decode, raw))


def _byte(number: int) -> bytes | None:
    return bytes([number])


def _unknown(number: int) -> bytes | None:
    return None
