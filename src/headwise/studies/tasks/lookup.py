"""Lookup: each query asks for several facts that were given before it, and must keep them apart.

A sequence is a number of facts and then some queries. A fact is one position that bears a key and a value (the sum of
their embeddings); every key occurs once. A query is one position that names m keys in order (the sum of m embeddings,
one table for each place in the order), and must answer with their m values in the same order, place by place. How many
facts there are changes from batch to batch.

**Why one head cannot suffice** (one layer, no feed-forward network: the defaults). The head gives the query
`o = sum_j p_j f(k_j, x_j)`, a single average, where f is what it makes of the fact with key k_j and value x_j, and p_j
depends on the query and on the keys, not on the values. Place r of the answer is the x with the largest
`<u_r(x), o> + c_r(x)`, with c from the query alone (the last norm only scales all of them). For values x, y and a key k
let

    S_r(k) = <u_r(x), f(k,x)> - <u_r(y), f(k,x)> + <u_r(y), f(k,y)> - <u_r(x), f(k,y)>.

Ask for (k, l) while their values are (x, y), then (y, x), with all other facts the same. If place 1 is right both
times, adding the two inequalities cancels c and leaves `p_k S_1(k) > p_l S_1(l)`. The values (x, x) and (y, y) give
`p_k S_1(k) + p_l S_1(l) > 0`, so `S_1(k) > 0`. The query (l, k), with weights p', gives `p'_l S_1(l) > p'_k S_1(k)`,
so S_1(l) is positive too, and together `p_k p'_l > p_l p'_k`. Place 2 gives in the same way `p_l p'_k > p_k p'_l`: a
contradiction. So one head answers some query wrongly, however wide it is. (A head that gets one of two places right
and guesses the other has accuracy 1 / V, and (1 + 1 / V) / 2 place by place; training comes to about that.) Two heads
suffice: head r attends to the r-th key asked for, and W^O keeps their values in different subspaces;
tests/studies/tasks/test_lookup.py builds such a model by hand.

With several layers, or a feed-forward network (`--layers`, `--d-ff`), the argument no longer holds: each layer can
fetch one fact, and a network can take apart a sum of unequal parts. One head then learns the task (measured: two
layers, or a hidden width of 256).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.errors import InputError
from headwise.studies.tasks.protocol import Architecture, Batch, Defaults, Settings, Task

MEASURED = 4
"""Held-out batches on which heads are measured."""


class Lookup(Task):
    """Facts, then queries for two or more of them."""

    name, score_name = "lookup", "accuracy"
    defaults = Defaults(
        d_model=64, num_layers=1, d_ff=0, steps=3000, batch=32, length=24, learning_rate=3e-3, evaluate_every=300
    )
    quick = Defaults(
        heads=(1, 2, 4), seeds=1, d_model=32, num_layers=1, d_ff=0, steps=400, batch=32, length=16, learning_rate=6e-3,
        warmup=30, evaluate_every=100,
    )  # fmt: skip
    options = {"keys": 16, "values": 8, "asked": 2, "queries": 8, "held_out": 16}  # noqa: RUF012 - a constant of the class

    def __init__(self, settings: Settings) -> None:
        """See `Task`.

        Raises:
            InputError: An option out of its range, a length in which no facts have room, or files.
        """
        super().__init__(settings)
        o = {name: int(settings.options.get(name, default)) for name, default in self.options.items()}
        self.keys, self.values, self.asked, self.queries = o["keys"], o["values"], o["asked"], o["queries"]
        self.batches = o["held_out"]
        if settings.data:
            raise InputError("the task lookup makes its own data; leave out --data")
        if self.asked < 2 or self.values < 2 or min(self.queries, self.batches) < 1 or self.keys < self.asked:
            raise InputError(
                f"the task lookup: expected asked >= 2, values >= 2, queries and held_out >= 1, and keys >= asked; "
                f"got {o}"
            )
        self.most = min(self.keys, settings.length - self.queries)
        if self.most < self.asked:
            raise InputError(
                f"--length {settings.length}: the task lookup needs room for {self.queries} queries and at least "
                f"{self.asked} facts: {self.queries + self.asked} positions or more"
            )

    def architecture(self) -> Architecture:
        """A decoder whose positions answer with `asked` values."""
        vocab = self.keys + self.values + self.asked * self.keys + 1
        return Architecture("decoder", self.settings.length, vocab=vocab, outputs=self.asked * self.values)

    def batch(self, seed: int, step: int) -> Batch:
        """Sequences with one number of facts, from `asked` to as many as there is room for."""
        rng = self.generator("lookup", seed, step)
        facts = int(torch.randint(self.asked, self.most + 1, (1,), generator=rng))
        return self.drawn(facts, self.settings.batch, rng)

    def held_out(self) -> Sequence[Batch]:
        """Batches with numbers of facts spread evenly over all that occur."""
        return self._held_out

    @cached_property
    def _held_out(self) -> list[Batch]:
        span = self.most - self.asked + 1
        counts = [self.asked + number * span // self.batches for number in range(self.batches)]
        return [
            self.drawn(facts, self.settings.batch, self.generator("lookup", "held out", number))
            for number, facts in enumerate(counts)
        ]

    def measured(self) -> Sequence[Batch]:
        """At most four or so of them, from few facts to many."""
        batches = self.held_out()
        return batches[:: max(1, len(batches) // MEASURED)]

    def drawn(self, facts: int, batch: int, rng: torch.Generator) -> Batch:
        """Random facts and queries: ids `[B, facts + queries, asked]`, targets `[B, facts + queries, asked]`."""
        keys = torch.rand(batch, self.keys, generator=rng).argsort(1)[:, :facts]  # [B, facts]
        values = torch.randint(self.values, (batch, facts), generator=rng)
        which = torch.rand(batch, self.queries, facts, generator=rng).argsort(2)[:, :, : self.asked]
        shape = (batch, self.queries, self.asked)
        asked = keys.gather(1, which.flatten(1)).view(shape)
        answers = values.gather(1, which.flatten(1)).view(shape)
        return self.batch_of(keys, values, asked, answers)

    def batch_of(self, keys: Tensor, values: Tensor, asked: Tensor, answers: Tensor) -> Batch:
        """The batch of these facts `[B, facts]` and queries `[B, queries, asked]`, of which each has its answers."""
        nothing = self.keys + self.values + self.asked * self.keys  # what stands in a fact's third place and beyond
        facts = torch.full((*keys.shape, self.asked), nothing)
        facts[..., 0] = keys
        facts[..., 1] = self.keys + values
        places = self.keys + self.values + self.keys * torch.arange(self.asked)
        ids = torch.cat((facts, asked + places), 1)
        targets = torch.cat((torch.full((*keys.shape, self.asked), -100), answers), 1)
        return Batch({"input_ids": ids}, targets)

    def answers(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits `[B, N, asked, values]`."""
        logits: Tensor = model(**batch.inputs)
        answers: Tensor = logits.unflatten(-1, (self.asked, self.values))
        return answers

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy of every place of every answer."""
        return F.cross_entropy(self.answers(model, batch).flatten(0, 2), batch.targets.flatten())

    def score(self, model: nn.Module, *, final: bool) -> dict[str, float]:
        """`accuracy`: answers that are right in every place; `place_accuracy`: places that are right."""
        whole = places = total = 0
        for batch in self.held_out():
            right = (self.answers(model, batch).argmax(-1) == batch.targets)[:, -self.queries :]
            whole += int(right.all(-1).sum())
            places += int(right.sum())
            total += right.shape[0] * right.shape[1]
        return {"accuracy": whole / total, "place_accuracy": places / (total * self.asked)}

    def tokens(self) -> list[list[str]]:
        """Facts as `k3=5`, queries as `k3,k7?`."""
        first = self.held_out()[0].inputs["input_ids"].tolist()
        base = self.keys + self.values
        return [
            [
                f"k{ids[0]}={ids[1] - self.keys}"
                if ids[0] < self.keys
                else ",".join(f"k{(one - base) % self.keys}" for one in ids) + "?"
                for ids in sequence
            ]
            for sequence in first
        ]
