"""Run benchmarks: `python -m benchmarks [CASE ...]`. Results go to benchmarks/results/CASE.json.

A case that is not done yet keeps its points in CASE.part.json; --resume goes on from there, and leaves out cases that
are done, if machine and versions are the same.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.cases import DEFAULT
from headwise.benchmarks import progress, registry, results, runner, tables
from headwise.benchmarks.cases import Case
from headwise.errors import HeadwiseError

RESULTS = Path(__file__).parent / "results"
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(registry.CASES)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {names} (default: {', '.join(DEFAULT)})")
    parser.add_argument("--resume", action="store_true", help="leave out what is done already")
    parsed = parser.parse_args(arguments)
    RESULTS.mkdir(exist_ok=True)
    try:
        for case in registry.find(parsed.cases or DEFAULT):
            if not measure(case, resume=parsed.resume):
                return INTERRUPTED
    except HeadwiseError as error:
        parser.error(str(error))
    return 0


def measure(case: Case, *, resume: bool) -> bool:
    """Run a case and write its result; whether it was run to its end."""
    done, part = RESULTS / f"{case.name}.json", RESULTS / f"{case.name}.part.json"
    there = next((path for path in (part, done) if resume and path.exists()), None)
    with progress.shown(Console(file=sys.stderr)) as bar:
        before = None if there is None else results.load(there)
        outcome = runner.run(case, bar, before=before, keep=lambda result: result.save(part))
    result = outcome.result
    if outcome.interrupted:
        kept = (
            f"{len(result.points)} of {result.planned} points in {part}; --resume goes on" if part.exists() else "none"
        )
        print(f"{case.name}: interrupted; kept {kept}", file=sys.stderr)
        return False
    result.save(done)
    part.unlink(missing_ok=True)
    tables.show(result, Console(highlight=False))
    return True


if __name__ == "__main__":
    sys.exit(main())
