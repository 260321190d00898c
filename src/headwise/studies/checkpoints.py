"""Checkpoints of a run: the model and the optimizer after an evaluation, from which training goes on bit by bit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as packed_tensors
from torch import Tensor, nn

from headwise.errors import FileFormatError
from headwise.studies import durable
from headwise.studies.folders import RunFolder, log_lines

FACTS = "headwise"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands, beside its tensors.

    Attributes:
        step: Steps that are done.
        plan: The plan's digest.
        seconds: Processor time that training has taken, without evaluations.
        peak_bytes: The highest resident memory of a process that trained it.
    """

    step: int
    plan: str
    seconds: float = 0.0
    peak_bytes: int = 0


def parameters_in_order(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """All parameters as the optimizer counts them: first the matrices, which decay, then the rest."""
    return sorted(model.named_parameters(), key=lambda named: named[1].dim() < 2)


def write(folder: RunFolder, model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Keep where the run stands. One file holds all that resuming needs, so no kill can part its pieces.

    Raises:
        DiskError: The disk refused; the checkpoint before stays.
    """
    facts = vars(checkpoint)
    tensors = {f"model.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}
    names = [name for name, _ in parameters_in_order(model)]
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{names[number]}.{kind}": value for kind, value in state.items()}
    durable.replace(folder.checkpoint_file, packed_tensors(tensors, metadata={FACTS: json.dumps(facts)}))
    _tell(folder, checkpoint)


def _tell(folder: RunFolder, checkpoint: Checkpoint) -> None:
    durable.replace_json(folder.about_checkpoint, vars(checkpoint) | {"torch": torch.__version__})


def step_of(folder: RunFolder) -> int | None:
    """Steps that the checkpoint of a run has behind it; None where there is no checkpoint, or none that can be read."""
    try:
        with folder.checkpoint_file.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return _facts_of(file.read(length)).step
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
        return None


def _facts_of(header: bytes) -> Checkpoint:
    return Checkpoint(**json.loads(json.loads(header)["__metadata__"][FACTS]))


def read(folder: RunFolder, model: nn.Module, optimizer: torch.optim.Optimizer, plan: str) -> Checkpoint | None:
    """Bring model and optimizer to where the run stopped; None where there is no checkpoint.

    Raises:
        FileFormatError: The checkpoint is damaged, or of another plan.
    """
    path = folder.checkpoint_file
    if not path.is_file():
        return None
    try:
        data = path.read_bytes()
        tensors = read_tensors(data)
        length = int.from_bytes(data[:8], "little")
        checkpoint = _facts_of(data[8 : 8 + length])
        if checkpoint.plan != plan:
            raise FileFormatError(f"{path}: is of another plan; delete {folder.path} to train this run anew")
        model.load_state_dict({name: tensors[f"model.{name}"] for name in model.state_dict()})
        _load_optimizer(model, optimizer, tensors)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise FileFormatError(
            f"{path}: is damaged ({type(error).__name__}); delete {folder.path} to train this run anew"
        ) from error
    _tell(folder, checkpoint)  # a kill may have come between the two files
    return checkpoint


def _load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for number, (name, _) in enumerate(parameters_in_order(model)):
        prefix = f"optimizer.{name}."
        own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if own:
            state[number] = own
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def cut_log(folder: RunFolder, step: int | None) -> None:
    """Take away what the log says beyond a checkpoint (all of it without one): it will be said again."""
    kept = [one for one in log_lines(folder.log_file) if step is not None and one["step"] <= step]
    durable.replace(folder.log_file, b"".join((json.dumps(one) + "\n").encode() for one in kept))
