"""The numbers of a study, against weights in plain torch, and against a real study's files."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.capture import watch
from headwise.errors import FileFormatError
from headwise.layer import MultiHeadAttention
from headwise.profile import Profile
from headwise.studies import estimands
from headwise.studies.estimands import by_layer, clipped
from headwise.studies.folders import StudyFolder
from headwise.studies.numbers import Where, label_of, numbers_of
from headwise.studies.planning import planned
from headwise.studies.plans import RunKey
from headwise.studies.resplit import inputs_of, model_of
from tests.studies.small import small_plan, task_of

ROWS = ["self_focus", "self_lift", "entropy_ratio", "max_weight"]


class Layers(nn.Module):
    """Two layers that attend: 2 heads, then 3; 10 positions."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.one, self.two = MultiHeadAttention(12, 2), MultiHeadAttention(12, 3)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x = 4 * x + self.one(x, causal=self.causal)
        x = x + self.two(x, causal=self.causal)
        read: Tensor = self.two(x, context)
        return read


def by_hand(q: Tensor, k: Tensor, causal: bool) -> dict[str, float]:
    """The estimands of one layer from its weights, position by position."""
    scores = (q.double() @ k.double().mT) / math.sqrt(q.shape[-1])
    N = q.shape[2]
    if causal:
        scores = scores.masked_fill(torch.ones(N, N).triu(1).bool(), -math.inf)
    p = scores.softmax(-1)
    first = 1 if causal else 0  # row 0 sees itself alone
    seen = torch.arange(1, N + 1) if causal else torch.full((N,), N)
    own = p.diagonal(dim1=-2, dim2=-1)  # [B, H, N]
    lift = own * seen
    bins = [(start, end) for start, end in ((0, 0), (1, 2), (3, 6), (7, 9)) if start >= first]
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1) / seen.double().log()
    own, largest = own[..., first:], (p.argmax(-1) == torch.arange(N))[..., first:].double()
    of_heads = own.mean((0, 2))
    return {
        "self_focus": float(of_heads.mean()),
        "least_self_focus": float(of_heads.min()),
        "most_self_focus": float(of_heads.max()),
        "self_lift": fmean(float(lift[..., start : end + 1].mean()) for start, end in bins),
        "own_largest": float(largest.mean()),
        "entropy_ratio": float(entropy[..., first:].mean()),
        "max_weight": float(p.max(-1).values[..., first:].mean()),
    }


@pytest.mark.parametrize("causal", [True, False])
def test_estimands_from_weights(causal: bool) -> None:
    """Rows that see one key are left out; attention to another sequence too."""
    torch.manual_seed(0)
    model = Layers(causal).eval()
    heard: list[Any] = []
    with torch.no_grad(), watch(model, measures=ROWS).tap(lambda call, *_: heard.append(call)) as profile:
        model(torch.randn(3, 10, 12), torch.randn(3, 7, 12))
    assert [call.place.kind for call in heard] == ["self", "self", "cross"]
    wanted = [by_hand(call.q, call.k, causal) for call in heard[:2]]
    assert wanted[0].keys() == estimands.MEASURED.keys()
    for name in estimands.MEASURED:
        found = by_layer(profile, name)
        assert list(found) == [0, 1], name
        assert [found[0], found[1]] == pytest.approx([one[name] for one in wanted], rel=2e-5), name


def test_lift_by_position() -> None:
    """Uniform weights are lift 1 everywhere; weight 1 on the own key is n_i."""
    for factor, wanted in ((0.0, (1.0, 1.0, 1.0)), (1e4, (2.5, 5.5, 9.0))):
        profile = of_scores(factor * torch.eye(10), causal=True)
        found = estimands.lift_by_position(profile)
        assert list(found) == [(1, 2), (3, 6), (7, 14)]
        assert list(found.values()) == pytest.approx(wanted, rel=1e-5)
    found = estimands.lift_by_position(of_scores(1e4 * torch.eye(10), causal=False))
    assert found == pytest.approx({(0, 0): 10.0, (1, 2): 10.0, (3, 6): 10.0, (7, 14): 10.0}, rel=1e-5)


def test_rows_that_see_one_key_say_nothing() -> None:
    """Every row but the first looks at the one before it: none of them at itself."""
    profile = of_scores(1e4 * torch.eye(10).roll(-1, 1), causal=True)
    for name in ("own_largest", "self_focus"):
        assert by_layer(profile, name) == pytest.approx({0: 0.0}, abs=1e-6)


def test_a_row_alone_among_others_at_its_position() -> None:
    """A sequence of one token beside one of three, whose rows have half of their weight on the own key."""
    q = math.log(2) * torch.eye(3).expand(2, 1, 3, 3)
    k = torch.eye(3).expand(2, 1, 3, 3)
    mask = torch.tensor([[True, True, True], [True, False, False]])[:, None, None]
    with torch.no_grad(), watch(measures=ROWS) as profile:
        F.scaled_dot_product_attention(q, k, k, attn_mask=mask, scale=1.0)
    assert profile.table()["rows"].tolist() == [4]
    for name, wanted in (("self_focus", 0.5), ("self_lift", 1.5), ("max_weight", 0.5), ("own_largest", 1.0)):
        assert by_layer(profile, name) == pytest.approx({0: wanted}, rel=1e-6), name
    assert estimands.lift_by_position(profile) == pytest.approx({(0, 0): 1.5, (1, 2): 1.5}, rel=1e-6)


