"""What a profile keeps of calls: in files, when profiles are merged, and without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import headwise as hw
from headwise.cli import main
from headwise.errors import FileFormatError
from headwise.profile import Profile, files
from headwise.profile.kept import Held, Keys, bytes_of, layers_text, size_text
from tests.models.small import save_bert
from tests.models_of_tests import Decoder
from tests.profile.test_files import OLD, parts

IDS = torch.arange(14).view(2, 7)
LEFT = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
HERE = Path(__file__).parents[2]


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return "-".join(f"t{i}" for i in ids)


def watched(model: Any, *inputs: Any, **more: Any) -> Profile:
    with torch.no_grad(), hw.watch(model, **{"keep": "qkv", "tokenizer": Tokenizer()} | more) as profile:
        model(*inputs)
    return profile


def assert_same(a: Profile, b: Profile, sequences: Any = (0, 1), offset: int = 0) -> None:
    """The weights, outputs, maps and texts of all heads, bit by bit; those of `b` are counted from `offset`."""
    for layer in a.layers:
        for head in range(layer.num_heads):
            for n in sequences:
                here, there = {"sequence": n}, {"sequence": n + offset}
                one, other = a.weights((layer.layer, head), **here), b.weights((layer.layer, head), **there)
                assert one.dtype == other.dtype and torch.equal(one, other)
                assert (one.tokens, one.query_tokens) == (other.tokens, other.query_tokens)
                assert torch.equal(a.output((layer.layer, head), **here), b.output((layer.layer, head), **there))
                assert torch.equal(a.map((layer.layer, head), **here), b.map((layer.layer, head), **there))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_what_is_loaded_is_what_was_saved(dtype: torch.dtype, tmp_path: Path) -> None:
    profile = watched(Decoder(num_kv_heads=2).to(dtype).eval(), IDS, LEFT)
    profile.save(tmp_path / "p")
    again = hw.load(tmp_path / "p")
    assert_same(profile, again)
    name = str(dtype).removeprefix("torch.")
    for kept in (profile.kept, again.kept):
        assert kept is not None
        assert {one.dtype for call in kept.calls for one in (call.q,)} == {name}
        assert {one.dtype for keys in kept.keys for one in (*keys.k, *keys.v)} == {name}
        assert kept.used == again.kept.used
    again.save(tmp_path / "again")
    (arrays, metadata), (arrays_again, metadata_again) = parts(tmp_path / "p"), parts(tmp_path / "again")
    assert metadata == metadata_again
    assert {n: a.tobytes() for n, a in arrays.items()} == {n: a.tobytes() for n, a in arrays_again.items()}
    assert metadata["schema"] == "2"  # as before: a file without kept things is the same file
    assert {a.dtype.kind for a in arrays.values()} <= set("fiu")


def test_biases_limits_and_decoding_come_back(tmp_path: Path) -> None:
    bias = torch.randn(1, 4, 6, 6, dtype=torch.bfloat16)
    q, k, v = torch.randn(3, 2, 4, 6, 8, dtype=torch.bfloat16)
    with hw.watch(keep="qkv") as profile:
        F.scaled_dot_product_attention(q, k, v, bias)
        F.scaled_dot_product_attention(q, k, v, torch.rand(6, 6) > 0.4)
        F.scaled_dot_product_attention(q[:, :, :3], k, v, is_causal=True, scale=0.3)
    profile.save(tmp_path / "p")
    again = hw.load(tmp_path / "p")
    assert_same(profile, again, range(6))
    assert [mask.dtype for mask in again.kept.masks] == ["bfloat16", "bits"]
    mha = hw.MultiHeadAttention(16, 4).eval()
    x, cache = torch.randn(2, 6, 16), hw.KVCache()
    with torch.no_grad(), hw.watch(mha, keep="qkv") as steps:
        for start, stop in ((0, 4), (4, 5), (5, 6)):
            mha(x[:, start:stop], causal=True, cache=cache)
    steps.save(tmp_path / "steps")
    loaded = hw.load(tmp_path / "steps")
    assert_same(steps, loaded)
    for b in (0, 1):
        one, other = (p.weights("L0H3", sequence=b, phase="decode") for p in (steps, loaded))
        assert one.shape == (2, 6) and torch.equal(one, other)


def test_a_file_without_what_was_kept_loads_as_ever(tmp_path: Path) -> None:
    watched(Decoder().eval(), IDS, keep=None).save(tmp_path / "p")
    document = json.loads(parts(tmp_path / "p")[1]["profile"])
    assert "kept" not in document
    for path in (tmp_path / "p", OLD):
        profile = hw.load(path)
        assert profile.kept is None
        with pytest.raises(ValueError, match="nothing was kept"):
            profile.weights("L0H0")


def test_a_profile_is_read_without_torch(tmp_path: Path) -> None:
    watched(Decoder().eval(), IDS, LEFT).save(tmp_path / "p")
    code = f"""
