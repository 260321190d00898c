"""Facts of a run: made from all that it left, kept small, and enough for a verdict, its page and going on."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path

import pytest
from scripts.results import keep

from headwise.cli import main
from headwise.errors import FileFormatError, InputError
from headwise.studies import evidence, facts, running
from headwise.studies.facts import Facts, Number, facts_of
from headwise.studies.folders import StudyFolder
from headwise.studies.planning import planned
from headwise.studies.plans import RunKey
from headwise.studies.resplit import Cutting
from headwise.studies.summary import rows
from headwise.studies.verdict import verdict_of

KEY = RunKey("fixed_width", 1, 1)


def test_facts_come_back_from_json(study: StudyFolder) -> None:
    for run in study.complete():
        found = facts_of(run)
        assert found == facts.made(run.final(), run.log(), run.profile(), run.start_profile())
        assert Facts.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_facts_are_what_the_run_left(study: StudyFolder) -> None:
    run = study.run(KEY)
    found, final, log = facts_of(run), run.final(), run.log()
    assert found.values[Number("heldout_loss", "trained")] == final["heldout_loss"]
    assert found.values[Number("score", "untrained")] == final["start"]["score"]["accuracy"]
    assert found.recut["self_focus", Cutting(2, "own")] == next(
        one["value"]
        for one in final["recut"]
        if (one["estimand"], one["heads"], one["scale"]) == ("self_focus", 2, "own")
    )
    assert (found.d_k, found.parameters, found.bytes) == (8, final["parameters"], final["step_bytes"])
    assert found.versions["torch"] == final["torch"]
    assert [one.step for one in found.course] == [line["step"] for line in log]
    assert found.course[-1].heads["self_focus"] == [head["self_focus"] for head in log[-1]["heads"]]
    assert found.roles == tuple((one["label"], one["role"]) for one in final["roles"])


def test_what_was_passed_on_is_enough(study: StudyFolder, tmp_path: Path) -> None:
    """The same verdict and page, from a tenth of the bytes, without models."""
    pytest.importorskip("matplotlib", reason="needs matplotlib (pip install headwise[study])")
    from headwise.studies.page.document import page

    kept = StudyFolder(tmp_path / study.path.name)
    assert keep(study, kept) == 6
    assert not list(kept.path.rglob("*.safetensors"))
    (whole,), (small,) = evidence.read([study.path]), evidence.read([kept.path])
    assert small.numbers.values == whole.numbers.values
    assert verdict_of([small]) == verdict_of([whole])
    assert page([kept.path], [small], "en") == page([study.path], [whole], "en")
    sizes = [sum(path.stat().st_size for path in one.path.rglob("*") if path.is_file()) for one in (study, kept)]
    assert sizes[1] < sizes[0] / 10
    other = StudyFolder(tmp_path / "other")
    shutil.copytree(kept.path, other.path)
    document = json.loads(other.plan_file.read_text()) | {"steps": 8}
    other.plan_file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="holds another study"):
        keep(study, other)


def test_a_study_goes_on_elsewhere(tmp_path: Path) -> None:
    """Runs that are known are not trained again; the data are told to be somewhere else."""
    from tests.studies.small import finished

    text = tmp_path / "a.txt"
    text.write_text("to be or not to be. " * 300)
    plan = planned(
        "text", data=[text], heads=(1, 2), seeds=1, d_model=8, num_layers=1, d_ff=0, steps=2, batch=2, length=8,
        regimes=("fixed_width",),
    )  # fmt: skip
    first = finished(plan, tmp_path / "first", but=[RunKey("fixed_width", 2, 0)])
    kept = StudyFolder(tmp_path / "kept")
    assert keep(first, kept) == 1
    moved = text.rename(tmp_path / "b.txt")
    again = kept.plan()
    with pytest.raises(InputError, match=r"--data a\.txt: cannot be read"):
        again.check_data()
    with pytest.raises(InputError, match=r"planned with a\.txt; these hold something else"):
        again.with_data([kept.plan_file])
    again = again.with_data([moved])
    assert again.digest == plan.digest
    outcome = running.run(again, kept, 1, _Quiet())
    assert (len(outcome.complete), outcome.failed) == (2, {})
    assert not kept.run(RunKey("fixed_width", 1, 0)).model_file.exists(), "it was not trained again"
    assert kept.run(RunKey("fixed_width", 2, 0)).model_file.exists()


def test_the_command_goes_on_with_facts_alone(
    study: StudyFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = StudyFolder(tmp_path / "kept")
    keep(study, kept)
    assert main(["study", "--out", str(kept.path), "--resume"]) == 0
    told = capsys.readouterr().out
    assert [row.losses for row in rows(kept)] == [row.losses for row in rows(study)]
    for row in rows(study):
        assert f"{statistics.fmean(row.losses):.4f}" in told


@pytest.mark.parametrize(
    "change",
    [
        {"length": {}},
        {"rows": [{"heads": 1, "more": 0, "maps": [{"head": 0, "self_focus": [], "image": ""}]}]},
        {"seed": None},
    ],
)
def test_damaged_maps_are_told(study: StudyFolder, change: dict[str, object]) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib (pip install headwise[study])")
    from headwise.studies.page.gathered import gather
    from headwise.studies.page.maps import from_json, maps_of, to_json

    (read,) = evidence.read([study.path])
    layers = maps_of(gather(study.path, read))
    document = json.loads(json.dumps(to_json(layers)))
    assert from_json(document) == layers
    document["layers"][0] |= change
    with pytest.raises(FileFormatError, match=r"maps\.json: is damaged"):
        from_json(document)


class _Quiet:
    def begins(self, key: RunKey) -> None: ...

    def step(self, key: RunKey, step: int) -> None: ...

    def finished(self, key: RunKey, final: object) -> None: ...

    def failed(self, key: RunKey, why: str) -> None: ...


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "is no run of a headwise study"),
        ({"schema": 9}, "is of format 9"),
        ({"values": [["a"]]}, "is damaged"),
        ({"heads": [["a", "trained", 0, [1], []]]}, "is damaged"),
        ({"course": [[1, {"self_lift": -1}]]}, "is damaged"),
        ({"course": [[1, []]]}, "is damaged"),
        ({"lifts": [[1, 2, "a"]]}, "is damaged"),
    ],
)
def test_damaged_facts_are_told(study: StudyFolder, change: dict[str, object], words: str) -> None:
    document = facts_of(study.run(KEY)).to_json() | change
    with pytest.raises(FileFormatError, match=words):
        Facts.from_json(document, "facts.json")
