"""Induction scores: which heads look at what followed the current token before, on random tokens that repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.capture import watch
from headwise.errors import shown

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("layer", "head", "label", "name", "induction", "induction_se", "rows")


def induction_scores(
    model: nn.Module,
    *,
    length: int = 128,
    repeats: int = 2,
    batch: int = 8,
    vocab: int | tuple[int, int] | None = None,
    begin: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The weight that each head puts on the token after the earlier occurrence of the current one.

    The model reads random tokens, all different, that then repeat: nothing but the repetition tells what follows, so
    a head that finds it does so by matching. Source: Olsson et al. 2022 (prefix matching).

    Args:
        model: A model that takes token ids `[B, N]`. It runs in eval mode and without gradients, and is left as it
            was.
        length: Different tokens in a sequence.
        repeats: How often they are read, at least 2.
        batch: Sequences.
        vocab: Draw ids below this, or from a range (first, one past the last); None: what the model's `config` or its
            first embedding has.
        begin: An id to stand before the random tokens; None: the `bos_token_id` of the model's `config`, if it has
            one; -1: none.
        seed: Of the tokens, which have a generator of their own.

    Returns:
        A row a head: `layer, head, label, name, induction` (mean over the rows that repeat), `induction_se` (clustered
        by sequence), `rows`; most first. `profile.roles(induction=...)` takes it.

    Raises:
        TypeError: `model` is no module.
        ValueError: Too few tokens to draw from, or less than two repeats.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"induction_scores: model must be a torch.nn.Module; got {shown(model)}")
    if repeats < 2 or length < 1 or batch < 1:
        raise ValueError(f"induction_scores: expected 2 repeats and 1 token at least; got {repeats} and {length}")
    first, last = _range(model, vocab)
    start = _begin(model, begin)
    choice = torch.arange(first, last)
    if start is not None:
        choice = choice[choice != start]  # what stands before them is none of those that repeat
    if len(choice) < length:
        raise ValueError(f"induction_scores: expected {length} different ids; the vocabulary has {len(choice)}")
    generator = torch.Generator().manual_seed(seed)
    once = torch.stack([choice[torch.randperm(len(choice), generator=generator)[:length]] for _ in range(batch)])
    ids = once.repeat(1, repeats)
    if start is not None:
        ids = torch.cat((torch.full((batch, 1), start), ids), 1)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad(), watch(model, measures=["induction"]) as profile:
            _run(model, ids.to(device))
    finally:
        for module, was in training.items():
            module.training = was
    table = profile.table()
    # A module that attends twice in a forward has two rows a head.
    table = table[(table["phase"] == "prefill") & (table["kind"] != "cross")]
    table = table.drop_duplicates("label")[[c for c in COLUMNS if c in table]]
    return table.sort_values("induction", ascending=False, ignore_index=True)


def _run(model: nn.Module, ids: Tensor) -> None:
    config = getattr(model, "config", None)
    # No cache: the sequences end here.
    more: dict[str, Any] = {"use_cache": False} if hasattr(config, "use_cache") else {}
    model(ids, **more)


def _range(model: nn.Module, vocab: int | tuple[int, int] | None) -> tuple[int, int]:
    if isinstance(vocab, tuple):
        return vocab
    if vocab is not None:
        return 0, vocab
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    if size is None:
        size = next((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), None)
    if size is None:
        raise ValueError("induction_scores: the model does not say how many token ids it has; give vocab=")
    return 0, int(size)


def _begin(model: nn.Module, begin: int | None) -> int | None:
    if begin is not None:
        return None if begin < 0 else begin
    found = getattr(getattr(model, "config", None), "bos_token_id", None)
    return found if isinstance(found, int) else None
