"""Peak memory of one forward, measured in a fresh process: `python -m tests.peak_memory TOKENS watched|unwatched`."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path


def peak_of_smollm2(tokens: int, watched: bool) -> int:
    """Peak resident bytes of a SmolLM2 forward over `tokens` tokens."""
    command = [sys.executable, "-m", "tests.peak_memory", str(tokens), "watched" if watched else "unwatched"]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout.splitlines()[-1])["peak"])


def main() -> None:
    import torch

    import headwise as hw
    from tests.real_models import load_smollm2

    tokens, mode = int(sys.argv[1]), sys.argv[2]
    model, _ = load_smollm2()
    ids = torch.randint(0, 40000, (1, tokens), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), hw.watch(model) if mode == "watched" else nullcontext() as profile:
        model.model(ids)
    if profile is not None:
        assert set(profile.table()["rows"]) == {tokens}
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