def of_scores(scores: Tensor, causal: bool) -> Profile:
    """The profile of a head with these scores."""
    q = scores[None, None].float()
    k = torch.eye(len(scores))[None, None]
    with torch.no_grad(), watch(measures=ROWS) as profile:
        F.scaled_dot_product_attention(q, k, k, is_causal=causal, scale=1.0)
    return profile


def test_the_diagonal_of_the_head_averaged_map_is_the_layers_mean(study: StudyFolder) -> None:
    """What docs/results/plan.md says once, in place of a number of its own."""
    run = study.run(RunKey("fixed_width", 2, 1))
    plan = study.plan()
    model = model_of(plan, run, task_of(plan, study.path))
    rows: dict[str, list[Tensor]] = {}
    for batch in inputs_of(model, task_of(plan, study.path)):
        for one in batch:
            scores = (one.q.double() @ one.k.double().mT) * one.scale
            N = scores.shape[-1]
            p = scores.masked_fill(torch.ones(N, N).triu(1).bool(), -math.inf).softmax(-1)
            rows.setdefault(one.name, []).append(p.mean(1).diagonal(dim1=-2, dim2=-1)[:, 1:].flatten())
    wanted = [float(torch.cat(several).mean()) for several in rows.values()]
    assert list(by_layer(run.profile(), "self_focus").values()) == pytest.approx(wanted, rel=1e-5)


def test_the_numbers_of_a_study(study: StudyFolder) -> None:
    found = numbers_of(study)
    assert found.label == "lookup, keys=4, values=3, queries=3, held_out=3"
    assert (found.missing, found.score_name, found.higher_is_better, found.is_control) == ((), "accuracy", True, False)
    for run in study.runs():
        key, final = run.key, run.final()
        place = Where("heldout_loss", key.regime, key.heads, key.seed)
        assert found.values[place] == final["heldout_loss"]
        assert found.values[place._replace(state="untrained")] == final["start"]["heldout_loss"]
        assert found.values[place._replace(estimand="score")] == final["score"]["accuracy"]
        for state, profile in (("trained", run.profile()), ("untrained", run.start_profile())):
            for estimand in estimands.MEASURED:
                layers = by_layer(profile, estimand)
                at = Where(estimand, key.regime, key.heads, key.seed, state)  # type: ignore[arg-type]
                assert found.values[at] == fmean(layers.values())
                assert {n: found.values[at._replace(layer=n)] for n in layers} == layers
        assert found.lifts[key.regime, key.heads, key.seed] == estimands.lift_by_position(run.profile())
    one = Where("self_focus", "fixed_width", 1, 0)
    assert found.values[one] != found.values[one._replace(state="untrained")]


def test_a_study_that_is_not_finished(study: StudyFolder, tmp_path: Path) -> None:
    shutil.copytree(study.path, tmp_path / "part")
    part = StudyFolder(tmp_path / "part")
    part.run(RunKey("fixed_width", 2, 1)).final_file.unlink()
    shutil.rmtree(part.run(RunKey("fixed_width", 2, 2)).path)
    failed = part.run(RunKey("fixed_width", 1, 2))
    failed.final_file.unlink()
    failed.error_file.write_text("why")
    found = numbers_of(part)
    assert found.missing == ("fixed_width-h2-s1 (begun)", "fixed_width-h1-s2 (failed)", "fixed_width-h2-s2 (not begun)")
    assert {(place.heads, place.seed) for place in found.values} == {(1, 0), (2, 0), (1, 1)}


def test_a_damaged_file_is_told(study: StudyFolder, tmp_path: Path) -> None:
    shutil.copytree(study.path, tmp_path / "part")
    run = StudyFolder(tmp_path / "part").runs()[0]
    final = run.final()
    del final["start"]
    run.facts_file.unlink()
    run.final_file.write_text(json.dumps(final))
    with pytest.raises(FileFormatError, match=r"final\.json: is damaged: 'start' is missing"):
        numbers_of(StudyFolder(tmp_path / "part"))


def test_labels(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_bytes(b"abc" * 1000)
    assert label_of(small_plan(options={})) == "lookup"
    assert label_of(small_plan(options={"asked": "4"}, init="per_head")) == "lookup, asked=4, init=per_head"
    assert label_of(planned("text", data=[tmp_path / "a.txt"])) == "text on a.txt"
    three = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    assert label_of(planned("text", data=three)) == "text on 3 files (a.txt, ...)"


def test_a_bin_ends_with_the_last_position() -> None:
    assert [clipped(span, 128) for span in ((0, 0), (63, 126), (127, 254))] == [(0, 0), (63, 126), (127, 127)]
    assert clipped((15, 30), 24) == (15, 23)
