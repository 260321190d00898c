"""Runs of a plan that are one: the same sizes and the same seed under two names.

Where the fixed head size is the width of a head that some h has at fixed width too (by default that of the largest h),
both regimes ask for the same model, with the same initial weights and the same data: bit by bit the same run. It is
trained once, and the other takes what it left.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load as read_tensors
from safetensors.torch import save as packed_tensors

from headwise.errors import InputError
from headwise.studies import durable
from headwise.studies.claims import REGIME
from headwise.studies.facts import Facts
from headwise.studies.folders import RunFolder, StudyFolder, read_json
from headwise.studies.plans import Plan, RunKey


def twin_of(plan: Plan, key: RunKey) -> RunKey | None:
    """The run of the plan that this one repeats; None if it is itself the one that is trained.

    The one of fixed width is: its single head is cut anew at the end.
    """
    same = [run for run in plan.runs if run.seed == key.seed and plan.sizes(run) == plan.sizes(key)]
    first = min(same, key=lambda run: run.regime != REGIME)
    return None if first == key else first


def taken_over(plan: Plan, study: StudyFolder, run: RunFolder) -> bool:
    """Complete a run with what its twin left; False where it has none that is complete, or has begun by itself.

    Raises:
        DiskError: The disk refused.
        InputError: A file of the twin cannot be read.
        FileFormatError: Its facts are damaged.
    """
    key = twin_of(plan, run.key)
    if key is None or run.checkpoint_file.exists() or not study.run(key).final_file.is_file():
        return False
    twin = study.run(key)
    copied = {path.name: _content(path) for path in (twin.log_file, twin.start_file, twin.profile_file)}
    tensors = read_tensors(_content(twin.model_file))
    known = Facts.from_json(read_json(twin.facts_file), str(twin.facts_file))
    with durable.refusals(run.path):
        run.path.mkdir(parents=True, exist_ok=True)
        run.error_file.unlink(missing_ok=True)
        for name, content in copied.items():
            durable.replace(run.path / name, content)
        if twin.boards.is_dir():
            shutil.copytree(twin.boards, run.boards, dirs_exist_ok=True)
    durable.replace(run.model_file, packed_tensors(tensors, metadata={"key": str(run.key), "plan": plan.digest}))
    # A head is cut anew where the plan says so: at fixed width alone, which the twin may have and this run has not.
    durable.replace_json(run.facts_file, replace(known, recut={}, recut_failed="").to_json())
    own = {"key": str(run.key), "regime": run.key.regime, "heads": run.key.heads, "recut": None, "same_as": str(key)}
    final = {name: value for name, value in twin.final().items() if name != "recut_failed"}
    durable.replace_json(run.final_file, final | own)
    return True


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
