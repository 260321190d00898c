"""Train the built-in twins and write what headwise carries of them.

    python -m scripts.twins corpus --sources SOURCES --work WORK    the text, from the files that scripts.corpus names
    python -m scripts.twins train --work WORK                       both twins: headwise study; run it again to go on
    python -m scripts.twins export --work WORK                      src/headwise/models/twins: weights and card

The twins are the two runs of one study: one seed, so the same initial weights and the same data in the same order, and
the same number of parameters; one head a layer, or eight.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor

from headwise.models.byte_tokens import ByteTokenizer
from headwise.models.transformer import Decoder
from headwise.models.twins import FACTS, NAMES, PREFIX, built_in_text
from headwise.studies import tasks
from headwise.studies.folders import RunFolder, StudyFolder
from headwise.studies.plans import Plan, RunKey
from headwise.studies.tasks.text import TENTH, Text
from headwise.studies.transformer import build
from scripts import corpus

PLACE = Path(__file__).parents[1] / "src" / "headwise" / "models" / "twins"
STORED = torch.float16
SIZES = {
    "heads": "1,8", "regimes": "fixed_width", "seeds": 1, "d-model": 128, "layers": 4, "d-ff": 384, "length": 256,
    "batch": 8, "steps": 3000, "warmup": 150, "learning-rate": 3e-3, "evaluate-every": 500, "threads": 1,
}  # fmt: skip
AT_ONCE = 16
"""Held-out windows that are read at once."""
ALL, EACH = 256, 64
"""Windows that are read of everything held out, and of each language."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("corpus", "train", "export"))
    parser.add_argument("--work", type=Path, required=True, help="folder of the corpus and the study")
    parser.add_argument("--sources", type=Path, help="folder of the files that the corpus is made of")
    given = parser.parse_args(arguments)
    if given.what == "corpus":
        if given.sources is None:
            parser.error("corpus: give --sources, the folder of: " + ", ".join(s.file for s in corpus.SOURCES.values()))
        corpus.build(given.sources, given.work / "corpus")
    elif given.what == "train":
        return subprocess.run(command(given.work), check=False).returncode
    else:
        export(given.work)
    return 0


def command(work: Path) -> list[str]:
    """What trains both, or goes on with it."""
    begin = [sys.executable, "-m", "headwise", "study"]
    if (work / "study" / "plan.json").is_file():
        return [*begin, "--out", str(work / "study"), "--resume", "--jobs", "1"]
    data = [str(work / "corpus" / f"{name}.txt") for name in corpus.PARTS]
    sizes = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]
    return [*begin, "--task", "text", "--data", *data, *sizes, "--jobs", "1", "--out", str(work / "study")]


def export(work: Path) -> None:
    """Write both twins and their card.

    Raises:
        SystemExit: A run is not complete.
    """
    study = StudyFolder(work / "study")
    plan = study.plan()
    plan.check_data()
    twins = {}
    for name in NAMES:
        key = RunKey("fixed_width", int(name.removeprefix(f"{PREFIX}h")), plan.seeds[0])
        run = study.run(key)
        if not run.is_complete:
            raise SystemExit(f"{run.path}: is not complete; run: python -m scripts.twins train --work {work}")
        twins[name] = exported(name, plan, run, study.path)
    about = card(plan, twins)
    (PLACE / "card.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", "utf-8")
    (PLACE / "card.md").write_text(page(about), "utf-8")


def exported(name: str, plan: Plan, run: RunFolder, study: Path) -> dict[str, Any]:
    """Write one twin; what the card says of it."""
    task = tasks.make(plan.task, plan.settings(study))
    architecture, sizes = task.architecture(), plan.sizes(run.key)
    tensors = load(run.model_file.read_bytes())
    stored = {name: tensor.to(STORED).contiguous() for name, tensor in tensors.items()}
    facts = {
        "architecture": {name: value for name, value in asdict(architecture).items() if value is not None},
        "sizes": asdict(sizes), "seed": run.key.seed, "steps": plan.steps,
    }  # fmt: skip
    data = save(stored, metadata={FACTS: json.dumps(facts)})
    file = f"{name.removeprefix(PREFIX)}.safetensors"
    (PLACE / file).write_bytes(data)
    full, kept = Decoder(architecture, sizes), Decoder(architecture, sizes)
    full.load_state_dict(tensors)
    kept.load_state_dict(stored)
    untrained = build(architecture, sizes, run.key.seed)
    held_out = held_out_parts(plan)
    return {
        "file": file,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "heads": sizes.num_heads,
        "d_k": sizes.head_dim,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "bits_per_byte": {
            part: round(bits(kept, content, plan.length, ALL if part == "all" else EACH), 4)
            for part, content in held_out.items()
        },
        "bits_per_byte_of_the_built_in_text": round(bits_of_lines(kept, built_in_text().splitlines()), 4),
        "bits_per_byte_before_rounding": round(bits(full, held_out["all"], plan.length, ALL), 4),
        "bits_per_byte_untrained": round(bits(untrained, held_out["all"], plan.length, ALL), 4),
    }


