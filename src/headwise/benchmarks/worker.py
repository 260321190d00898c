"""One sample in a process of its own: reads what to run from standard input as JSON, prints the sample as JSON."""

from __future__ import annotations

import gc
import json
import sys
import warnings

from headwise.benchmarks.cases import load_workload
from headwise.benchmarks.runner import measure, reason


def main() -> None:
    """Run what standard input asks for; the last line printed is the sample, or why there is none."""
    asked = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    try:
        operation = load_workload(asked["workload"])(asked["parameters"])(asked["variant"])
        gc.collect()  # what was made to get ready
        answer: dict[str, object] = dict(measure(operation, asked["repeats"]).as_json())
    except Exception as error:  # noqa: BLE001 (a peer may fail with anything; the reason goes into the result)
        answer = {"not_run": reason(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
