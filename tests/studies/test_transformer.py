"""The model of a study: initial weights over numbers of heads, causality, padding, decoding with caches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from headwise.models.transformer import Architecture, EncoderDecoder, Sizes
from headwise.studies.seeding import derived
from headwise.studies.transformer import build

HEADS = (1, 2, 4, 8)
ARCHITECTURES = {
    "decoder": Architecture("decoder", 9, vocab=11),
    "fields": Architecture("decoder", 9, vocab=11, outputs=5),
    "encoder": Architecture("encoder", 9, features=3, outputs=5),
    "tokens": Architecture("encoder", 9, vocab=11, outputs=5),
    "encoder-decoder": Architecture("encoder-decoder", 9, vocab=11),
}


def sizes(heads: int, head_dim: int, d_ff: int = 12) -> Sizes:
    return Sizes(d_model=16, num_layers=2, d_ff=d_ff, num_heads=heads, head_dim=head_dim)


def weights(kind: str, heads: int, head_dim: int, seed: int = 3) -> dict[str, Tensor]:
    return dict(build(ARCHITECTURES[kind], sizes(heads, head_dim), seed).state_dict())


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_at_fixed_width_all_numbers_of_heads_start_from_the_same_weights(kind: str) -> None:
    first = weights(kind, 1, 16)
    assert any(name.endswith("qkv_proj.weight") for name in first)
    for heads in HEADS[1:]:
        other = weights(kind, heads, 16 // heads)
        assert first.keys() == other.keys()
        for name in first:
            assert torch.equal(first[name], other[name]), name
    another_seed = weights(kind, 1, 16, seed=4)
    assert all(not torch.equal(first[name], another_seed[name]) for name in first if first[name].dim() == 2)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_with_a_fixed_head_size_everything_but_attention_starts_equal(kind: str) -> None:
    first, other = weights(kind, 1, 4), weights(kind, 4, 4)
    for name in first:
        if "attention." in name and name.endswith("proj.weight"):
            assert first[name].shape != other[name].shape
        elif "attention." not in name:
            assert torch.equal(first[name], other[name]), name


def test_per_head_weights_are_the_same_draws_in_a_wider_range() -> None:
    """Xavier's bound for one head of 4 of a width of 16 is sqrt((16 + 16) / (16 + 4)) times that for all."""
    fused = weights("decoder", 4, 4)
    wider = dict(build(ARCHITECTURES["decoder"], replace(sizes(4, 4), init="per_head"), 3).state_dict())
    assert fused.keys() == wider.keys()
    for name, value in fused.items():
        factor = (32 / 20) ** 0.5 if name.endswith("qkv_proj.weight") else 1.0
        torch.testing.assert_close(wider[name], value * factor)


def test_matrices_of_one_seed_are_unlike_each_other() -> None:
    drawn = weights("decoder", 2, 8)
    pairs = [("blocks.0.attention.qkv_proj.weight", "blocks.1.attention.qkv_proj.weight")]
    pairs += [("blocks.0.feed_forward.0.weight", "blocks.1.feed_forward.0.weight")]
    assert not any(torch.equal(drawn[a], drawn[b]) for a, b in pairs)


def test_making_a_model_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    build(ARCHITECTURES["decoder"], sizes(2, 8), 0)
    assert torch.equal(before, torch.get_rng_state())


def test_a_seed_is_the_same_everywhere() -> None:
    """Worked out once; another number would make old studies irreproducible."""
    assert derived(3, "weights", "norm") == 3369856570081117939
    assert derived(1, 23) != derived(12, 3)


def test_a_decoder_sees_nothing_of_what_comes() -> None:
    model = build(ARCHITECTURES["decoder"], sizes(4, 4), 0).eval()
    ids = torch.randint(11, (2, 9))
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_several_ids_at_a_position_are_added() -> None:
    model = build(ARCHITECTURES["fields"], sizes(4, 4), 0).eval()
    ids = torch.randint(11, (2, 9, 2))
    assert model(ids).shape == (2, 9, 5)
    torch.testing.assert_close(model(ids), model(ids.flip(2)))


@pytest.mark.parametrize("kind", ["tokens", "decoder"])
def test_padding_changes_nothing(kind: str) -> None:
    model = build(ARCHITECTURES[kind], sizes(4, 4), 0).eval()
    ids = torch.randint(11, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[:, 6:] = False
    padded, bare = model(ids, mask), model(ids[:, :6])
    torch.testing.assert_close(padded if kind == "tokens" else padded[:, :6], bare)


def test_padding_of_the_source_changes_nothing() -> None:
    model = build(ARCHITECTURES["encoder-decoder"], sizes(4, 4), 0).eval()
    source, target = torch.randint(11, (2, 9)), torch.randint(11, (2, 4))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[:, 6:] = False
    torch.testing.assert_close(model(source, target, mask), model(source[:, :6], target))


def test_decoding_a_token_at_a_time_equals_reading_all_at_once() -> None:
    model = build(ARCHITECTURES["encoder-decoder"], sizes(4, 4), 0).eval()
    assert isinstance(model, EncoderDecoder)
    source, target = torch.randint(11, (2, 9)), torch.randint(11, (2, 7))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    whole = model(source, target, mask)
    with torch.no_grad():
        context, caches = model.encode(source, mask), model.new_caches()
        parts = [model.decode(target[:, i : i + 1], context, mask, caches=caches) for i in range(7)]
    torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_without_a_feed_forward_network_there_is_none() -> None:
    model = build(ARCHITECTURES["decoder"], sizes(2, 8, d_ff=0), 0)
    assert not [name for name, _ in model.named_parameters() if "feed_forward" in name]
    biased = [name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm) and module.bias]
    assert not biased


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "decoders", "length": 4, "vocab": 3}, "expected one of decoder, encoder, encoder-decoder"),
        ({"kind": "decoder", "length": 4}, "either vocab"),
        ({"kind": "decoder", "length": 4, "features": 3, "outputs": 2}, "go into an encoder"),
        ({"kind": "encoder-decoder", "length": 4, "vocab": 3, "outputs": 2}, "leave out outputs"),
    ],
)
def test_what_no_model_can_be_made_of(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Architecture(**wrong)  # type: ignore[arg-type]
