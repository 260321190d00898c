"""Compare two saved profiles head by head: which differences are beyond chance, the largest first.

headwise compare before.headwise after.headwise
headwise compare a.headwise b.headwise --measure entropy self_focus --csv differences.csv
headwise compare --twins

--twins compares two small models that are built in, trained alike with one head a layer and with eight.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from headwise.cli.arguments import count
from headwise.errors import InputError
from headwise.models.places import user_path
from headwise.profile.numbers import significant

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd
    from rich.table import Table

    from headwise.cli.outputs import Output
    from headwise.profile import Profile
    from headwise.profile.comparisons import Comparison
    from headwise.profile.profiles import Info

_FACTS = ("model", "dtype", "source", "created")
_SIGNED = ("difference", "size")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `headwise compare`."""
    from headwise.cli import reading
    from headwise.cli.exports import STDOUT

    parser.add_argument("a", metavar="A.headwise", nargs="?", help="what `headwise profile --save` wrote")
    parser.add_argument("b", metavar="B.headwise", nargs="?", help="another one; differences are B - A")
    parser.add_argument(
        "--twins",
        action="store_true",
        help="compare the built-in twins, h = 1 and h = 8, on --text, --file or their own",
    )
    reading.add_arguments(parser)
    parser.add_argument("--measure", metavar="NAME", nargs="+", action="extend", help="only these (default: all)")
    parser.add_argument("--layers", metavar="LIST", help="only these: 0,3-5, or module paths")
    parser.add_argument(
        "--match",
        choices=("place", "layer"),
        help="place: head by head (default); layer: the heads of a layer together, for other head counts (--twins)",
    )
    parser.add_argument("--alpha", metavar="P", type=_share, default=0.05, help="the level of chance (default: 0.05)")
    parser.add_argument(
        "--correction",
        choices=("holm", "fdr"),
        default="holm",
        help="holm: the chance of any false finding (default); fdr: the expected share of false ones",
    )
    parser.add_argument(
        "--correct-over",
        choices=("all", "heads"),
        default="all",
        help="correct for all heads and measures (default), or for the heads within each measure",
    )
    parser.add_argument("--top", metavar="N", type=count, default=20, help="differences to print (default: 20)")
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const=STDOUT,
        help="write everything as JSON; without FILE to stdout, instead of the table",
    )
    parser.add_argument("--csv", metavar="FILE", help="write the table, a row a head and measure")
    parser.add_argument("--force", action="store_true", help="replace outputs that exist")


def run(arguments: argparse.Namespace) -> int:
    """Load both profiles, or make those of the twins; compare them, write what was asked for, print the rest."""
    from headwise import compare, load
    from headwise.cli import outputs, reading
    from headwise.cli.exports import STDOUT
    from headwise.cli.profiling import parse_layers

    paths = _files(arguments)
    layers = parse_layers(arguments.layers)
    text = reading.text_of(arguments)
    files = {"--json": None if arguments.json == STDOUT else arguments.json, "--csv": arguments.csv}
    reads = [*paths, *([user_path(arguments.file)] if arguments.file not in (None, "-") else [])]
    planned = outputs.plan(files, force=arguments.force, reads=reads)
    arguments.match = arguments.match or ("layer" if arguments.twins else "place")
    a, b = _twins(arguments, text) if arguments.twins else map(load, paths)
    try:
        comparison = compare(
            a,
            b,
            match=arguments.match,
            measures=arguments.measure,
            layers=layers,
            correct_over=arguments.correct_over,
        )
    except ValueError as error:
        raise InputError(_as_flags(str(error))) from error
    table = comparison.table(arguments.alpha, arguments.correction)
    makers: outputs.Makers = {
        "--json": lambda: _as_json(comparison, table, arguments).encode(),
        "--csv": lambda: table.to_csv(index=False).encode(),
    }
    outputs.write(planned, makers)
    if arguments.json == STDOUT:
        sys.stdout.write(_as_json(comparison, table, arguments))
    else:
        _show(comparison, table, arguments, planned)
    return 0


def _files(arguments: argparse.Namespace) -> list[Path]:
    """The files to compare; none for the twins.

    Raises:
        InputError: Not two files that exist, or what does not go together.
    """
    given = [name for name in (arguments.a, arguments.b) if name is not None]
    if arguments.twins:
        if given:
            raise InputError(f"--twins compares two models that are built in; leave out {given[0]}, or --twins")
        return []
    if len(given) < 2:
        raise InputError("two profiles are required: A.headwise B.headwise; or --twins (see headwise compare --help)")
    if arguments.text is not None or arguments.file is not None:
        name = "--file" if arguments.text is None else "--text"
        raise InputError(f"{name} is what the twins read: it goes with --twins; profiles have read their text")
    return [_file(name) for name in given]


