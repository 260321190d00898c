"""Small models on disk: random weights, a tokenizer of a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ["the", "keeper", "looks", "at", "water", "a", "lamp", "turns", "night", "ship", "."]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
CLS, SEP = 1, 2
VOCABULARY = len(WORDS) + len(SPECIAL)
POSITIONS = 32


def save_bert(folder: Path, **changes: Any) -> Path:
    """An encoder: 2 layers, 4 heads, 32 positions."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = BertConfig(vocab_size=VOCABULARY, **{"max_position_embeddings": POSITIONS, **sizes, **changes})
    return save(BertModel(config), folder)


def save_llama(folder: Path, positions: int = 8192) -> Path:
    """A decoder with a vocabulary head: 2 layers, 4 query heads on 2 key-value heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, max_position_embeddings=positions, **sizes)
    return save(LlamaForCausalLM(config), folder)


def save_bart(folder: Path) -> Path:
    """An encoder-decoder: 1 layer each, 2 heads."""
    from transformers import BartConfig, BartModel

    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    special = {"pad_token_id": 0, "bos_token_id": CLS, "eos_token_id": SEP, "decoder_start_token_id": SEP}
    config = BartConfig(
        vocab_size=VOCABULARY, d_model=16, max_position_embeddings=POSITIONS, **heads, **layers, **special
    )
    return save(BartModel(config), folder)


def save(model: Any, folder: Path) -> Path:
    """Write a model as save_pretrained does, with the tokenizer beside it."""
    torch.manual_seed(0)
    model.init_weights()
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of whole words that puts [CLS] before a text and [SEP] after it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    names = dict(zip(("pad_token", "cls_token", "sep_token", "unk_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
