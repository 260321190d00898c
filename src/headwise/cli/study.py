"""Train one small Transformer with 1, 2, 4, ... heads, and record what the heads come to do.

For one seed all numbers of heads start from the same weights and see the same data in the same order, in two regimes:
at fixed width d_k = d_model / h, with a fixed head size d_k stays and parameters grow. Runs are kept in a folder;
--resume goes on where they stopped, also after a crash, and ends as if nothing had happened. --verdict asks the runs of
one or several studies whether more heads do what is said of them, and trains nothing.

Tasks: lookup (fetch two facts and keep them apart), text (next byte; default data: Python's own source), digits
(images), translation (--data SOURCE TARGET, a sentence a line), or a class of yours, mymodule:Task. Sizes that are
not given are the task's own.

  headwise study --quick
  headwise study --task text --data corpus.txt --heads 1,2,4,8 --seeds 3 --out my-study
  headwise study --task translation --data train.en.gz train.de.gz --jobs 2
  headwise study --out my-study --resume
  headwise study --verdict my-study another-study --json verdict.json --page verdict.html
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any, cast

from headwise.errors import InputError
from headwise.models.places import user_path

if TYPE_CHECKING:
    from headwise.studies.folders import StudyFolder
    from headwise.studies.plans import Plan
    from headwise.studies.running import Outcome

TASK = "lookup"
WIDTH = 132
"""Columns that the tables of a verdict take."""
_COUNTS = {
    "seeds": "how many seeds",
    "d_model": "width of a token",
    "layers": "blocks",
    "d_ff": "hidden width of the feed-forward network; 0: none",
    "steps": "training steps of a run",
    "batch": "sequences of a step",
    "length": "the most positions of a sequence",
    "warmup": "steps in which the learning rate rises",
    "evaluate_every": "steps between two evaluations; at most so many are lost by a crash",
    "head_dim": "d_k where the head size is fixed (default: d_model / the most heads)",
    "threads": "threads of a run (default: 1); results depend on it in the last bits",
}
_NUMBERS = {
    "learning_rate": "its peak",
    "dropout": "probability of dropping, while training",
    "weight_decay": "of matrices",
}

_PLANNED = ("task", "data", "option", "heads", "regimes", "quick", "init", *_COUNTS, *_NUMBERS)
"""What the plan of a study says."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `headwise study`."""
    parser.add_argument(
        "--task", metavar="TASK", help=f"lookup, text, digits, translation or mymodule:Task (default: {TASK})"
    )
    # What is not given is as the task has it, so that resuming can tell what was given.
    parser.add_argument(
        "--data", metavar="FILE", nargs="+", help="the files that the task reads; with --resume: where they are now"
    )
    parser.add_argument("--option", metavar="NAME=VALUE", action="append", help="an option of the task")
    parser.add_argument("--heads", metavar="LIST", type=_list, help="numbers of heads (default: 1,2,4,8,16)")
    parser.add_argument("--regimes", metavar="LIST", help="fixed_width,fixed_head_size (default: both)")
    for name, about in _COUNTS.items():
        parser.add_argument("--" + name.replace("_", "-"), metavar="N", type=_whole, help=about)
    for name, about in _NUMBERS.items():
        parser.add_argument("--" + name.replace("_", "-"), metavar="X", type=_number, help=about)
    parser.add_argument(
        "--init", metavar="HOW", help="initial weights of Q, K, V: fused (default), or per_head, a control"
    )
    parser.add_argument("--quick", action="store_true", default=None, help="a demonstration, in about a minute")
    parser.add_argument("--out", metavar="FOLDER", help="where the study is kept (default: study-TASK)")
    parser.add_argument("--resume", action="store_true", help="go on with the study in --out")
    parser.add_argument("--jobs", metavar="N", type=_whole, help="runs at a time (default: one a core)")
    parser.add_argument("--tensorboard", action="store_true", help="write logs for TensorBoard too")
    parser.add_argument(
        "--verdict", metavar="FOLDER", nargs="*", help="say what these studies (default: the one in --out) answer"
    )
    parser.add_argument("--tables", action="store_true", help="print all numbers of the verdict")
    parser.add_argument("--json", metavar="FILE", help="write the verdict, with all its numbers")
    parser.add_argument("--page", metavar="FILE", help="write the verdict as an offline page, with plots and weights")
    parser.add_argument("--force", action="store_true", help="replace the files of --json and --page if they exist")
    parser.add_argument("--lang", choices=("en", "zh"), help="language of the verdict (default: the locale's)")


