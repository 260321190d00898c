"""What a model's name stands for: a GGUF file, a folder, a hub name; with the checks that need no loading."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from headwise.errors import InputError, MissingPackageError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class Place:
    """Where a model is: `source` and `gguf_file` are what transformers' from_pretrained takes."""

    kind: Literal["gguf", "folder", "hub"]
    source: str
    gguf_file: str | None = None


def user_path(name: str) -> Path:
    """A path as a user writes it; a ~ that stands for nobody stays as it is."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def locate(name: str, *, allow_pickle: bool = False) -> Place:
    """What `name` stands for.

    Raises:
        InputError: It stands for nothing that can be opened; the message says what was looked for.
        MissingPackageError: The package that opens it is not installed.
    """
    _need("transformers", "opening a model needs transformers", "hf")
    path = user_path(name)
    if path.is_file():
        return _gguf(path)
    if path.is_dir():
        return _folder(path, allow_pickle)
    looks_local = name.startswith((".", "~", "/")) or "\\" in name or name.endswith((".gguf", "/"))
    if looks_local or not _HUB_NAME.fullmatch(name):
        raise InputError(
            f"no such file or folder: {name!r}; "
            "give a model's folder, a .gguf file, or a hub name such as 'bert-base-uncased' or 'owner/name'"
        )
    return Place("hub", name)


def _need(package: str, why: str, extra: str) -> None:
    if find_spec(package) is None:
        raise MissingPackageError(f'{why}; install it with: pip install "headwise[{extra}]"')


def _gguf(path: Path) -> Place:
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if start != b"GGUF":
        came = f"starts with {start!r}" if start else "is empty"
        raise InputError(
            f"{path} is not a GGUF file: it {came}, expected b'GGUF'; "
            "give a .gguf file, or the folder that holds config.json and the weights"
        )
    for package in ("gguf", "accelerate"):
        _need(package, f"reading a GGUF file needs {package}", "gguf")
    return Place("gguf", str(path.parent), path.name)


def _folder(path: Path, allow_pickle: bool) -> Place:
    if not (path / "config.json").is_file():
        raise InputError(f"{path} is not a model's folder: it has no config.json{_instead(path)}")
    endings = {file.suffix for file in path.iterdir()}
    pickles = sorted(endings.intersection(_PICKLES))
    if ".safetensors" not in endings and not (allow_pickle and pickles):
        if pickles:
            raise InputError(
                f"{path} has its weights only as pickle ({', '.join(pickles)}), "
                "which can run code when opened; convert them to safetensors, "
                "or, if you trust the file, add --allow-pickle"
            )
        raise InputError(f"{path} has a config.json but no weights: expected model.safetensors beside it")
    return Place("folder", str(path))


def _instead(path: Path) -> str:
    """What the folder holds that the user may have meant."""
    if (path / "adapter_config.json").is_file():
        return "; it holds an adapter: merge it into its base model and give that folder"
    if files := sorted(path.glob("*.gguf")):
        return f"; it holds a GGUF file: give the file, {files[0]}"
    for pattern in ("*/config.json", "*/*/config.json", "*/*/*/config.json"):
        if below := sorted(path.glob(pattern)):
            return f"; there is one below it: give that folder, {below[0].parent}"
    return "; give the folder that save_pretrained wrote, with config.json and model.safetensors"
