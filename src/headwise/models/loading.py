"""Loading weights and tokenizer through transformers, with its failures said in one line."""

from __future__ import annotations

import socket
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headwise.errors import InputError

if TYPE_CHECKING:
    from headwise.models.places import Place


def load(
    place: Place, options: dict[str, Any], dtype: str, attn_implementation: str | None, allow_pickle: bool
) -> tuple[Any, list[str]]:
    """The model, without a head where it can, and the names of the weights that the file lacks.

    Raises:
        InputError: transformers could not load it.
    """
    import torch
    import transformers
    from packaging.version import Version

    weights: dict[str, Any] = {"output_loading_info": True}
    # The argument's name changed in transformers 4.56.
    dtype_name = "dtype" if Version(transformers.__version__) >= Version("4.56") else "torch_dtype"
    if dtype != "auto":
        weights[dtype_name] = getattr(torch, dtype)
    elif place.kind != "gguf":
        weights[dtype_name] = "auto"
    if attn_implementation is not None:
        weights["attn_implementation"] = attn_implementation
    if place.kind != "gguf":
        weights["use_safetensors"] = None if allow_pickle else True
    try:
        opener = transformers.AutoModel
        if place.kind != "gguf":
            config = transformers.AutoConfig.from_pretrained(place.source, **options)
            opener = getattr(transformers, _opener(config, options["trust_remote_code"]))
            weights["config"] = config
        model, info = opener.from_pretrained(place.source, **options, **weights)
    except Exception as error:
        # A broken file or a wrong option surfaces as almost any type of exception; all are the input's fault.
        raise InputError(_explained(place, options, error)) from error
    return model, sorted(info["missing_keys"])


def _opener(config: Any, remote: bool) -> str:
    """The name of the transformers class that loads a configuration; a vocabulary head is not needed."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    own = getattr(config, "auto_map", None) or {}
    if remote and own:
        names = ("AutoModel", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM")
        return next((name for name in names if name in own), "AutoModel")
    if type(config) not in MODEL_MAPPING and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "AutoModelForCausalLM"
    return "AutoModel"


def load_tokenizer(place: Place, options: dict[str, Any]) -> tuple[Any | None, str]:
    """The tokenizer, or None and why there is none."""
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place.source, **options)
    except Exception as error:  # noqa: BLE001 (a model without one can be measured all the same: it says why)
        return None, one_line(error)
    # Without a tokenizer's files transformers makes one up that knows its special tokens and nothing else.
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        return None, "its files are not there"
    return tokenizer, ""


def hub_answers() -> bool:
    """Whether the hub can be reached; if not, only the local cache is tried, without long retries."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True  # a proxy resolves names that this machine may not
    hub = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((hub.hostname, hub.port or 443), timeout=5).close()
    except OSError:
        return False
    return True


def _explained(place: Place, options: dict[str, Any], error: Exception) -> str:
    text, full = one_line(error), str(error)
    name = place.gguf_file or place.source
    if "trust_remote_code" in full:
        return f"{name} brings its own code; if you trust it, add --trust-remote-code"
    if "attn_implementation" in full:
        text = one_line(error, 110)
        return f"{name} cannot run with this attention implementation (the usual one is sdpa): {text}"
    if place.kind == "hub" and options.get("local_files_only"):
        return (
            f"{name} is not a folder or file here, nor in the local cache, and the hub cannot be reached; "
            "check the name, or the network"
        )
    if place.kind == "hub" and "safetensors" in text:
        text += " (--allow-pickle opens weights that exist only as pickle, if you trust them)"
    return f"{name} cannot be opened: {text}"


def one_line(error: BaseException, limit: int = 240) -> str:
    """Another library's error in one line of at most `limit` characters; its type where it says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