def _twins(arguments: argparse.Namespace, text: str | None) -> tuple[Profile, Profile]:
    """Profiles of the built-in twins on one text; from here on their names stand where files would."""
    from headwise.cli import reading, recording
    from headwise.models.opening import open_model
    from headwise.models.twins import NAMES

    made = []
    for name in NAMES:
        opened = open_model(name, device="cpu")
        measures = "all" if arguments.measure else "default"
        recorded = recording.record(opened, reading.cut(opened, arguments, text), measures=measures)
        if recorded.stopped:  # two profiles of different texts would say nothing of the twins
            raise KeyboardInterrupt("nothing was kept")
        recorded.profile.info.update({"model": opened.name, "dtype": opened.dtype, "source": reading.source(arguments)})
        made.append(recorded.profile)
    arguments.a, arguments.b = NAMES
    return made[0], made[1]


def _file(name: str) -> Path:
    path = user_path(name)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{name} {what}; give a file that `headwise profile --save` wrote")
    return path


def _as_flags(message: str) -> str:
    """What `compare` says of its arguments, in the words of the command line."""
    message = message.removeprefix("compare: ").replace('match="layer"', "--match layer")
    head, found, rest = message.partition("layers=[")
    if found:
        numbers, _, rest = rest.partition("]")
        return f"{head}--layers {numbers.replace(' ', '')}{rest}"
    for name, flag in (("measures: ", "--measure: "), ("layers: ", "--layers: ")):
        if message.startswith(name):
            return flag + message.removeprefix(name)
    return message


def _as_json(comparison: Comparison, table: pd.DataFrame, arguments: argparse.Namespace) -> str:
    from headwise.profile.writing import json_value

    content = {
        "a": {"file": arguments.a, "sequences": comparison.sequences[0], "info": comparison.infos[0]},
        "b": {"file": arguments.b, "sequences": comparison.sequences[1], "info": comparison.infos[1]},
        "match": comparison.match,
        "alpha": arguments.alpha,
        "correction": arguments.correction,
        "correct_over": comparison.correct_over,
        "pairing": comparison.pairing,
        "notes": comparison.notes,
        "findings": comparison.findings(arguments.alpha, arguments.correction),
        "differences": table.to_dict("records"),
    }
    return json.dumps(json_value(content), indent=1, allow_nan=False) + "\n"


def _show(
    comparison: Comparison, table: pd.DataFrame, arguments: argparse.Namespace, written: Sequence[Output]
) -> None:
    from rich.console import Console
    from rich.padding import Padding

    from headwise.cli.tables import _text, print_whole

    console = Console(highlight=False)
    sides = zip("ab", (arguments.a, arguments.b), comparison.sequences, comparison.infos, strict=True)
    for name, file, sequences, info in sides:
        console.print(_text(f"{name}: {_about(file, sequences, info)}"), soft_wrap=True)
    console.print(_text(f"{comparison.pairing[0].upper()}{comparison.pairing[1:]}."))
    for note in comparison.notes:
        console.print(_text(f"Note: {note}.", style="yellow"))
    console.print()
    first, *findings = comparison.findings(arguments.alpha, arguments.correction)
    console.print(_text(first, style="bold"))
    for finding in findings:
        sentence = _text(f"- {finding}")
        sentence.highlight_regex(r"\bL\d+(H\d+| \w+)\b", style="cyan")
        console.print(Padding(sentence, (0, 0, 0, 1), expand=False))
    console.print()
    print_whole(console, _grid(table.head(arguments.top), arguments.correction, arguments.alpha))
    if len(table) > arguments.top:
        console.print(_text(f"and {len(table) - arguments.top:,} more: --top N, --csv FILE", style="dim"))
    console.print()
    legend = "size: difference in standard deviations of rows; se: clustered by sequence; p: corrected; -: undefined."
    if comparison.match == "layer":
        legend += " mean, least, most: over the heads of a layer; p is asked of means alone."
    console.print(_text(f"b - a. {legend}", style="dim"))
    for output in written:
        console.print(_text(f"Wrote {output.path}"), soft_wrap=True)


def _about(file: str, sequences: int, info: Info) -> str:
    facts = [str(info[name]) for name in _FACTS if info.get(name) and info[name] != file]
    count = f"{sequences:,} sequence{'s' if sequences != 1 else ''}"
    return f"{file} ({', '.join([*facts, count])})"


def _grid(table: pd.DataFrame, correction: str, alpha: float) -> Table:
    from rich import box
    from rich.table import Table

    from headwise.cli.tables import _text

    keys = [name for name in ("kind", "phase", "call") if table[name].nunique() > 1]
    numbers = ("a", "b", "difference", "size", "se")
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("head", *keys, "measure"):
        grid.add_column(name, no_wrap=True)
    for name in (*numbers, "p"):
        grid.add_column(name, justify="right", no_wrap=True)
    for row in table.to_dict("records"):
        p = float(row[f"p_{correction}"])
        cells = [_text(row["label"]), *(_text(row[key]) for key in keys), _text(row["measure"])]
        cells += [_text(_number(float(row[name]), signed=name in _SIGNED)) for name in numbers]
        grid.add_row(*cells, _text("-" if p != p else f"{p:.3g}"), style="" if p <= alpha else "dim")
    return grid


def _number(value: float, *, signed: bool) -> str:
    if value != value:
        return "-"
    return f"{value:+.3g}" if signed else significant(value)


def _share(value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, got {value!r}")
    return share
