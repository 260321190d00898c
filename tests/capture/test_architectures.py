"""Small random models of real architectures: kinds, phases, sequences, padding, and verification."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headwise as hw

IDS = torch.tensor([[5, 6, 7, 8, 9, 1], [5, 6, 1, 0, 0, 0]])
MASK = (IDS != 0).long()
SMALL: dict[str, Any] = {"vocab_size": 40, "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48}


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=40, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0,
        eos_token_id=None,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).eval()


def bart() -> Any:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=40, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32, pad_token_id=0,
        bos_token_id=2, eos_token_id=None, decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    return BartForConditionalGeneration(config).eval()


@torch.no_grad()
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("make", [t5, bart])
def test_encoder_decoder_generation(make: Any, beams: int) -> None:
    model = make()
    with hw.watch(model, verify=True) as profile:
        model.generate(IDS, attention_mask=MASK, max_new_tokens=4, min_new_tokens=4, num_beams=beams, do_sample=False)
    table = profile.table()
    assert profile.passed and profile.unseen == []
    assert profile.num_sequences == 2
    by_layer = table.groupby(["name", "phase", "kind"])[["rows", "padded_rows"]].first()
    encoder = by_layer[by_layer.index.get_level_values("name").str.startswith(("encoder", "model.encoder"))]
    assert encoder.values.tolist() == [[9, 3], [9, 3]]
    decoder = by_layer[~by_layer.index.isin(encoder.index)]
    assert set(decoder.index.get_level_values("kind")) == {"self", "cross"}
    prompt = decoder[decoder.index.get_level_values("phase") == "prefill"]
    assert set(prompt["rows"]) == {2 * beams}
    steps = decoder[decoder.index.get_level_values("phase") == "decode"]
    assert len(steps) == 4 and set(steps["rows"]) == {2 * beams * 3}
    cross = table[table["kind"] == "cross"]
    assert cross["self_focus"].isna().all() and cross["first"].notna().all()


@torch.no_grad()
def test_sliding_windows() -> None:
    from transformers import MistralConfig, MistralModel

    config = MistralConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2, sliding_window=3)
    model = MistralModel(config).eval()
    with hw.watch(model, verify=True) as profile:
        model(torch.arange(2, 12)[None])
    table = profile.table()
    assert set(table["kind"]) == {"window"} and profile.passed
    assert table["distance_max"].max() <= 2
    assert list(table["kv_head"][:4]) == [0, 0, 1, 1]


@torch.no_grad()
def test_two_caches_in_turn_are_two_sets_of_sequences() -> None:
    from transformers import DynamicCache, LlamaConfig, LlamaModel

    model = LlamaModel(LlamaConfig(**SMALL, num_attention_heads=4)).eval()
    caches = [DynamicCache(config=model.config), DynamicCache(config=model.config)]
    with hw.watch(model) as profile:
        for step in range(4):
            for cache in caches:
                model(IDS[:1, step : step + 1] if step else IDS[:1, :3], cache=cache, use_cache=True)
    table = profile.table()
    decode = table[table["phase"] == "decode"]
    assert profile.num_sequences == 2
    assert set(decode["rows"]) == {6} and decode["entropy_se"].notna().all()


@torch.no_grad()
def test_image_and_text_towers() -> None:
    from transformers import CLIPConfig, CLIPModel

    text = {**SMALL, "num_attention_heads": 4, "max_position_embeddings": 16, "eos_token_id": 1}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = CLIPConfig(text_config=text, vision_config={**vision, "image_size": 8, "patch_size": 4}, projection_dim=16)
    model = CLIPModel(config).eval()
    ids = torch.tensor([[5, 6, 7, 8, 1], [5, 6, 1, 0, 0]])  # as many tokens as the image has patches and a class token
    with hw.watch(model, verify=True) as profile:
        model(input_ids=ids, attention_mask=(ids != 0).long(), pixel_values=torch.randn(2, 3, 8, 8))
    table = profile.table()
    padded = table.assign(tower=table["name"].str.split(".").str[0]).groupby("tower")["padded_rows"].max()
    assert padded.to_dict() == {"text_model": 2, "vision_model": 0} and profile.passed