import sys, headwise
profile = headwise.load({str(tmp_path / "p")!r})
other = headwise.load({str(tmp_path / "p")!r})
profile.merge(other).save({str(tmp_path / "both")!r})
try:
    profile.weights("L9H9")
except ValueError as error:
    print(len(profile.kept.calls), len(profile.table()), "torch" in sys.modules)
"""
    path = os.pathsep.join([str(HERE / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["4", "8", "True"], done.stderr


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kept: kept["calls"][0].update(keys=7),
        lambda kept: kept["calls"][0].update(num_keys=70),
        lambda kept: kept["calls"][0].update(sequences=[0]),
        lambda kept: kept["calls"][0].update(mask=3),
        lambda kept: kept["calls"][0].update(q="object"),
        lambda kept: kept["calls"][0].update(lse=None),
        lambda kept: kept["keys"][0].update(k=None),
        lambda kept: kept.update(masks=[None]),
        lambda kept: kept.pop("limit"),
    ],
)
def test_parts_that_do_not_fit_are_damage(spoil: Any, tmp_path: Path) -> None:
    from safetensors.numpy import save

    watched(Decoder().eval(), IDS, LEFT).save(tmp_path / "p")
    arrays, metadata = parts(tmp_path / "p")
    document = json.loads(metadata["profile"])
    spoil(document["kept"])
    text = json.dumps(document)
    written = save(arrays, metadata=metadata | {"profile": text, "sha256": files._digest(text, arrays)})
    (tmp_path / "p").write_bytes(written)
    with pytest.raises(FileFormatError, match="is damaged"):
        hw.load(tmp_path / "p")


# Merging


def test_merging_numbers_sequences_on(tmp_path: Path) -> None:
    model = Decoder().eval()
    a, b = watched(model, IDS, LEFT), watched(model, IDS.flip(1) + 20)
    a.save(tmp_path / "a")
    b.save(tmp_path / "b")
    merged = hw.load(tmp_path / "a").merge(hw.load(tmp_path / "b"))
    assert merged.kept.used == a.kept.used + b.kept.used
    assert_same(a, merged)
    assert_same(b, merged, offset=2)
    assert merged.weights("L0H0", sequence=3).tokens == [f"t{i}" for i in (IDS.flip(1) + 20)[1].tolist()]
    # What was merged from is as it was.
    assert_same(a, hw.load(tmp_path / "a"))
    for nothing, first in ((a, True), (b, False)):
        without = watched(model, IDS, keep=None)
        both = without.merge(nothing) if first else nothing.merge(without)
        assert_same(hw.load(tmp_path / ("a" if first else "b")), both, offset=2 if first else 0)


def test_merging_keeps_the_limit() -> None:
    model = Decoder(layers=3).eval()
    whole = watched(model, IDS)
    limit = whole.kept.used * 3 // 2
    a, b = watched(model, IDS, keep_limit=limit), watched(model, IDS + 1)
    merged = a.merge(b)
    assert merged.kept.used <= limit
    assert len(merged.kept.calls) == 4
    assert merged.notes == [f"keep: 2 calls of L1-L2 were not kept: keep_limit of {size_text(limit)} was reached"]
    assert_same(whole, merged)
    merged.weights("L0H0", sequence=3)
    with pytest.raises(ValueError, match="L2H0 in sequence 3 was dropped"):
        merged.weights("L2H0", sequence=3)
    small = watched(model, IDS, keep_limit=0)
    merged.merge(small)
    note = f"keep: 5 calls of L0-L2 were not kept: keep_limit of {size_text(limit)} was reached"
    assert merged.notes == [note]


def test_texts_are_given_only_where_they_are_sure() -> None:
    """Sequences without a text, before those that have one, leave it open whose it is."""
    model = Decoder().eval()
    x = torch.randn(2, 4, 7, 8)
    with hw.watch(keep="qk") as silent:
        F.scaled_dot_product_attention(x, x, x)
    silent._layers[0].name = "layers.0.attn"
    told = watched(model, IDS, layers=[0])
    assert told.weights("L0H0").tokens[0] == "t0"
    merged = silent.merge(told)
    assert merged.num_sequences == 4 and len(merged.sequences) == 2
    assert all(merged.weights("L0H0", sequence=n).tokens == list("0123456") for n in range(4))


# Sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GB", 10**9), ("200 MB", 2 * 10**8), ("512 kB", 512_000), ("1.5gb", 15 * 10**8), ("2 GiB", 2**31),
        ("7B", 7), (123, 123), (0, 0),
    ],
)  # fmt: skip
def test_sizes(text: Any, size: int) -> None:
    assert bytes_of(text) == size


def test_sizes_and_layers_in_words() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 2_500_000, 10**9)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "2.5 MB",
        "1 GB",
    ]
    assert layers_text({3, 0, 4, 5, 9}) == "L0, L3-L5, L9"


def test_keys_that_come_one_by_one_are_few_pieces() -> None:
    keys, whole = Keys(), np.random.default_rng(0).normal(size=(1, 2, 100, 3))
    for at in range(100):
        piece = Held(whole[:, :, at : at + 1], "float64")
        keys.append(piece, piece)
        assert len(keys.k) <= 7
    assert keys.length == 100
    for pieces in (keys.k, keys.v):
        np.testing.assert_array_equal(np.concatenate([piece.array for piece in pieces], 2), whole)


# The command line


def test_the_command_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = str(save_bert(tmp_path / "model"))
    arguments = ["profile", tiny, "--text", "the cat sat on the mat", "--save"]
    assert main([*arguments, str(tmp_path / "qk"), "--keep", "qk"]) == 0
    assert main([*arguments, str(tmp_path / "qkv"), "--keep", "qkv"]) == 0
    assert main([*arguments, str(tmp_path / "none")]) == 0
    assert main([*arguments, str(tmp_path / "few"), "--keep", "qk", "--keep-limit", "0B"]) == 0
    qk, qkv, none, few = (hw.load(tmp_path / name) for name in ("qk", "qkv", "none", "few"))
    found = qk.weights("L0H0")
    assert torch.equal(found, qkv.weights("L0H0"))
    assert found.tokens == qk.sequences[0].tokens
    torch.testing.assert_close(found.sum(-1), torch.ones(len(found)))
    assert qkv.output("L0H0").shape[0] == len(found)
    assert qk.kept.limit == hw.watch(keep="qk").profile.kept.limit == 10**9
    assert none.kept is None and few.kept.calls == [] and few.notes
    capsys.readouterr()
    assert main([*arguments, str(tmp_path / "x"), "--keep", "qk", "--keep-limit", "much"]) == 2
    assert "expected a size as in 1GB, 200MB or 512kB, got 'much'" in capsys.readouterr().err
