"""The folder of a study: what lies where, and how to read it.

    plan.json                          the plan (`headwise.studies.plans.Plan`)
    subwords.json                      what a task prepared for all runs (translation: its vocabulary)
    .lock                              held by the process that works on the study
    runs/<regime>-h<heads>-s<seed>/    one run, e.g. runs/fixed_width-h4-s0/
        log.jsonl                      an object a line, one for each evaluation, step 0 (untrained) first
        checkpoint.safetensors         model and optimizer after the last evaluation; its metadata say which
        checkpoint.json                the same facts for people: step, steps, plan, torch
        start.headwise                 profile of the untrained model on held-out data: the control
        profile.headwise               profile of the trained model on the same data; both hold every measure, of rows,
                                       keys and pairs of heads (`.pairs("bc")`), and can tell roles (`.roles()`)
        model.safetensors              the trained model
        tensorboard/                   curves, where they were asked for
        facts.json                     what a verdict and its page need of all that (`headwise.studies.facts`)
        final.json                     what was measured at the end; written last: where it is, the run is complete
        error.txt                      the traceback, where the run failed; gone once it is tried again

A run of which only `facts.json` is left counts as complete too: so studies are passed on, and go on elsewhere. Such a
study has `maps.json` beside its plan: the weights that the page shows, which would need the models.

An object of `log.jsonl`:

    step, train_loss (mean since the evaluation before; null at step 0), heldout_loss (nats), score {name: value},
    seconds_per_step (processor time; median since the evaluation before), peak_bytes (highest resident memory of the
    process),
    heads [{layer, head, label, name, kind, call, phase, <row measure>: value, ...}]

An object of `final.json`:

    key, regime, heads, seed, d_model, d_k, parameters, attention_parameters, steps, plan (its digest)
    train_loss, heldout_loss, score {name: value}, score_name, higher_is_better, start {heldout_loss, score}
    subspaces [{name, d_v, pairs: [{a, b, read: [degrees], written: [degrees], read_overlap, written_overlap}]}]
    score_ranks [{name, head, d_k, queries, keys, sequences, rank, bound, rank_99, stable_rank}]
    roles [{label, role, value, spread, evidence}] (the profile's; of induction heads by repeated random tokens)
    induction [{label, induction, induction_se}] (where the task's tokens are its model's own vocabulary; else null)
    same_as (the key of another run of the plan, which is the same under another name: it was trained once)
    recut [{estimand, heads, scale, value}] (single heads of fixed width cut anew; else null), recut_failed (why not)
    unseen [{name, reason}] (attention that could not be measured)
    step_bytes (the most that the tensors of one training step hold at once, `headwise.studies.memory`)
    seconds, seconds_per_step (mean; both processor time), peak_bytes, threads, torch, headwise

All but `seconds`, `seconds_per_step` and `peak_bytes` is the same, number by number, whenever a run is repeated on one
machine, also where it was killed and resumed. null stands for what is undefined.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import FileFormatError, InputError
from headwise.studies.plans import Plan, RunKey

if TYPE_CHECKING:
    from headwise.profile import Profile

CLOCK = ("seconds", "seconds_per_step", "peak_bytes")
"""What differs between two runs that are equal."""


class StudyFolder:
    """A study on disk.

    Attributes:
        path: Its folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def plan_file(self) -> Path:
        """Where the plan is."""
        return self.path / "plan.json"

    @property
    def maps_file(self) -> Path:
        """Where the weights are that the page shows, if the models are not here."""
        return self.path / "maps.json"

    def plan(self) -> Plan:
        """The plan.

        Raises:
            InputError: There is no study.
            FileFormatError: Its plan cannot be read.
        """
        if not self.plan_file.is_file():
            raise InputError(f"{self.path}: holds no study (there is no plan.json)")
        return Plan.from_json(read_json(self.plan_file), str(self.plan_file))

    def run(self, key: RunKey) -> RunFolder:
        """The folder of a run."""
        return RunFolder(self.path / "runs" / str(key), key)

    def runs(self) -> list[RunFolder]:
        """The folders of all runs of the plan, begun or not."""
        return [self.run(key) for key in self.plan().runs]

    def complete(self) -> list[RunFolder]:
        """Those that are complete."""
        return [run for run in self.runs() if run.is_complete]


class RunFolder:
    """A run on disk.

    Attributes:
        path: Its folder.
        key: Which run it is.
    """

    def __init__(self, path: Path, key: RunKey) -> None:
        self.path, self.key = path, key
        self.log_file, self.final_file = path / "log.jsonl", path / "final.json"
        self.checkpoint_file, self.about_checkpoint = path / "checkpoint.safetensors", path / "checkpoint.json"
        self.start_file, self.profile_file = path / "start.headwise", path / "profile.headwise"
        self.model_file, self.error_file = path / "model.safetensors", path / "error.txt"
        self.facts_file = path / "facts.json"
        self.boards = path / "tensorboard"

    @property
    def is_complete(self) -> bool:
        """Whether it has been trained and measured: here, or elsewhere, and then there is nothing but its facts."""
        return self.final_file.is_file() or (self.facts_file.is_file() and not self.log_file.is_file())

    def final(self) -> dict[str, Any]:
        """What was measured at the end."""
        document = read_json(self.final_file)
        if not isinstance(document, dict):
            raise FileFormatError(f"{self.final_file}: is damaged")
        return document

    def log(self) -> list[dict[str, Any]]:
        """The evaluations, in order; a line that was cut off while it was written is left out."""
        return list(log_lines(self.log_file))

    def profile(self) -> Profile:
        """The profile of the trained model on held-out data."""
        from headwise.profile.files import load

        return load(self.profile_file)

    def start_profile(self) -> Profile:
        """The profile of the untrained model on the same data."""
        from headwise.profile.files import load

        return load(self.start_file)

    def error(self) -> str | None:
        """The traceback, if the run failed."""
        return self.error_file.read_text("utf-8") if self.error_file.is_file() else None


def log_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a log; what is no whole line is left out."""
    if not path.is_file():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            return
        try:
            one = json.loads(line)
        except ValueError:
            return
        yield one


def read_json(path: Path) -> Any:
    """A JSON file.

    Raises:
        InputError: It cannot be read.
        FileFormatError: It is damaged.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise FileFormatError(f"{path}: is damaged: {error}") from None
