"""Files: what is saved comes back exactly, and what is damaged says so in one line."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as write_arrays

from headwise.call import Place
from headwise.errors import FileFormatError, HeadwiseError, InputError
from headwise.profile import Profile, Sequence, files, writing
from headwise.profile.accumulators import Accumulator
from headwise.profile.files import load
from headwise.profile.writing import replace_files
from tests.profile.recording import add, assert_same_table, profile_of, random_call

OLD = Path(__file__).parent / "schema1.headwise"


@pytest.fixture
def profile() -> Profile:
    p = profile_of(
        random_call(place=Place(0, "编码器.层.0", kv_groups=3)),
        random_call(place=Place(0, "编码器.层.0", phase="decode"), causal="lower_right"),
        random_call(H=2, place=Place(1, "dec.✓", kind="cross"), mask=torch.zeros(6, 6, dtype=torch.bool)),
    )
    p.layers[0].verified = 1.25e-7
    p.layers[1].verified = math.nan
    p.layers[1].not_verifiable = 3
    p.record_unseen("模块", "nested tensors", "pad the batch", 4)
    p.record_sequences([Sequence(3, [1, 2, 3], ["a", "\n", "猫😀"]), Sequence(5), Sequence(0, [], [])], 17)
    p.info = {"model": 'o\'brien/"x"', "seed": 3, "seconds": 0.1, "null": "\x00", "worst": math.nan}
    return p


def parts(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return dict(read_arrays(data)), json.loads(data[8 : 8 + length])["__metadata__"]


def clusters_of(sums: Accumulator) -> tuple[np.ndarray, ...]:
    clusters = sums.by_sequence()
    assert clusters is not None
    return clusters.arrays()


def test_everything_comes_back_exactly(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "运行.headwise"
    profile.save(path)
    other = load(path)
    assert other.measures == profile.measures
    assert list(other.groups) == sorted(profile.groups)
    for group, sums in profile.groups.items():
        mine, theirs = sums.closed().arrays, other.groups[group].arrays
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].tobytes() == theirs[name].tobytes(), name
            assert mine[name].shape == theirs[name].shape
        for kept, read in zip(clusters_of(sums), clusters_of(other.groups[group]), strict=True):
            np.testing.assert_array_equal(kept, read, strict=True)
    assert sum(clusters_of(sums)[2].size for sums in other.groups.values()) == 4
    assert other.unpairable == ""
    assert repr(other.layers) == repr(profile.layers)  # repr: NaN equals NaN
    assert other.unseen == profile.unseen
    assert other.sequences == profile.sequences
    assert other.num_sequences == 17
    assert repr(other.info) == repr(profile.info)
    assert other.table().equals(profile.table())
    assert other.offsets().equals(profile.offsets())
    assert other.by_position("entropy").equals(profile.by_position("entropy"))
    # and a second time it is the same file, in whatever order its arrays stand
    other.save(str(tmp_path / "again"))
    (arrays, metadata), (arrays_again, metadata_again) = parts(path), parts(tmp_path / "again")
    assert metadata_again == metadata
    assert {n: a.tobytes() for n, a in arrays_again.items()} == {n: a.tobytes() for n, a in arrays.items()}


def test_what_was_loaded_can_be_merged_and_recorded_to(profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "p")
    call = random_call(place=Place(0, "编码器.层.0", kv_groups=3))
    loaded = load(tmp_path / "p")
    add(loaded, call, (70, 71))
    add(profile, call, (70, 71))
    assert_same_table(loaded, profile, 1e-12)
    fresh = load(tmp_path / "p")
    fresh.merge(load(tmp_path / "p"))
    assert fresh.num_sequences == 34


def test_saving_does_not_end_what_is_being_recorded(tmp_path: Path) -> None:
    call = random_call(B=2, causal="upper_left")
    saved, never = Profile(), Profile()
    for _ in range(3):
        add(saved, call, (0, 1))
        saved.save(tmp_path / "p")
        add(never, call, (0, 1))
    assert saved.table().equals(never.table())
    assert load(tmp_path / "p").table().equals(never.table())


def test_an_empty_profile(tmp_path: Path) -> None:
    Profile(("entropy",)).save(tmp_path / "p")
    other = load(tmp_path / "p")
    assert other.measures == ("entropy",)
    assert other.table().empty


def test_no_pickle(profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "p")
    arrays, metadata = parts(tmp_path / "p")
    assert metadata["format"] == "headwise-profile"
    assert metadata["schema"] == "2"
    assert {array.dtype.str for array in arrays.values()} == {"<f8", "<u8"}
    assert json.loads(metadata["profile"])["num_sequences"] == 17


def test_names_that_are_no_valid_unicode(tmp_path: Path) -> None:
    """A file name that is no UTF-8 reaches Python with lone surrogates."""
    profile = profile_of(random_call())
    profile.info = {"source": os.fsdecode(b"caf\xe9.txt")}
    profile.save(tmp_path / "p")
    assert load(tmp_path / "p").info == profile.info


# Damage


def test_truncated_files(profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "p")
    whole = (tmp_path / "p").read_bytes()
    length = int.from_bytes(whole[:8], "little")
    cuts = {0, 1, 7, 8, 9, 8 + length // 2, 8 + length - 1, 8 + length, 8 + length + 1, len(whole) - 1}
    cuts |= set(range(0, len(whole), max(1, len(whole) // 60)))
    cut_file = tmp_path / "cut"
    for cut in sorted(cuts):
        cut_file.write_bytes(whole[:cut])
        with pytest.raises(FileFormatError) as error:
            load(cut_file)
        assert str(error.value).startswith(f"{cut_file}: "), cut
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("where", ["length", "header", "numbers"])
def test_a_flipped_byte_never_passes_for_other_numbers(profile: Profile, tmp_path: Path, where: str) -> None:
    """A damaged file gives an error that says so: it must not give wrong numbers, and no other kind of error."""
    profile.save(tmp_path / "p")
    whole = (tmp_path / "p").read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    start, stop = {"length": (0, 8), "header": (8, begin), "numbers": (begin, len(whole))}[where]
    broken = tmp_path / "broken"
    passed = []
    for at in range(start, stop, max(1, (stop - start) // 150)):
        for flip in (0x01, 0x10, 0x80):
            data = bytearray(whole)
            data[at] ^= flip
            broken.write_bytes(data)
            try:
                load(broken)
            except FileFormatError as error:
                assert str(error).startswith(f"{broken}: ")
                assert "\n" not in str(error)
            else:
                passed.append((at, chr(whole[at]), chr(data[at])))
    assert not passed, f"{len(passed)} damaged files were read without a word, the first {passed[:3]}"


def rewrite(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    path.write_bytes(write_arrays(arrays, metadata=metadata))


ARRAYS = (
    "mean", "m2", "counts", "offsets", "bin_sum", "bin_rows", "sequences", "nn", "low",
    "cluster_sum", "cluster_rows", "cluster_identity",
)  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("how", ["missing", "another shape"])
def test_arrays_that_do_not_fit(profile: Profile, tmp_path: Path, name: str, how: str) -> None:
    """Told when loading, not later by whatever reads the array."""
    profile.save(tmp_path / "p")
    arrays, metadata = parts(tmp_path / "p")
    array = arrays.pop(f"0/{name}")
    if how == "another shape":
        arrays[f"0/{name}"] = np.ascontiguousarray(array[..., :-1])
    metadata["sha256"] = files._digest(metadata["profile"], arrays)
    rewrite(tmp_path / "broken", arrays, metadata)
    with pytest.raises(FileFormatError, match="damaged"):
        load(tmp_path / "broken")


@pytest.mark.parametrize(
    "document",
    [
        {"measures": None},
        {"measures": ["entropy"]},
        {"groups": [[0, 0, "prefill"]]},
        {"groups": [[9, 0, "prefill", "self"]]},
        {"groups": {"a": 1}},
        {"layers": []},
        {"layers": [1, 2]},
        {"layers": [{"layer": 0}]},
        {"unseen": [{"x": 1}]},
        {"unseen": [["a", "b"]]},
        {"sequences": [{"length": 1, "what": 2}]},
        {"num_sequences": "many"},
        {"num_sequences": None},
        {"unpairable": "a reason, though the sums are there"},
        {"info": ["a"]},
        {"info": None},
    ],
)
def test_documents_that_do_not_fit(profile: Profile, tmp_path: Path, document: dict[str, Any]) -> None:
    profile.save(tmp_path / "p")
    arrays, metadata = parts(tmp_path / "p")
    text = json.dumps({**json.loads(metadata["profile"]), **document})
    metadata = {**metadata, "profile": text, "sha256": files._digest(text, arrays)}
    rewrite(tmp_path / "broken", arrays, metadata)
    with pytest.raises(FileFormatError, match="damaged"):
        load(tmp_path / "broken")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "null", "[" * 100_000])
def test_a_document_that_is_none(profile: Profile, tmp_path: Path, text: str) -> None:
    profile.save(tmp_path / "p")
    arrays, metadata = parts(tmp_path / "p")
    rewrite(tmp_path / "broken", arrays, {**metadata, "profile": text, "sha256": files._digest(text, arrays)})
    with pytest.raises(FileFormatError, match="damaged"):
        load(tmp_path / "broken")


def test_a_newer_file_says_to_upgrade(profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "p")
    arrays, metadata = parts(tmp_path / "p")
    rewrite(tmp_path / "newer", arrays, {**metadata, "schema": "3"})
    with pytest.raises(FileFormatError, match=r"newer: has profile format '3'; .*reads format 2: upgrade headwise"):
        load(tmp_path / "newer")


def test_a_file_of_format_1_is_read_without_the_sums_of_its_sequences(tmp_path: Path) -> None:
    """Written by headwise when that was its format."""
    old = load(OLD)
    assert old.info["model"] == "small"
    assert (old.num_sequences, old.sequences[0].tokens) == (6, ["a", "b", "c"])
    table = old.table()
    assert table["label"].tolist() == ["L0H0", "L0H1", "L1H0", "L1H1"]
    np.testing.assert_allclose(table["self_focus"], [0.113111, 0.161775, 0.158020, 0.148114], atol=1e-6)
    np.testing.assert_allclose(table["self_focus_se"], [0.020835, 0.035119, 0.031754, 0.028111], atol=1e-6)
    assert "format 1" in old.unpairable
    assert all(sums.by_sequence() is None for sums in old.groups.values())
    old.save(tmp_path / "again")
    again = load(tmp_path / "again")
    assert again.unpairable == old.unpairable
    assert again.table().equals(table)
    assert parts(tmp_path / "again")[1]["schema"] == "2"


def test_a_file_that_says_format_1_is_held_to_it(profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "p")
    arrays, metadata = parts(tmp_path / "p")
    rewrite(tmp_path / "broken", arrays, {**metadata, "schema": "1"})
    with pytest.raises(FileFormatError, match="damaged"):
        load(tmp_path / "broken")


def test_a_schema_that_is_not_newer_does_not_say_to_upgrade(profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "p")
    arrays, metadata = parts(tmp_path / "p")
    del metadata["schema"]
    rewrite(tmp_path / "none", arrays, metadata)
    with pytest.raises(FileFormatError) as error:
        load(tmp_path / "none")
    assert "upgrade" not in str(error.value)


@pytest.mark.parametrize("data", [b"", b"hello", b"{}", b"\x80\x04K\x01.", b"PK\x03\x04" + bytes(100), bytes(64)])
def test_what_is_no_profile(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(FileFormatError, match="x: is no headwise profile, or is damaged"):
        load(tmp_path / "x")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_another_safetensors_file(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(write_arrays({"w": np.zeros(3)}, metadata=metadata))
    with pytest.raises(FileFormatError, match="safetensors file, but no headwise profile"):
        load(tmp_path / "model.safetensors")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.headwise: cannot be read: No such file"):
        load(tmp_path / "none.headwise")
    with pytest.raises(InputError, match=r"cannot be read: Is a directory"):
        load(tmp_path)


# Writing


def test_a_folder_that_does_not_exist(profile: Profile, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"p: cannot be written: No such file or directory"):
        profile.save(tmp_path / "no" / "p")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way(profile: Profile, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    with pytest.raises(InputError, match="p: cannot be written"):
        profile.save(tmp_path / "p")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize("interruption", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["write", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    interruption: BaseException, step: str, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"old")

    class Full:
        def __init__(self, handle: int, mode: str) -> None:
            self.handle = handle

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            os.close(self.handle)

        def write(self, data: bytes) -> None:
            raise interruption

    def fail(*args: object) -> None:
        raise interruption

    if step == "write":
        monkeypatch.setattr(writing.os, "fdopen", Full)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    expected = InputError if isinstance(interruption, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        profile.save(path)
    monkeypatch.undo()
    assert [one.name for one in tmp_path.iterdir()] == ["p"]
    assert path.read_bytes() == b"old"


def test_a_file_is_replaced_with_ordinary_permissions(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"old")
    replace_files({path: b"new"})
    assert path.read_bytes() == b"new"
    before = os.umask(0)
    os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~before
    assert [one.name for one in tmp_path.iterdir()] == ["p"]


def test_of_several_files_none_is_replaced_before_all_are_written(tmp_path: Path) -> None:
    old = tmp_path / "a"
    old.write_bytes(b"old")
    with pytest.raises(InputError, match="b: cannot be written"):
        replace_files({old: b"new", tmp_path / "no" / "b": b"new"})
    assert old.read_bytes() == b"old"
    with pytest.raises(InputError, match="a: was made by somebody else meanwhile"):
        replace_files({old: b"new"}, new=[old])
    assert old.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_errors_have_the_exit_codes_of_the_command_line() -> None:
    assert issubclass(FileFormatError, HeadwiseError)
    assert (InputError.exit_code, FileFormatError.exit_code) == (2, 3)
