"""Which text a sequence is: the same number wherever the same tokens are read, and none where that is not known."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.capture.sequences import Identity, parts_of
from headwise.profile import Group, Profile
from tests.models_of_tests import Decoder, SelfAttention


@pytest.fixture
def model() -> Decoder:
    return Decoder().eval()


PREFILL, DECODE = (Group(0, 0, phase, "self") for phase in ("prefill", "decode"))


def identities(profile: Profile, group: Group = PREFILL) -> list[int]:
    profile.layers  # noqa: B018 - brings in what waits
    clusters = profile.groups[group].by_sequence()
    assert clusters is not None
    return [int(x) for x in clusters.arrays()[2]]


def read(model: nn.Module, *calls: dict[str, Any], **options: Any) -> list[int]:
    with torch.no_grad(), headwise.watch(model, **options) as profile:
        for call in calls:
            model(**call)
    return identities(profile)


A, B = torch.arange(1, 7)[None], torch.arange(11, 17)[None]


def test_the_same_tokens_are_the_same_text(model: Decoder) -> None:
    a, b = read(model, {"input_ids": torch.cat([A, B])})
    assert a != b
    assert 0 not in (a, b)
    assert read(model, {"input_ids": B}, {"input_ids": A}) == [b, a]
    assert read(model, {"input_ids": A.int()}) == [a]
    assert read(Decoder(layers=1), {"input_ids": A}) == [a]
    others = [A.flip(1), A[:, :-1], A[:, 1:], torch.cat([A, B], 1), A + 1, torch.cat([A, A[:, :0]], 1) * 1]
    numbers = [read(model, {"input_ids": other})[0] for other in others]
    assert len({a, *numbers[:-1]}) == 6
    assert numbers[-1] == a


def test_every_layer_says_the_same(model: Decoder) -> None:
    with torch.no_grad(), headwise.watch(model) as profile:
        model(torch.cat([A, B]))
    assert identities(profile) == identities(profile, Group(1, 0, "prefill", "self"))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_no_part_of_a_text(model: Decoder, side: str) -> None:
    (a,) = read(model, {"input_ids": A})
    pad = (2, 0) if side == "left" else (0, 2)
    ids = torch.nn.functional.pad(A, pad, value=9)
    mask = torch.nn.functional.pad(torch.ones_like(A), pad)
    assert read(model, {"input_ids": ids, "attention_mask": mask}) == [a]
    assert read(model, {"input_ids": ids}, real=mask) == [a]
    assert read(model, {"input_ids": ids, "attention_mask": mask.bool()}) == [a]
    assert read(model, {"input_ids": ids}) != [a]


def test_tokens_that_are_changed_after_the_forward_do_not_matter(model: Decoder) -> None:
    (a,) = read(model, {"input_ids": A})
    ids = A.clone()
    with torch.no_grad(), headwise.watch(model) as profile:
        model(ids)
        ids.fill_(3)
        model(B)
    assert identities(profile)[0] == a


def test_a_root_that_is_found_at_its_first_call_is_known_too(model: Decoder) -> None:
    (a,) = read(model, {"input_ids": A})
    with torch.no_grad(), headwise.watch() as profile:
        model(A)
    assert identities(profile) == [a]


class Renamed(nn.Module):
    """A model that calls its tokens something else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        return self.model(idx)  # type: ignore[no-any-return]


def test_tokens_under_another_name(model: Decoder) -> None:
    (a,) = read(model, {"input_ids": A})
    assert read(Renamed(model), {"idx": A}) == [a]
    assert read(Renamed(model), {"idx": A, "targets": B}) == [0], "it cannot be told which of them is the text"


def test_what_has_no_tokens_has_no_identity() -> None:
    layer = SelfAttention()
    with torch.no_grad(), headwise.watch(layer) as profile:
        layer(torch.randn(2, 5, 32))
    assert identities(profile) == [0, 0]
    q = torch.randn(2, 4, 5, 8)
    with headwise.watch() as outside:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert identities(outside) == [0, 0]


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_generation_is_known_by_its_prompt() -> None:
    model = llama()
    with torch.no_grad(), headwise.watch(model) as generated:
        model.generate(torch.cat([A, B]), max_new_tokens=4, do_sample=False)
    prompts = identities(generated)
    assert prompts == read(model, {"input_ids": A}, {"input_ids": B})
    assert identities(generated, DECODE) == prompts
    with torch.no_grad(), headwise.watch(model) as beams:
        model.generate(torch.cat([A, B]), max_new_tokens=4, num_beams=2, do_sample=False)
    assert set(identities(beams, DECODE)) == set(prompts)


def test_a_cache_that_was_filled_before_hides_what_its_text_is() -> None:
    from transformers import DynamicCache

    model, cache = llama(), DynamicCache()
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.no_grad():
        model(A, **{name: cache})
        with headwise.watch(model) as profile:
            model(B[:, :3], **{name: cache})
    assert identities(profile) == [0]


def test_an_encoder_and_its_decoder_are_known_by_both_texts() -> None:
    from transformers import BartConfig, BartModel

    config = BartConfig(
        vocab_size=60, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32,
    )  # fmt: skip
    model = BartModel(config).eval()
    one = read(model, {"input_ids": A, "decoder_input_ids": B})
    assert one == read(model, {"input_ids": A, "decoder_input_ids": B})
    assert one != read(model, {"input_ids": A, "decoder_input_ids": A})
    assert one != read(model, {"input_ids": B, "decoder_input_ids": B})


def test_packed_texts_are_known_by_their_row_and_place() -> None:
    model = llama()
    mask = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).tril().bool()[None, None]
    positions = torch.arange(6)[None] % 3
    call = {"input_ids": A, "attention_mask": mask, "position_ids": positions}
    first, second = read(model, call)
    assert first != second
    assert 0 not in (first, second)
    assert [first, second] == read(model, call)
    assert set(read(model, {**call, "input_ids": B})).isdisjoint({first, second})


def test_parts_are_numbered_within_their_text() -> None:
    texts = np.array([5, 0, 7], np.uint64)
    found = parts_of(texts, 12, 2)  # two rows of two packed texts for each sequence
    assert len({*found[:4], *found[8:]}) == 8
    assert found[4:8].tolist() == [0, 0, 0, 0]
    assert found[[0, 8]].tolist() == [5, 7]
    np.testing.assert_array_equal(parts_of(texts[:1], 4, 2), found[:4])
    # more packed texts elsewhere in the batch do not rename these
    wider = parts_of(texts, 18, 3)
    assert wider[[0, 1, 3, 4]].tolist() == found[:4].tolist()


def test_tokens_wait_and_are_let_go() -> None:
    ids = torch.cat([A, B])
    identity = Identity(10, [(ids, None)])
    assert identity._tokens[0][0].data_ptr() != ids.data_ptr()
    ids.zero_()
    one, other = identity.of((10, 11))
    assert identity._tokens == []
    assert identity.of((11, 11, 10)).tolist() == [other, other, one]
    assert Identity(0, [(A, None)]).of((0,))[0] == one
