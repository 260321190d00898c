"""Maps hold the exact weights of the trained models."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import InputError
from headwise.studies import resplit
from headwise.studies.estimands import mean_of
from headwise.studies.page import pixels
from headwise.studies.page.gathered import Gathered
from headwise.studies.page.maps import MOST_HEADS, maps_of, own_weight
from headwise.studies.plans import RunKey
from tests.studies.small import finished, small_plan, task_of


def decoded(image: str) -> np.ndarray:
    """Grey and alpha `[rows, columns, 2]`, by another reader of PNG."""
    opened = pytest.importorskip("PIL.Image").open(io.BytesIO(base64.b64decode(image.partition(",")[2])))
    assert opened.mode == "LA"
    return np.array(opened)


def test_a_png_of_known_weights() -> None:
    weights = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]])
    image = decoded(pixels.uri(weights))
    assert image.shape == (2, 3, 2)
    assert (image[..., 0] == 0).all()
    assert image[0, :, 1].tolist() == [255, 0, 0]
    assert image[1, 0, 1] == pytest.approx(255 * 0.5, abs=255 / 62 + 0.5)
    assert image[1, 1, 1] == pytest.approx(255 * 0.75**0.5, abs=255 / 62 + 0.5)


def test_the_own_weight_leaves_out_rows_without_a_choice() -> None:
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.2, 0.3, 0.5]])
    assert own_weight(weights) == pytest.approx(0.625)
    assert own_weight(torch.ones(1, 1)) is None


def test_maps_agree_with_a_profile_of_the_same_sequence(gathered: Gathered) -> None:
    layers = maps_of(gathered)
    assert [layer.name for layer in layers] == ["blocks.0.attention", "blocks.1.attention"]
    plan = gathered.numbers.plan
    task = task_of(plan, gathered.folder.path)
    inputs = {name: value[:1] for name, value in task.measured()[0].inputs.items()}
    for heads in (1, 2):
        model = resplit.model_of(plan, gathered.folder.run(RunKey("fixed_width", heads, 0)), task)
        with torch.no_grad(), hw.watch(model) as profile:
            model(**inputs)
        known = mean_of(profile, "self_focus")
        for number, layer in enumerate(layers):
            (row,) = [row for row in layer.rows if row.heads == heads]
            assert row.more == 0
            assert [one.self_focus for one in row.maps] == pytest.approx(list(known[number].values()), abs=1e-6)
            for one in row.maps:
                image = decoded(one.image)
                assert image.shape == (layer.length, layer.length, 2)
                assert (np.triu(image[..., 1], 1) == 0).all(), "causal"
                assert image[0, 0, 1] == 255, "the first row sees itself alone"
    assert layers[0].tokens == tuple(task.tokens()[0])  # type: ignore[index]


def test_many_heads_are_counted(tmp_path: object) -> None:
    from pathlib import Path

    from headwise.studies import evidence
    from headwise.studies.page.gathered import gather

    assert isinstance(tmp_path, Path)
    plan = small_plan(heads=(1, 12), d_model=12, seeds=1, steps=1, evaluate_every=1, warmup=0, regimes=("fixed_width",))
    study = finished(plan, tmp_path / "many")
    (read,) = evidence.read([study.path])
    (layer,) = maps_of(gather(study.path, read))
    assert [(row.heads, len(row.maps), row.more) for row in layer.rows] == [(1, 1, 0), (12, MOST_HEADS, 4)]


def test_data_that_changed_give_no_maps(gathered: Gathered, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(_: object) -> None:
        raise InputError("--data a.txt: has changed")

    monkeypatch.setattr(type(gathered.numbers.plan), "check_data", changed)
    with pytest.raises(InputError, match="has changed"):
        maps_of(gathered)


def test_bytes_of_one_character_are_shown_as_that_character(tmp_path: Path) -> None:
    from headwise.studies import evidence
    from headwise.studies.page.gathered import gather
    from headwise.studies.planning import planned

    text = tmp_path / "text.txt"
    text.write_text("头" * 400, "utf-8")
    plan = planned(
        "text", data=[text], heads=(1,), seeds=1, d_model=8, num_layers=1, d_ff=0, steps=1, batch=2, length=9,
        regimes=("fixed_width",),
    )  # fmt: skip
    study = finished(plan, tmp_path / "study")
    (layer,) = maps_of(gather(study.path, evidence.read([study.path])[0]))
    assert layer.tokens == ("头₁", "头₂", "头₃") * 3
