"""What is measured once, at the end of a run: roles, induction, and single heads cut anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.studies import finishing, resplit
from headwise.studies.folders import StudyFolder
from headwise.studies.planning import planned
from headwise.studies.plans import RunKey
from headwise.studies.resplit import model_of
from headwise.studies.transformer import build
from tests.studies.small import finished, task_of


def test_the_cuts_that_a_run_keeps_are_those_of_its_model(study: StudyFolder) -> None:
    plan, run = study.plan(), study.run(RunKey("fixed_width", 1, 1))
    task = task_of(plan, study.path)
    wanted = resplit.numbers(model_of(plan, run, task), task, [2])
    kept = {(one["estimand"], one["heads"], one["scale"]): one["value"] for one in run.final()["recut"]}
    assert kept == {(name, cutting.heads, cutting.scale): value for (name, cutting), value in wanted.items()}
    assert kept["self_focus", 2, "own"] != kept["self_focus", 2, "trained"]
    assert study.run(RunKey("fixed_width", 2, 1)).final()["recut"] is None, "of a single head alone"


def test_layers_that_cannot_be_cut_say_why(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = study.plan()
    task = task_of(plan, study.path)
    key = RunKey("fixed_width", 1, 0)
    model = build(task.architecture(), plan.sizes(key), 0)

    def refuse(*_: object) -> None:
        raise ValueError("its heads share keys")

    monkeypatch.setattr(resplit, "numbers", refuse)
    assert finishing.cut_anew(plan, key, model, task) == {"recut": None, "recut_failed": "its heads share keys"}


def test_roles_and_induction_of_a_text(tmp_path: Path) -> None:
    """Random tokens are a text of bytes, but no facts and queries: lookup has roles, and no induction."""
    source = tmp_path / "a.txt"
    source.write_text("to be or not to be, that is the question. " * 200)
    plan = planned(
        "text", data=[source], heads=(2,), seeds=1, d_model=16, num_layers=2, d_ff=0, steps=2, batch=2, length=16,
        regimes=("fixed_width",),
    )  # fmt: skip
    run = finished(plan, tmp_path / "study").run(plan.runs[0])
    final = run.final()
    task = task_of(plan, tmp_path / "study")
    again = finishing.induction_of(model_of(plan, run, task), task)
    assert again is not None
    assert [(one["label"], one["induction"]) for one in final["induction"]] == [
        (one.label, one.induction) for one in again.itertuples()
    ]
    assert {one["label"] for one in final["induction"]} == {"L0H0", "L0H1", "L1H0", "L1H1"}
    # No training to speak of: some weight on each of the 9 to 16 keys of the rows that repeat, and no head looks there.
    assert all(0.01 < one["induction"] < 0.3 for one in final["induction"])
    roles = run.profile().roles(induction=again)
    assert [(one["label"], one["role"]) for one in final["roles"]] == list(
        zip(roles["label"], roles["role"], strict=True)
    )


def test_no_induction_where_tokens_are_no_text(study: StudyFolder) -> None:
    final = study.run(RunKey("fixed_width", 2, 0)).final()
    assert final["induction"] is None
    assert isinstance(final["roles"], list)
