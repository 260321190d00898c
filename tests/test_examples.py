"""The examples run, and do what they say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def reverse() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reverse", EXAMPLES / "reverse.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reverse_is_short() -> None:
    assert len((EXAMPLES / "reverse.py").read_text("utf-8").splitlines()) < 150


def test_reverse_poses_its_task(reverse: ModuleType) -> None:
    words, target, before = reverse.random_words(200)
    assert len({int((word > 0).sum()) for word in words}) == 8  # 3 to 10 letters, and END
    for word, answer, earlier in zip(words.tolist(), target.tolist(), before.tolist(), strict=True):
        length = word.index(reverse.END)
        assert word[length + 1 :] == answer[length + 1 :] == [reverse.PAD] * (10 - length)
        assert answer[:length] == word[:length][::-1]
        assert answer[length] == reverse.END
        assert earlier == [reverse.START, *answer[:-1]]


def test_reverse_writes_with_its_caches_what_it_would_without(reverse: ModuleType) -> None:
    model = reverse.Reverser()
    words, _, _ = reverse.random_words(20)
    written = model.reverse(words)
    before = torch.nn.functional.pad(written[:, :-1], (1, 0), value=reverse.START)
    assert torch.equal(model(words, before, torch.ones_like(words)).argmax(-1), written)
    assert len(written.unique()) > 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_reverse_learns_to_reverse_words_it_has_not_seen(seed: int, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    command = [sys.executable, "-W", "error", str(EXAMPLES / "reverse.py"), "--seed", str(seed), "--out", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"Fresh words: (\d+) of (\d+) right \(.*\): (\w+) -> (\w+)\n", done.stdout)
    assert found is not None, done.stdout
    assert int(found[2]) > 1800
    assert int(found[1]) > 0.99 * int(found[2])
    assert found[3] == found[4][::-1]
    for kind in ("encoder.0.self_attention", "decoder.0.self_attention", "decoder.1.cross_attention"):
        assert done.stdout.count(kind) == 4
    shares = re.search(r"Weight on the letter to be written, in the last cross-attention: (.*)\n", done.stdout)
    assert shares is not None
    assert all(float(share.strip("%")) > 40 for share in shares[1].split())
    assert "decoder.1.cross_attention" in page.read_text("utf-8")
