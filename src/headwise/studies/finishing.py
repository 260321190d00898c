"""The end of a run: everything that is measured once, on the trained model."""

from __future__ import annotations

import copy
import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save as packed_tensors
from torch import nn

from headwise.effects.repeating import induction_scores
from headwise.layer import MultiHeadAttention
from headwise.profile.writing import json_value
from headwise.studies import durable, facts, measuring, resplit
from headwise.studies.checkpoints import Checkpoint
from headwise.studies.claims import REGIME
from headwise.studies.folders import RunFolder
from headwise.studies.memory import step_bytes
from headwise.studies.plans import Plan, RunKey
from headwise.studies.ranks import score_ranks
from headwise.studies.subspaces import subspaces
from headwise.studies.tasks.protocol import Task

if TYPE_CHECKING:
    import pandas as pd

    from headwise.profile import Profile

NO_BEGIN = -1
"""No token stands before the random ones."""


def finish(plan: Plan, key: RunKey, task: Task, folder: RunFolder, model: nn.Module, at: Checkpoint) -> None:
    """Keep the trained model, its profile and, last of all, `final.json`.

    Raises:
        DiskError: The disk refused; the checkpoint stays, from which this can be done again.
    """
    model.eval()
    profile = measuring.profile_of(model, task, measuring.KEPT)
    log = folder.log()
    final = {
        **about(plan, key, model),
        **{name: log[-1][name] for name in ("train_loss", "heldout_loss", "score")},
        "score_name": task.score_name,
        "higher_is_better": task.higher_is_better,
        "start": {name: log[0][name] for name in ("heldout_loss", "score")},
        **measured(model, task, profile),
        **cut_anew(plan, key, model, task),
        "step_bytes": _bytes_of_a_step(plan, key, task, model),
        "seconds": at.seconds,
        "seconds_per_step": at.seconds / plan.steps,
        "peak_bytes": at.peak_bytes or None,
    }
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    durable.replace(folder.model_file, packed_tensors(tensors, metadata={"key": str(key), "plan": plan.digest}))
    durable.replace(folder.profile_file, measuring.packed(profile))
    durable.replace_json(folder.facts_file, facts.made(final, log, profile, folder.start_profile()).to_json())
    durable.replace_json(folder.final_file, final)


def about(plan: Plan, key: RunKey, model: nn.Module) -> dict[str, Any]:
    """Which run it is, and how large its model."""
    attention = [layer for layer in model.modules() if isinstance(layer, MultiHeadAttention)]
    return {
        "key": str(key),
        "regime": key.regime,
        "heads": key.heads,
        "seed": key.seed,
        "d_model": plan.d_model,
        "d_k": plan.sizes(key).head_dim,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "attention_parameters": sum(layer.num_parameters for layer in attention),
        "steps": plan.steps,
        "plan": plan.digest,
        "threads": plan.threads,
        "torch": torch.__version__,
        "headwise": version("headwise"),
        "python": platform.python_version(),
    }


def measured(model: nn.Module, task: Task, profile: Profile) -> dict[str, Any]:
    """What final.json says of the heads beyond the profile's table.

    Args:
        model: The trained model, in evaluation mode.
        task: Gives held-out data.
        profile: The profile of the model on these data.
    """
    induction = induction_of(model, task)
    roles = profile.roles(induction=induction)
    return {
        "roles": _records(roles, ("label", "role", "value", "spread", "evidence")),
        "induction": None if induction is None else _records(induction, ("label", "induction", "induction_se")),
        "subspaces": subspaces(model),
        "score_ranks": score_ranks(model, task),
        "unseen": [{"name": one.name, "reason": one.reason} for one in profile.unseen],
    }


def induction_of(model: nn.Module, task: Task) -> pd.DataFrame | None:
    """What heads do on repeated random tokens; None where tokens are no vocabulary from which any text can be made."""
    architecture = task.architecture()
    if architecture.kind != "decoder" or architecture.outputs is not None or architecture.vocab is None:
        return None
    length = min(architecture.length // 2, architecture.vocab)
    if length < 1:
        return None
    return induction_scores(model, length=length, vocab=architecture.vocab, begin=NO_BEGIN)


def cut_anew(plan: Plan, key: RunKey, model: nn.Module, task: Task) -> dict[str, Any]:
    """The numbers of a single head of fixed width, cut anew into the other numbers of heads of the plan."""
    heads = [h for h in plan.heads if h > 1 and plan.d_model % h == 0]
    if (key.regime, key.heads) != (REGIME, 1) or not heads:
        return {"recut": None}
    try:
        found = resplit.numbers(model, task, heads)
    except ValueError as error:
        return {"recut": None, "recut_failed": str(error)}
    return {
        "recut": [
            {"estimand": estimand, "heads": cutting.heads, "scale": cutting.scale, "value": json_value(value)}
            for (estimand, cutting), value in found.items()
        ]
    }


def _records(table: pd.DataFrame, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = table[list(columns)].itertuples(index=False)
    return [{name: json_value(value) for name, value in zip(columns, row, strict=True)} for row in rows]


def _bytes_of_a_step(plan: Plan, key: RunKey, task: Task, model: nn.Module) -> int:
    """What one more step, forward and backward, would take; the model stays as it is."""
    twin = copy.deepcopy(model).train()
    batch = task.batch(key.seed, plan.steps)
    return step_bytes(lambda: task.loss(twin, batch).backward())
