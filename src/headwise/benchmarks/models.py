"""One forward of a whole model: as it is, watched, fused, and by the ways of others to the same numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.benchmarks import peak, peers
from headwise.benchmarks.cases import NotRunError, Operation, Parameters
from headwise.benchmarks.registry import ATTNREAD, BERTVIZ, EAGER, EVERYTHING, FUSED, PAGE, UNWATCHED, WATCHED
from headwise.capture import watch
from headwise.errors import InputError
from headwise.models.opening import OpenedModel, open_model
from headwise.profile import Profile

WARM_TOKENS = 64
MOST_FORWARDS = 300
"""Of the model, for attnread: beyond, one sample takes many minutes."""

MOST_DRAWN = 512
"""Tokens that bertviz draws: beyond, a browser does not open its page."""

Inputs = Mapping[str, Tensor]
Run = Callable[[OpenedModel, Inputs], Mapping[str, float] | None]


def workload(parameters: Parameters) -> Callable[[str], Operation]:
    """The operations on `source`, a hub name, folder or file, with `batch` sequences of `tokens` random tokens."""

    def operation(variant: str) -> Operation:
        run, implementation = RUNS[variant]
        batch, tokens = int(parameters["batch"]), int(parameters["tokens"])
        if variant in (ATTNREAD, BERTVIZ):
            peers.require(variant)
        opened = open_model(
            str(parameters["source"]), device="cpu", dtype="float32", attn_implementation=implementation
        )
        _require_fit(opened, variant, batch, tokens)
        with torch.no_grad():
            run(opened, make_inputs(opened, batch, min(tokens, WARM_TOKENS)))
        inputs = make_inputs(opened, batch, tokens)

        def once() -> Mapping[str, float] | None:
            with torch.no_grad():
                return run(opened, inputs)

        return once

    return operation


def make_inputs(opened: OpenedModel, batch: int, tokens: int) -> Inputs:
    """Random tokens, special ones (which stand first in most vocabularies) left out."""
    size = int(_text_config(opened).vocab_size)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(1000, size // 2), size, (batch, tokens), generator=generator)
    return opened.inputs(ids.tolist())


def unwatched(opened: OpenedModel, inputs: Inputs) -> None:
    """The forward alone."""
    opened.model(**inputs)


def watched(opened: OpenedModel, inputs: Inputs, *, fuse: bool = False, measures: str = "default") -> None:
    """The forward under a watch, and its table."""
    _profile(opened, inputs, fuse, measures).table()


def page(opened: OpenedModel, inputs: Inputs) -> Mapping[str, float]:
    """The forward under a watch, and its page."""
    profile = _profile(opened, inputs)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        profile.to_html(file)
        return {"html_bytes": file.stat().st_size}


def eager(opened: OpenedModel, inputs: Inputs) -> None:
    """The forward with all weights, and two measures from them."""
    _two_measures(_weights(opened, inputs))


def bertviz(opened: OpenedModel, inputs: Inputs) -> Mapping[str, float]:
    """The forward with all weights, and bertviz's page of them."""
    from bertviz import head_view

    ids = inputs["input_ids"][0].tolist()
    tokenizer = opened.tokenizer
    tokens = [str(token) for token in ids] if tokenizer is None else tokenizer.convert_ids_to_tokens(ids)
    html = head_view(_weights(opened, inputs), tokens, html_action="return").data
    return {"html_bytes": len(html.encode())}


def attnread(opened: OpenedModel, inputs: Inputs) -> None:
    """Every head's weights as attnread finds them, and two measures from them."""
    from attnread import extract_attention

    _two_measures(extract_attention(opened.model, inputs).values())


RUNS: dict[str, tuple[Run, str]] = {
    UNWATCHED: (unwatched, "sdpa"),
    WATCHED: (watched, "sdpa"),
    FUSED: (partial(watched, fuse=True), "sdpa"),
    EVERYTHING: (partial(watched, measures="all"), "sdpa"),
    PAGE: (page, "sdpa"),
    ATTNREAD: (attnread, "sdpa"),
    EAGER: (eager, "eager"),
    BERTVIZ: (bertviz, "eager"),
}
"""How a variant runs, and the attention implementation that its model is opened with."""


def _profile(opened: OpenedModel, inputs: Inputs, fuse: bool = False, measures: str = "default") -> Profile:
    with watch(opened.model, tokenizer=opened.tokenizer, fuse=fuse, measures=measures) as profile:
        opened.model(**inputs)
    if not profile.layers:
        why = "; ".join(unseen.reason for unseen in profile.unseen) or "it made no attention call"
        raise NotRunError(f"headwise measured no attention of this model: {why}")
    return profile


def _weights(opened: OpenedModel, inputs: Inputs) -> list[Tensor]:
    found = opened.model(**inputs, output_attentions=True)
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    weights = [layer for name in names for layer in getattr(found, name, None) or () if layer is not None]
    if not weights:
        raise NotRunError("the model returns no weights with output_attentions=True")
    return weights


def _two_measures(layers: Iterable[Tensor]) -> None:
    for weights in layers:
        entropy = -torch.special.xlogy(weights, weights).sum(-1)
        (entropy.mean(-1), weights.diagonal(dim1=-2, dim2=-1).mean(-1))


def _text_config(opened: OpenedModel) -> Any:
    config: Any = getattr(opened.model, "config", None)
    if config is None:
        raise InputError("headwise bench: --model: expected a model of transformers; this one has no config")
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _require_fit(opened: OpenedModel, variant: str, batch: int, tokens: int) -> None:
    """Refuse what cannot run, or what would take memory or time that nobody has."""
    if opened.max_length is not None and tokens > opened.max_length:
        raise NotRunError(f"the model reads at most {opened.max_length:,} tokens, not {tokens:,}; give --tokens less")
    config = _text_config(opened)
    layers, heads = int(config.num_hidden_layers), int(config.num_attention_heads)
    if variant in (EAGER, BERTVIZ):
        needed, there = 4 * layers * heads * batch * tokens * tokens, peak.available()
        if there is not None and needed > there // 2:
            raise NotRunError(f"would need {needed / 1e9:,.0f} GB for weights; {there / 1e9:,.0f} GB are free")
    if variant == BERTVIZ and (batch > 1 or tokens > MOST_DRAWN):
        raise NotRunError(f"it draws one sequence, here of {MOST_DRAWN} tokens at most: every weight is in its page")
    if variant == ATTNREAD:
        width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        forwards = layers * (1 + -(-tokens // width))
        if forwards > MOST_FORWARDS:
            raise NotRunError(f"would need {forwards:,} forwards of the model ({width} keys of one layer in each)")
