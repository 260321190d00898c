"""Plans: what they refuse, and that they come back from JSON as they were."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import FileFormatError, InputError
from headwise.studies.planning import demonstration, planned
from headwise.studies.plans import Plan, RunKey
from headwise.studies.tasks.protocol import Defaults
from tests.studies.small import small_plan


def test_a_plan_comes_back_from_json(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(b"abc" * 1000)
    plan = planned("text", data=[text], heads=(1, 2), seeds=3)
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.digest == plan.digest
    # sha256 of b"abc" * 1000, by hashlib in another program
    assert plan.data[0].size == 3000
    assert planned("text", data=[text], heads=(1, 2), seeds=2).digest != plan.digest
    elsewhere = replace(plan, data=tuple(replace(one, path=f"/elsewhere/{Path(one.path).name}") for one in plan.data))
    assert elsewhere.digest == plan.digest, "data that moved are the same data"
    changed = replace(plan, data=tuple(replace(one, sha256="0" * 64) for one in plan.data))
    assert changed.digest != plan.digest


def test_a_plan_from_before_there_was_a_choice_of_initial_weights() -> None:
    """It is read as what it was, and its digest, which its checkpoints bear, is the same."""
    plan = small_plan()
    document = plan.to_json()
    assert "init" not in document
    assert Plan.from_json(document) == plan
    control = small_plan(init="per_head")
    assert Plan.from_json(json.loads(json.dumps(control.to_json()))) == control
    assert control.digest != plan.digest
    assert [control.sizes(key).init for key in control.runs] == ["per_head"] * 4


def test_data_that_changed_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(b"abc" * 1000)
    plan = planned("text", data=[text])
    plan.check_data()
    text.write_bytes(b"abd" * 1000)
    with pytest.raises(InputError, match=r"a\.txt: has changed since the study was planned"):
        plan.check_data()


def test_the_runs_of_a_plan() -> None:
    plan = small_plan(heads=(1, 2), seeds=2)
    assert [str(key) for key in plan.runs] == [
        "fixed_width-h1-s0", "fixed_width-h2-s0", "fixed_head_size-h1-s0", "fixed_head_size-h2-s0",
        "fixed_width-h1-s1", "fixed_width-h2-s1", "fixed_head_size-h1-s1", "fixed_head_size-h2-s1",
    ]  # fmt: skip
    widths = [(plan.sizes(key).num_heads, plan.sizes(key).head_dim) for key in plan.runs[:4]]
    assert widths == [(1, 8), (2, 4), (1, 4), (2, 4)]
    assert small_plan(head_dim=3).sizes(RunKey("fixed_head_size", 2, 0)).head_dim == 3


def test_when_a_run_is_evaluated() -> None:
    assert small_plan(steps=7, evaluate_every=3).evaluations() == [0, 3, 6, 7]
    assert small_plan(steps=6, evaluate_every=3).evaluations() == [0, 3, 6]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": (3,)}, "--heads 3: d_model = 8 does not divide into 3 heads; head counts that fit: 1, 2, 4, 8"),
        ({"heads": (0,)}, "--heads: expected whole numbers of at least 1; got 0"),
        ({"heads": (2, 2)}, "--heads: expected at least one, each once; got 2, 2"),
        ({"seeds": 0}, "--seeds: expected at least one"),
        ({"num_layers": 0}, "--layers: expected whole numbers of at least 1; got 0"),
        ({"learning_rate": float("nan")}, "--learning-rate: expected a number above 0; got nan"),
        ({"dropout": 1.0}, "--dropout: expected a probability below 1"),
        ({"weight_decay": -1.0}, "--weight-decay: expected a number of at least 0"),
        ({"steps": 6, "evaluate_every": 7}, "--evaluate-every 7: there are only 6 steps"),
        ({"regimes": ("fixed",)}, "--regimes: expected fixed_width or fixed_head_size; got 'fixed'"),
        ({"init": "xavier"}, "--init: expected fused or per_head; got 'xavier'"),
        ({"options": {"key": "3"}}, "--option key: the task lookup has no such option; it has: keys, values"),
        ({"options": {"keys": "3.5"}}, "--option keys=3.5: expected a whole number"),
    ],
)
def test_what_a_plan_refuses(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refusal:
        small_plan(**changes)
    assert words in str(refusal.value)


def test_heads_of_any_number_go_with_a_fixed_head_size() -> None:
    assert small_plan(heads=(3,), regimes=("fixed_head_size",)).runs == [RunKey("fixed_head_size", 3, 0)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan.update(format="other"), "is no plan of a headwise study"),
        (lambda plan: plan.update(schema=2), "is of format 2; this headwise reads 1"),
        (lambda plan: plan.pop("heads"), "is damaged: heads is missing"),
        (lambda plan: plan.update(steps=-1), "is damaged: --steps"),
    ],
)
def test_a_plan_that_cannot_be_read(change: Any, words: str) -> None:
    document = small_plan().to_json()
    change(document)
    with pytest.raises(FileFormatError, match=words):
        Plan.from_json(document)


def test_a_task_that_names_no_demonstration_gets_one() -> None:
    found = demonstration(Defaults(heads=(1, 2, 4, 8), seeds=7, steps=1000, warmup=500, evaluate_every=1000))
    assert (found.heads, found.seeds, found.steps) == ((1, 2, 4), 1, 200)
    assert (found.warmup, found.evaluate_every) == (20, 50)
    assert demonstration(Defaults(steps=3)).evaluate_every == 1
