"""Measure what watching costs on this machine: time and memory, beside torch alone and beside other tools.

Without a model it measures one attention call at a few sizes, in about a minute. All runs are on the CPU.

  headwise bench
  headwise bench --model ./my-model --tokens 2048 --out results.json
  headwise bench --from results.json --plot costs.svg
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli.arguments import count
from headwise.errors import InputError
from headwise.models.places import user_path

if TYPE_CHECKING:
    from headwise.benchmarks.cases import Case
    from headwise.benchmarks.results import Result

TOKENS, BATCH = 512, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `headwise bench`."""
    parser.add_argument("--full", action="store_true", help="all lengths, head sizes and masks: many minutes")
    parser.add_argument("--model", metavar="MODEL", help="measure this model: hub name, folder or .gguf file")
    parser.add_argument("--tokens", metavar="N", type=count, help=f"tokens that --model reads (default: {TOKENS})")
    parser.add_argument("--batch", metavar="B", type=count, help=f"sequences that --model reads (default: {BATCH})")
    parser.add_argument("--turns", metavar="N", type=count, help="runs of each variant that are kept")
    parser.add_argument("--out", metavar="RESULTS.json", help="write machine, versions and every sample")
    parser.add_argument("--plot", metavar="PLOT.svg", help="draw it: .svg or .png")
    parser.add_argument(
        "--from", metavar="RESULTS.json", dest="results", nargs="+", help="show or draw results instead of measuring"
    )
    parser.add_argument("--list", action="store_true", help="list benchmarks and variants, and what is not installed")
    parser.add_argument("--force", action="store_true", help="replace outputs that exist")


def run(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked, measure, write, print."""
    from headwise.cli import outputs
    from headwise.cli.failures import INTERRUPTED, say

    _check(arguments)
    if arguments.list:
        _list()
        return 0
    reads = [user_path(name).resolve() for name in arguments.results or ()]
    asked = {"--out": arguments.out, "--plot": arguments.plot}
    planned = outputs.plan(asked, force=arguments.force, reads=reads)
    if arguments.plot is not None:
        _check_plot(arguments.plot)
    if arguments.results is not None:
        from headwise.benchmarks.results import load

        results, interrupted = [load(path) for path in reads], False
    else:
        result, interrupted = _measure(_case(arguments))
        results = [result]
    makers: outputs.Makers = {
        "--out": lambda: results[0].packed(),
        "--plot": lambda: _drawn(results, arguments.plot),
    }
    for output in planned:  # the results first: what was measured must not be lost to a drawing
        outputs.write([output], makers)
    _print(results, [output.path for output in planned])
    if interrupted:
        (result,) = results
        in_part = "" if all(map(result.whole, result.points)) else ", the last in part"
        say(f"interrupted: kept {len(result.points)} of {result.planned} points{in_part}")
        return INTERRUPTED
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together.

    Raises:
        InputError: Which, and what to do.
    """
    given = [name for name in ("full", "model", "tokens", "batch", "turns", "out") if getattr(arguments, name)]
    if arguments.results is not None and given:
        raise InputError(f"--from shows what was measured before; leave out --{given[0]}")
    if arguments.list and (given or arguments.results or arguments.plot):
        raise InputError("--list measures nothing; give it alone")
    if arguments.model is None and (arguments.tokens or arguments.batch):
        raise InputError("--tokens and --batch are what a model reads; give --model too")
    if arguments.model is not None and arguments.full:
        raise InputError("--full is about attention alone; leave out --full or --model")
    if arguments.force and not (arguments.out or arguments.plot):
        raise InputError("--force replaces the files of --out and --plot; give one of them, or leave it out")


def _check_plot(name: str) -> None:
    """Refuse before an hour of measuring what could not be drawn after it."""
    from importlib.util import find_spec

    from headwise.benchmarks.peers import EXTRA
    from headwise.benchmarks.plots import checked_format
    from headwise.errors import MissingPackageError

    checked_format(name)
    if find_spec("matplotlib") is None:
        raise MissingPackageError(f"plots need matplotlib: {EXTRA}")


def _case(arguments: argparse.Namespace) -> Case:
    from headwise.benchmarks import registry
    from headwise.models.places import locate

    if arguments.model is None:
        case = registry.CASES["attention" if arguments.full else "attention-quick"]
    else:
        locate(arguments.model)
        path = user_path(arguments.model)
        case = registry.of_model(
            "model",
            path.resolve().name if path.exists() else arguments.model,
            batch=arguments.batch or BATCH,
            tokens=arguments.tokens or TOKENS,
            source=str(path.resolve()) if path.exists() else arguments.model,
        )
    return replace(case, turns=arguments.turns) if arguments.turns else case


def _measure(case: Case) -> tuple[Result, bool]:
    """Run a case under a bar.

    Raises:
        InputError: What everything is compared with could not run.
        KeyboardInterrupt: Ctrl-C before there was anything to keep.
    """
    from rich.console import Console

    from headwise.benchmarks import progress, runner

    with progress.shown(Console(file=sys.stderr)) as bar:
        outcome = runner.run(case, bar)
    points = outcome.result.points
    if outcome.interrupted and not points:
        raise KeyboardInterrupt("nothing was kept")
    if not any(point.samples for point in points):
        why = points[0].not_run[case.baseline]
        raise InputError(f"{points[0].name} could not be run: {why}")
    return outcome.result, outcome.interrupted


def _drawn(results: list[Result], name: str) -> bytes:
    from headwise.benchmarks import plots

    return plots.draw(results, plots.checked_format(name))


def _print(results: list[Result], written: list[Path]) -> None:
    from rich.console import Console
    from rich.text import Text

    from headwise.benchmarks import tables

    console = Console(highlight=False)
    for result in results:
        tables.show(result, console)
    for path in written:
        console.print(Text(f"Wrote {path}"), soft_wrap=True)


def _list() -> None:
    from rich.console import Console
    from rich.text import Text

    from headwise.benchmarks import peers, registry

    console = Console(highlight=False)
    model = registry.of_model("model", "--model", batch=BATCH, tokens=TOKENS)
    for case in (*registry.CASES.values(), model):
        about = "one forward of the model that --model names" if case is model else case.about
        console.print(Text(f"{case.name}: {about}", style="bold"))
        for variant in case.variants:
            baseline = " (the baseline)" if variant.name == case.baseline else ""
            console.print(Text(f"  {variant.name:<11}{variant.about}{baseline}"), soft_wrap=True)
    for name, peer in peers.PEERS.items():
        version = peers.versions()[name]
        note = f" ({peer.note})" if peer.note else ""
        found = f"{name} {version} is installed" if version else f"{name} is not installed: {peer.install}{note}"
        console.print(Text(found), soft_wrap=True)
    plots = peers.installed("matplotlib")
    console.print(Text(f"matplotlib {plots} is installed" if plots else f"plots need matplotlib: {peers.EXTRA}"))
