"""Measure what each attention head does while a model reads a text: heads, not time.

MODEL is a hub name, a folder as save_pretrained writes it, or a .gguf file. Without one, a small model that is built in
reads (twins:h8; twins:h1 has one head a layer), and needs neither a text nor a network.

  headwise profile
  headwise profile bert-base-uncased --text "The animal did not cross the street."
  headwise profile ./my-model --file notes.txt --out report.html --save run.headwise
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli.arguments import count, size
from headwise.errors import InputError, ModelError
from headwise.models.places import user_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwise.cli.recording import Recording
    from headwise.cli.windows import Windows
    from headwise.models.opening import OpenedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `headwise profile`."""
    from headwise.cli import exports, reading

    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="hub name, folder, .gguf file, twins:h1 or twins:h8 (the default)"
    )
    reading.add_arguments(parser)
    exports.add_arguments(parser, save=True)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    parser.add_argument(
        "--dtype", default="auto", help="auto, float32, bfloat16, float16, float64 (default: as stored)"
    )
    parser.add_argument("--attn-implementation", metavar="NAME", help="sdpa, eager, ... (default: the model's)")
    parser.add_argument("--layers", metavar="LIST", help="only these: 0,3-5, or module paths")
    parser.add_argument(
        "--measures",
        metavar="LIST",
        help="default; all (also what needs the weights: tokens, values, keys, pairs of heads); or names: first,js",
    )
    parser.add_argument("--window", metavar="N", type=count, help="tokens of a window of --file")
    parser.add_argument("--batch-size", metavar="N", type=count, help="windows read at once")
    parser.add_argument(
        "--fuse", action="store_true", help="let one kernel give output and statistics: faster, on CPUs"
    )
    parser.add_argument("--verify", action="store_true", help="compare weights times values with the model's output")
    parser.add_argument(
        "--keep",
        choices=("qk", "qkv"),
        help="keep in the profile what the exact weights of every head are made from; qkv: the values too",
    )
    parser.add_argument("--keep-limit", metavar="SIZE", type=size, help="how much of it, as in 200MB (default: 1GB)")
    parser.add_argument("--trust-remote-code", action="store_true", help="let the model's repository run its own code")
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="open weights that exist only as pickle, which can run code",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked, open the model, record, write, print."""
    from headwise.cli import exports, reading, recording, soundness, tables
    from headwise.cli.failures import INTERRUPTED, nothing_kept, say

    layers = parse_layers(arguments.layers)
    measures = parse_measures(arguments.measures)
    notes = _built_in(arguments)
    if arguments.window is not None and arguments.file is None:
        raise InputError("--window cuts a --file; --text is read whole")
    text = reading.text_of(arguments)
    if arguments.keep_limit is not None and not arguments.keep:
        raise InputError("--keep-limit: how much of what --keep keeps; give that too, or leave it out")
    if arguments.keep and not arguments.save:
        raise InputError("--keep: what is kept goes into the file of --save; give --save FILE.headwise too")
    planned = exports.plan(arguments, reads=_reads(arguments))
    with nothing_kept():
        opened = _open(arguments)
        cut = reading.cut(opened, arguments, text, arguments.window)
        recorded = recording.record(
            opened,
            cut,
            batch_size=arguments.batch_size,
            layers=layers,
            measures=measures,
            fuse=arguments.fuse,
            verify=arguments.verify,
            keep=arguments.keep,
            keep_limit=arguments.keep_limit,
        )
    profile = recorded.profile
    soundness.require_sound(profile, opened, layers)
    profile.info.update(_facts(opened, cut, recorded, reading.source(arguments), notes))
    exports.write(planned, profile)
    if arguments.json == exports.STDOUT:
        sys.stdout.write(exports.as_json(profile))
    else:
        tables.show(profile, planned)
    if recorded.stopped:
        say(f"interrupted: kept {recorded.windows} of {len(cut.ids)} windows")
        return INTERRUPTED
    if profile.passed is False:
        raise ModelError(
            f"not verified: weights x values are up to {profile.verified:.1e} from the model's output, more than "
            f"{profile.bound:.1e}; outputs were written, but do not trust them: please report this model"
        )
    return 0


def parse_layers(value: str | None) -> list[int | str] | None:
    """What `--layers` asks for: numbers, ranges of numbers, module paths.

    Raises:
        InputError: A range runs backwards, or an entry is empty.
    """
    if value is None:
        return None
    layers: list[int | str] = []
    for entry in map(str.strip, value.split(",")):
        if span := re.fullmatch(r"L?(\d{1,5})-L?(\d{1,5})", entry):
            first, last = int(span[1]), int(span[2])
            if first > last:
                raise InputError(f"--layers {value}: the range {entry} runs backwards; write {last}-{first}")
            layers.extend(range(first, last + 1))
        elif number := re.fullmatch(r"L?(\d{1,5})", entry):
            layers.append(int(number[1]))
        elif entry and not re.fullmatch(r"[-\d]+", entry):
            layers.append(entry)
        else:
            raise InputError(
                f"--layers {value!r}: expected numbers, ranges or module paths, as in 0,3-5; got {entry!r}"
            )
    return layers


def parse_measures(value: str | None) -> str | list[str]:
    """What `--measures` asks for, as `headwise.watch` takes it.

    Raises:
        InputError: A measure that does not exist.
    """
    from headwise.measures.catalogue import CATALOGUE

    names = [name for name in map(str.strip, (value or "default").split(",")) if name]
    if names in (["default"], ["all"]):
        return names[0]
    wrong = [name for name in names if name not in CATALOGUE]
    if set(wrong) & {"default", "all"}:
        raise InputError(f"--measures {value}: default and all stand alone")
    if wrong or not names:
        came = ", ".join(wrong) or repr(value)
        raise InputError(f"--measures: expected default, all, or names among {', '.join(CATALOGUE)}; got {came}")
    return names


def _built_in(arguments: argparse.Namespace) -> list[str]:
    """Name the model that is built in where none was given; what the user should know of that.

    Raises:
        InputError: A model was given, and nothing to read; or `--json` took the model for its file.
    """
    from headwise.cli.exports import STDOUT
    from headwise.models.twins import DEFAULT, is_twin

    given = arguments.model
    if given is None:
        if arguments.json not in (None, STDOUT) and not arguments.json.endswith(".json"):
            raise InputError(
                f"--json {arguments.json}: no MODEL was given, and --json takes the next word as its FILE: put it "
                "last; or, for the built-in model, give a file that ends in .json"
            )
        arguments.model = DEFAULT
    no_text = arguments.text is None and arguments.file is None
    if not is_twin(arguments.model):
        if no_text:
            raise InputError(
                f"one of the arguments --text --file is required: what is {given} to read? "
                "(see headwise profile --help)"
            )
        return []
    model = f"{arguments.model}, a small model of bytes that is built into headwise"
    return [f"no MODEL was named, so this is {model}" if given is None else f"this is {model}"]


def _reads(arguments: argparse.Namespace) -> list[Path]:
    names = [arguments.model, *([arguments.file] if arguments.file not in (None, "-") else [])]
    return [path for name in names if (path := user_path(name)).is_file()]


def _open(arguments: argparse.Namespace) -> OpenedModel:
    from rich.console import Console
    from rich.markup import escape

    from headwise.models.opening import open_model

    with Console(file=sys.stderr).status(escape(f"Opening {Path(arguments.model).name} ...")):
        return open_model(
            arguments.model,
            device=arguments.device,
            dtype=arguments.dtype,
            attn_implementation=arguments.attn_implementation,
            trust_remote_code=arguments.trust_remote_code,
            allow_pickle=arguments.allow_pickle,
        )


def _shown(name: str) -> str:
    """A name to show to others: of a path only its end, not the folders of whoever ran this."""
    path = user_path(name)
    return "/".join(path.resolve().parts[-2:] if path.is_dir() else path.parts[-1:]) if path.exists() else name


def _facts(
    opened: OpenedModel, cut: Windows, recorded: Recording, source: str, notes: Sequence[str]
) -> dict[str, str | int | float]:
    """What a page and a table say about the run."""
    notes = [*notes, *opened.notes]
    if cut.why:
        notes.append(f"windows have {cut.why}")
    if opened.kind == "encoder-decoder":
        notes.append("the decoder read the same text, one token later")
    if recorded.stopped:
        notes.append(f"interrupted: {recorded.windows} of {len(cut.ids)} windows were read")
    return {
        "model": _shown(opened.name),
        "kind": opened.kind,
        "dtype": opened.dtype,
        "device": str(opened.device),
        "attention": str(getattr(getattr(opened.model, "config", None), "_attn_implementation", None) or ""),
        "source": _shown(source),
        "windows": recorded.windows,
        "window": cut.length,
        "tokens": recorded.tokens,
        "sequences": recorded.windows,
        "notes": "; ".join(notes),
    }
