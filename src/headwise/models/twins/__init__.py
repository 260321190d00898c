"""The built-in twins: two small byte-level models, trained alike, with one head a layer and with eight.

`card.md` beside this file says on what they were trained, how, and what they reached; `card.json` says the same to
programs. `scripts/twins.py` made both, and the weights.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from headwise.errors import FileFormatError, InputError

if TYPE_CHECKING:
    import torch

    from headwise.models.transformer import Decoder

PREFIX = "twins:"
NAMES = ("twins:h1", "twins:h8")
DEFAULT = "twins:h8"
"""What is profiled where no model is named."""
FACTS = "headwise"
"""The key of the metadata of a file of weights: JSON with `architecture` and `sizes`."""


def is_twin(name: str) -> bool:
    """Whether a model's name means one of the twins."""
    return name.startswith(PREFIX)


def read_twin(name: str, dtype: torch.dtype | None = None) -> Decoder:
    """A twin in evaluation mode: byte ids `[B, N]` to logits `[B, N, 256]`, on the CPU.

    Args:
        name: One of `NAMES`.
        dtype: None: float32, whatever the file keeps.

    Raises:
        InputError: There is no such twin.
        FileFormatError: The file that came with headwise is gone or damaged.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load

    from headwise.models.transformer import Architecture, Decoder, Sizes

    if name not in NAMES:
        raise InputError(f"there is no built-in {name!r}; there are {' and '.join(NAMES)}")
    file = f"{name.removeprefix(PREFIX)}.safetensors"
    try:
        data = _bytes(file)
        facts = facts_of(data)
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and overwritten
            model = Decoder(Architecture(**facts["architecture"]), Sizes(**facts["sizes"]))
        model = model.to(dtype or torch.float32)
        model.load_state_dict(load(data))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise FileFormatError(
            f"the weights of {name} that come with headwise cannot be read ({type(error).__name__}); install it again"
        ) from error
    return model.eval().requires_grad_(False)


def facts_of(data: bytes) -> dict[str, Any]:
    """What a file of weights says of its model: `architecture` and `sizes`, and how it was trained.

    Raises:
        ValueError, KeyError: It says nothing.
    """
    length = int.from_bytes(data[:8], "little")
    facts: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][FACTS])
    return facts


def card() -> dict[str, Any]:
    """Data, training and results of both twins: `card.json`."""
    content: dict[str, Any] = json.loads(_bytes("card.json"))
    return content


def built_in_text() -> str:
    """The text that is read where none is given: lines in several languages, each a sequence of its own."""
    return _bytes("text.txt").decode()


def _bytes(name: str) -> bytes:
    return (files("headwise.models.twins") / name).read_bytes()
