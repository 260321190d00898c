"""Open a model by hub name, from a folder, from a GGUF file, or one that is built in, ready to be watched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headwise.errors import InputError
from headwise.models import twins
from headwise.models.byte_tokens import ByteTokenizer
from headwise.models.devices import pick
from headwise.models.lengths import max_length
from headwise.models.loading import hub_answers, load, load_tokenizer
from headwise.models.places import locate
from headwise.models.quiet import quiet

if TYPE_CHECKING:
    import torch

Kind = Literal["encoder", "decoder", "encoder-decoder"]
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass
class OpenedModel:
    """A model in evaluation mode, with what is needed to feed it.

    Attributes:
        model: The module, on its device.
        tokenizer: Its tokenizer, or None.
        name: What it was asked for as.
        max_length: The longest input in tokens, special tokens included; None if there is no limit.
        kind: "encoder", "decoder" or "encoder-decoder".
        notes: What a user should know: weights that the file lacked, say.
        no_tokenizer: Why there is no tokenizer ("" if there is one).
    """

    model: torch.nn.Module
    tokenizer: Any | None
    name: str
    max_length: int | None
    kind: Kind
    notes: tuple[str, ...] = ()
    no_tokenizer: str = ""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> str:
        """The weights' type, as in "float32"."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    def inputs(self, ids: list[list[int]]) -> dict[str, torch.Tensor]:
        """The arguments of one forward pass over sequences of one length.

        Args:
            ids: Token ids, [B, N]. The decoder of an encoder-decoder reads the same, one place later.
        """
        import torch

        batch = {"input_ids": torch.tensor(ids, device=self.device)}
        if "attention_mask" in getattr(self.tokenizer, "model_input_names", ()):
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        if self.kind == "encoder-decoder":
            config = self.model.config
            start = next(
                (
                    token
                    for field in ("decoder_start_token_id", "bos_token_id", "pad_token_id")
                    if (token := getattr(config, field, None)) is not None
                ),
                0,
            )
            batch["decoder_input_ids"] = torch.tensor([[start, *row[:-1]] for row in ids], device=self.device)
        return batch


def open_model(
    name: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> OpenedModel:
    """Open a model for reading: evaluation mode, no cache of keys and values, no language-model head.

    Args:
        name: A hub name, a folder as save_pretrained writes it, a .gguf file, or a built-in twin (`twins:h8`).
        device: "auto" (CUDA, then MPS, then CPU) or a torch device.
        dtype: "auto" (as stored; a GGUF file: float32) or float32, bfloat16, float16, float64.
        attn_implementation: Passed on to transformers; None leaves the choice to it.
        trust_remote_code: Let the model's repository run its own code.
        allow_pickle: Open weights that exist only as pickle.

    Raises:
        InputError: There is no such model, or it cannot be opened as asked.
        MissingPackageError: An optional package is needed.
    """
    place = None if twins.is_twin(name) else locate(name, allow_pickle=allow_pickle)
    if dtype != "auto" and dtype not in DTYPES:
        raise InputError(f"unknown dtype {dtype!r}: expected auto, {', '.join(DTYPES)}")
    target = pick(device)
    if place is None:
        return _twin(name, target, dtype, attn_implementation)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if place.gguf_file:
        options["gguf_file"] = place.gguf_file
    if place.kind == "hub" and not hub_answers():
        options["local_files_only"] = True
    with quiet(hide_stderr=place.kind == "gguf"):
        model, missing = load(place, options, dtype, attn_implementation, allow_pickle)
        tokenizer, no_tokenizer = load_tokenizer(place, options)
    model = model.eval().to(target)
    if getattr(model.config, "use_cache", False):
        model.config.use_cache = False
    return OpenedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        max_length=max_length(model, tokenizer),
        kind=_kind(model.config),
        notes=_notes(name, model, missing),
        no_tokenizer=no_tokenizer,
    )


def _twin(name: str, device: torch.device, dtype: str, attn_implementation: str | None) -> OpenedModel:
    import torch

    if attn_implementation is not None:
        raise InputError(f"--attn-implementation is for models of transformers; {name} has headwise's own layers")
    model = twins.read_twin(name, None if dtype == "auto" else getattr(torch, dtype)).to(device)
    return OpenedModel(model, ByteTokenizer(), name, model.embedded.positions.num_embeddings, "decoder")


def _kind(config: Any) -> Kind:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder"
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in MODEL_FOR_MASKED_LM_MAPPING
    remote = any("CausalLM" in name for name in getattr(config, "architectures", None) or ())
    return "decoder" if causal or remote or getattr(config, "is_decoder", False) else "encoder"


def _notes(name: str, model: torch.nn.Module, missing: list[str]) -> tuple[str, ...]:
    total = len(model.state_dict())
    if len(missing) * 2 > total:
        raise InputError(
            f"{name}: {len(missing)} of {total} weights are not in the file ({missing[0]}, ...): "
            "config.json and the weights do not belong together"
        )
    lost = [key for key in missing if "pooler" not in key]  # the pooler comes after every attention
    if not lost:
        return ()
    return (f"{len(lost)} of {total} weights are not in the file, so they are random: {lost[0]}",)