def run(arguments: argparse.Namespace) -> int:
    """Plan or resume, run, print; or tell the verdict."""
    if arguments.verdict is not None:
        return _judge(arguments)
    for name in ("tables", "json", "page", "force", "lang"):
        if getattr(arguments, name):
            raise InputError(f"--{name}: belongs to --verdict; give that too, or leave it out")
    from rich.console import Console

    from headwise.cli.failures import INTERRUPTED, nothing_kept, say
    from headwise.studies.folders import StudyFolder

    if arguments.jobs is not None and arguments.jobs < 1:
        raise InputError(f"--jobs {arguments.jobs}: expected at least 1")
    if arguments.tensorboard:
        from headwise.studies.boards import require

        require()
    console = Console(file=sys.stderr)
    folder = StudyFolder(_out(arguments))
    again = shlex.join(["headwise", "study", "--out", str(folder.path), "--resume"])
    if arguments.resume:
        plan = _resumed(arguments, folder)
    else:
        with nothing_kept():
            plan = _begun(arguments, folder, console)
    try:
        return _train(arguments, plan, folder, console, again)
    except KeyboardInterrupt:
        say(f"interrupted; go on with: {again}")
        return INTERRUPTED


def _train(arguments: argparse.Namespace, plan: Plan, folder: StudyFolder, console: Any, again: str) -> int:
    """Train what is not complete, print it, and say what is left.

    Raises:
        DiskError: The disk refused.
    """
    from headwise.cli.failures import INTERRUPTED, say
    from headwise.studies import progress, running
    from headwise.studies.durable import DiskError

    jobs = arguments.jobs or max(1, _cores() // plan.threads)
    try:
        with progress.shown(console, plan, len(folder.complete())) as watching:
            outcome = running.run(plan, folder, jobs, watching, tensorboard=arguments.tensorboard)
    except DiskError as error:
        kept = f"{len(folder.complete())} of {len(plan.runs)} runs are complete and kept"
        raise DiskError(f"{error}; {kept}; go on with: {again}") from error
    _print(folder, plan, arguments.quick)
    if outcome.interrupted:
        say(f"interrupted: {_kept(outcome, plan)}; the others go on from their last evaluation with: {again}")
        return INTERRUPTED
    if outcome.failed:
        first = next(iter(outcome.failed))
        say(
            f"{len(outcome.failed)} of {len(plan.runs)} runs failed, the first: {first}: {outcome.failed[first]} "
            f"(see {folder.run(first).error_file}); {_kept(outcome, plan)}; try them again with: {again}"
        )
        return 1
    return 0


def _begun(arguments: argparse.Namespace, folder: StudyFolder, console: Any) -> Plan:
    """The plan of a new study, written into its folder.

    Raises:
        InputError: It cannot be made, or the folder holds something.
    """
    from headwise.studies import running
    from headwise.studies.planning import planned
    from headwise.studies.plans import REGIMES

    names = (*_COUNTS, *_NUMBERS)
    sizes = {{"layers": "num_layers"}.get(name, name): getattr(arguments, name) for name in names}
    plan = planned(
        arguments.task or TASK,
        data=[user_path(name) for name in arguments.data or ()],
        options=_options(arguments.option or ()),
        regimes=REGIMES if arguments.regimes is None else tuple(arguments.regimes.split(",")),
        quick=bool(arguments.quick),
        threads=sizes.pop("threads") or 1,
        init=arguments.init or "fused",
        head_dim=sizes.pop("head_dim"),
        heads=arguments.heads,
        **sizes,
    )
    with console.status("Preparing the data ..."):
        running.begin(plan, folder)
    return plan


def _resumed(arguments: argparse.Namespace, folder: StudyFolder) -> Plan:
    """The plan of a study that goes on.

    Raises:
        InputError: There is none, its data changed, or something was given that the plan says.
    """
    from headwise.studies import tasks

    given = [name for name in _PLANNED if getattr(arguments, name) is not None and name not in ("task", "data")]
    if given:
        raise InputError(
            f"--{given[0].replace('_', '-')}: a study that goes on keeps its plan ({folder.plan_file}); leave it out, "
            "or begin another study in another folder"
        )
    plan = folder.plan()
    if arguments.task is not None and arguments.task != plan.task:
        raise InputError(f"--task {arguments.task}: the study in {folder.path} is of the task {plan.task}")
    if arguments.data is None:
        plan.check_data()
        return plan
    # The files have moved, or the study came from elsewhere.
    kind = tasks.find(plan.task)
    return plan.with_data(kind.files([user_path(name) for name in arguments.data]))


def _judge(arguments: argparse.Namespace) -> int:
    """Tell the verdict of finished runs.

    Raises:
        InputError: There is no study, or something was given that only training needs.
    """
    import json

    from rich.console import Console
    from rich.text import Text

    from headwise.cli import outputs
    from headwise.cli.lesson import default_language
    from headwise.profile.writing import json_value
    from headwise.studies import evidence, telling
    from headwise.studies.page import answering, document, drawing
    from headwise.studies.page.words import texts
    from headwise.studies.verdict import verdict_of

    of_training = [name for name in (*_PLANNED, "jobs") if name != "task" and getattr(arguments, name) is not None]
    of_training += [name for name in ("resume", "tensorboard") if getattr(arguments, name)]
    if of_training:
        raise InputError(f"--{of_training[0].replace('_', '-')}: --verdict reads runs and trains nothing; leave it out")
    if arguments.verdict and (arguments.out is not None or arguments.task is not None):
        raise InputError("--verdict FOLDER: the folders are named there; leave out --out and --task")
    paths = [user_path(name) for name in arguments.verdict] or [_out(arguments)]
    planned = outputs.plan({"--json": arguments.json, "--page": arguments.page}, force=arguments.force)
    if arguments.page is not None:
        drawing.require()
    language = cast(telling.Language, arguments.lang or default_language(os.environ))
    with Console(file=sys.stderr).status("") as status:
        reads = evidence.read(paths, status.update)
        verdict = verdict_of(reads)
        outputs.write(
            planned,
            {
                "--json": lambda: (
                    json.dumps(json_value(verdict.to_json()), indent=1, allow_nan=False) + "\n"
                ).encode(),
                "--page": lambda: document.page(paths, reads, language, status.update).encode(),
            },
        )
    console = Console(highlight=False)
    # A number that is cut off would be another number: lines may be longer than the terminal is wide.
    wide = Console(highlight=False, width=max(console.width, WIDTH))
    words = texts(language)
    said = {
        told.claim: [f"{one.study}{words['colon']}{one.sentence}" for one in told.said]
        for told in answering.first(verdict, {read.numbers.label: read for read in reads}, words)
    }
    for line in telling.lines(verdict, language, said):
        console.print(Text(line), soft_wrap=True)
    if not arguments.tables:
        console.print(Text(telling.more(language)), soft_wrap=True)
    for part in telling.tables(verdict, language) if arguments.tables else ():
        console.print()
        if isinstance(part, str):
            console.print(Text(part), soft_wrap=True)
        else:
            wide.print(part)
    for output in planned:
        if output.flag == "--page":
            console.print(Text(f"Wrote {output.path}"), soft_wrap=True)
    return 0


def _out(arguments: argparse.Namespace) -> Any:
    if arguments.out is not None:
        if not arguments.out:
            raise InputError("--out: expected the name of a folder; got nothing")
        return user_path(arguments.out)
    return user_path(f"study-{(arguments.task or TASK).replace(':', '-')}")


def _print(folder: StudyFolder, plan: Plan, quick: bool | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from headwise.cli.tables import print_whole
    from headwise.studies.summary import table

    console = Console(highlight=False)
    if folder.complete():
        print_whole(console, table(folder))
    if quick:
        seeds = "one seed" if len(plan.seeds) == 1 else f"{len(plan.seeds)} seeds"
        console.print(
            Text(f"Only a demonstration: {seeds} and {plan.steps} steps say nothing about heads in general."),
            soft_wrap=True,
        )
    console.print(Text(f"Kept in {folder.path.resolve()}"), soft_wrap=True)


def _kept(outcome: Outcome, plan: Plan) -> str:
    return f"{len(outcome.complete)} of {len(plan.runs)} runs are complete and kept"


def _options(given: list[str] | tuple[str, ...]) -> dict[str, str]:
    options = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise InputError(f"--option {one}: expected NAME=VALUE")
        options[name] = value
    return options


def _list(value: str) -> tuple[int, ...]:
    return tuple(_whole(one.strip()) for one in value.split(","))


def _whole(value: str) -> int:
    if not value.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {value!r}")
    return int(value)


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {value!r}") from None


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