def held_out_parts(plan: Plan) -> dict[str, Tensor]:
    """What was held out, by language; "all" is everything."""
    parts: dict[str, list[bytes]] = {}
    for file, part in zip(plan.data, corpus.PARTS.values(), strict=True):
        content = Text.read(Path(file.path))
        kept = content[len(content) - len(content) // TENTH :]
        for name in ("all", part.language):
            parts.setdefault(name, []).append(kept)
    return {name: torch.tensor(list(b"".join(pieces))) for name, pieces in parts.items()}


@torch.no_grad()
def bits(model: torch.nn.Module, content: Tensor, length: int, most: int) -> float:
    """Bits per byte, over at most so many windows, evenly spread and without overlap."""
    model.eval()
    room = (len(content) - 1) // length
    count = min(room, most)
    places = torch.tensor([number * room // count * length for number in range(count)])[:, None] + torch.arange(length)
    nats = torch.zeros((), dtype=torch.float64)
    for at in places.split(AT_ONCE):
        logits = model(content[at])
        nats += F.cross_entropy(logits.flatten(0, 1), content[at + 1].flatten(), reduction="sum")
    return float(nats) / places.numel() / math.log(2)


@torch.no_grad()
def bits_of_lines(model: torch.nn.Module, lines: list[str]) -> float:
    """Bits per byte, over all bytes of each line but its first."""
    nats, counted = torch.zeros((), dtype=torch.float64), 0
    for line in lines:
        ids = torch.tensor(ByteTokenizer().encode(line))
        nats += F.cross_entropy(model(ids[None, :-1])[0], ids[1:], reduction="sum")
        counted += len(ids) - 1
    return float(nats) / counted / math.log(2)


def card(plan: Plan, twins: dict[str, Any]) -> dict[str, Any]:
    """All facts, for programs."""
    data = []
    for file, (name, part) in zip(plan.data, corpus.PARTS.items(), strict=True):
        origin = corpus.SOURCES[part.source]
        data.append({
            "part": name, "language": part.language, "bytes": file.size, "sha256": file.sha256, "title": origin.title,
            "source": origin.package or origin.file, "source_sha256": origin.sha256, "licence": origin.licence,
        })  # fmt: skip
    sizes = {name: value for name, value in asdict(plan).items() if name not in ("data", "options", "head_dim")}
    return {
        "command": "headwise study --task text --data " + " ".join(f"{name}.txt" for name in corpus.PARTS) + "".join(
            f" --{name} {value}" for name, value in SIZES.items()
        ),
        "stored": str(STORED).removeprefix("torch."),
        "torch": torch.__version__,
        "plan": sizes,
        "twins": twins,
        "data": data,
    }  # fmt: skip


def page(about: dict[str, Any]) -> str:
    """The card, for people."""
    names = list(about["twins"])
    one = about["twins"][names[0]]
    parts = list(one["bits_per_byte"])
    plan = about["plan"]
    lines = [
        "# The built-in twins", "",
        "Two language models of bytes for demonstrations and tests of headwise: decoders of "
        f"{plan['num_layers']} layers, d_model = {plan['d_model']}, {one['parameters']:,} parameters each. They differ "
        "in one thing: " + " and ".join(
            f"`{name}` cuts each layer into {t['heads']} head{'s' if t['heads'] > 1 else ''} (d_k = {t['d_k']})"
            for name, t in about["twins"].items()
        ) + ". Initial weights, data and their order are the same. They know enough of a language to look at, and not "
        "enough to write it.", "",
        f"Trained for {plan['steps']} steps of {plan['batch']} x {plan['length']} bytes (seed {plan['seeds'][0]}) with "
        "`python -m scripts.twins`, which runs", "",
        "```", about["command"], "```", "",
        f"Weights are stored as {about['stored']} and used as float32.", "",
        "## Held-out bits per byte", "",
        f"From the last tenth of each file, which was not trained on: {EACH} windows of a language, {ALL} of all, "
        "evenly spread. Uniform guesses have 8.", "",
        "| twin | " + " | ".join(parts) + " | all, before rounding | all, untrained | the built-in text |",
        "|---|" + "---:|" * (len(parts) + 3),
        *(
            f"| `{name}` | " + " | ".join(f"{t['bits_per_byte'][part]:.3f}" for part in parts)
            + f" | {t['bits_per_byte_before_rounding']:.3f} | {t['bits_per_byte_untrained']:.3f} | "
            f"{t['bits_per_byte_of_the_built_in_text']:.3f} |"
            for name, t in about["twins"].items()
        ), "",
        "## Data", "",
        "The text itself is not part of headwise. `scripts/corpus.py` makes it from these files:", "",
        "| part | bytes | from | licence of the text |", "|---|---:|---|---|",
        *(f"| {d['part']} | {d['bytes']:,} | {d['title']} ({d['source']}) | {d['licence']} |" for d in about["data"]),
        "", "## Files", "", "| file | bytes | sha256 |", "|---|---:|---|",
        *(f"| {t['file']} | {t['bytes']:,} | `{t['sha256']}` |" for t in about["twins"].values()), "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
