"""The memory of a step."""

from __future__ import annotations

import torch

from headwise.studies.memory import peak_resident, step_bytes


def test_what_lives_at_once_is_counted() -> None:
    x = torch.ones(1000)

    def kept() -> None:
        y = x * 2  # 4000 bytes
        z = y + 1  # and 4000 more
        z.add_(y)  # in place: nothing
        z.view(10, 100)  # the same memory

    assert step_bytes(kept) == 8000

    def dropped() -> None:
        y = x * 2
        del y
        y = x * 3
        del y

    assert step_bytes(dropped) == 4000


def test_what_backward_needs_is_counted() -> None:
    w = torch.ones(1000, requires_grad=True)

    def step() -> None:
        y = (w * 2).sin()  # sin keeps its input: 4000 and 4000
        y.sum().backward()
        w.grad = None

    assert 8000 + 4 <= step_bytes(step) <= 20000
    assert step_bytes(step) == step_bytes(step)


def test_the_process_takes_memory() -> None:
    peak = peak_resident()
    assert peak is None or 50e6 < peak < 50e9
