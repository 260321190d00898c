"""The watch: a context manager in which every attention call of a model is measured."""

from __future__ import annotations

import platform
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from headwise.call import AttentionCall
from headwise.capture.compiled import REASON, WAY_OUT, CompiledParts, is_compiled_in_place
from headwise.capture.forwards import Forward, Forwards
from headwise.capture.kept import keeper_of
from headwise.capture.labels import Groups, Labels
from headwise.capture.mode import SDPA, Mode, leave
from headwise.capture.modules import Running, plain_name, running_modules
from headwise.capture.names import Names
from headwise.capture.placing import attending, heads_of, place_of, reads_tokens
from headwise.capture.quiet import quiet
from headwise.capture.recorder import Recorder
from headwise.capture.sdpa import UnmeasurableError, place_for_output, read_call
from headwise.capture.sequences import Sequences
from headwise.capture.texts import Texts
from headwise.capture.token_ids import TokenIds
from headwise.capture.unseen import note_what_stayed_silent
from headwise.capture.weighing import Weighing
from headwise.errors import shown
from headwise.kernels import RowStatistics
from headwise.measures.blockwise import registered
from headwise.measures.catalogue import CATALOGUE, select
from headwise.profile import Profile
from headwise.profile.kept import LIMIT


def watch(
    model: nn.Module | None = None,
    *,
    measures: str | list[str] = "default",
    layers: int | str | Sequence[int | str] | None = None,
    fuse: bool = False,
    verify: bool = False,
    tokenizer: Any = None,
    tokens: Sequence[Sequence[str]] | None = None,
    real: Tensor | None = None,
    groups: Groups | None = None,
    seed: int = 0,
    keep: str | None = None,
    keep_limit: int | str = LIMIT,
) -> Watch:
    """Measure what every attention head does while a model runs, from its own fused attention.

        with headwise.watch(model, tokenizer=tokenizer) as profile:
            model(**batch)
        profile.table()

    Each call of `torch.nn.functional.scaled_dot_product_attention` runs untouched; row statistics are computed
    beside it from the same q, k and mask, in memory linear in the number of keys. Outputs, gradients and random
    state are bitwise what they are without watching.

    Args:
        model: Watch only this model, and name layers by its module paths. None: watch whatever runs.
        measures: "default" (every row measure); "all" (also those that need the weights themselves, a few rows at a
            time: of tokens, of what heads write, of what keys receive, and between heads; several times as slow); or
            a list of names of `headwise.measures.catalogue` and of `headwise.measure`.
        layers: Measure only this one, or these: layer numbers, or module paths (a path takes in everything below it).
        fuse: Let one kernel give output and statistics, where it can: without gradients and dropout, on a CPU. Faster
            than watching beside the model's own operation; outputs are then equal to 1e-5, not bit by bit.
        verify: Recompute each output from the exact weights and compare: `profile.verified`. Costs about as much
            again.
        tokenizer: Turns token ids into text for the page (anything with `decode`).
        tokens: The tokens as text, one list per sequence, where there is no tokenizer or there are no ids.
        groups: A label for each sequence, in the order in which they are read, or a list of labels for each, one a
            token of its row (padding too): `profile.table(group=...)` then tells of the rows of one label alone.
        seed: Of the rows that are drawn where heads are compared with each other.
        real: Which tokens are no padding, `[B, L]` (True or 1 = real), where the model's `attention_mask` argument
            does not say it.
        keep: "qk": keep what the weights of every head are made from, so that `profile.weights("L3H5")` gives them
            exactly; "qkv": the values too, for `profile.output`. Copies in the host's memory.
        keep_limit: How much of it to keep: bytes, or a size as in "1GB", "200 MB", "512 kB". Calls that come when it
            is reached are not kept, and `profile.notes` says which.

    Returns:
        A context manager that gives the `Profile`; it can be read while watching. `start()` and `stop()` do the same
        without `with`. Everything is restored on any exit.

    Raises:
        ValueError: An unknown measure or layer, or a `keep` or `keep_limit` that is none.
        TypeError: `model` is no module, or `tokenizer` cannot decode.
    """
    return Watch(model, measures, layers, fuse, verify, tokenizer, tokens, real, groups, seed, keep, keep_limit)


class Watch:
    """What `headwise.watch` returns."""

    def __init__(
        self,
        model: nn.Module | None,
        measures: str | list[str],
        layers: int | str | Sequence[int | str] | None,
        fuse: bool,
        verify: bool,
        tokenizer: Any,
        tokens: Sequence[Sequence[str]] | None,
        real: Tensor | None,
        groups: Groups | None,
        seed: int,
        keep: str | None,
        keep_limit: int | str,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"watch: model must be a torch.nn.Module or None; got {shown(model)}")
        if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
            raise TypeError(f"watch: tokenizer: expected something with decode(ids); got {shown(tokenizer)}")
        layers = [layers] if isinstance(layers, (int, str)) else layers
        selection = select(measures, tuple(registered()))
        self.profile = Profile(selection.columns)
        self.profile.entries = {
            name: one for name, one in registered().items() if name in selection.blockwise and name not in CATALOGUE
        }
        self._model = model
        self._wanted = None if layers is None else tuple(plain_name(x) if isinstance(x, str) else x for x in layers)
        self._real = real
        self._fuse = fuse
        self._names = Names(model)
        self._names.check(self._wanted)
        weighing = Weighing(selection, TokenIds(tokenizer, tokens), seed)
        keeper = keeper_of(self.profile, keep, keep_limit)
        self._recorder = Recorder(self.profile, selection.rows, weighing, verify, Labels(groups), keeper)
        self._texts = Texts(self.profile, tokenizer, tokens)
        self._forwards = Forwards(self._recorder.end_of_forward)
        self._compiled = CompiledParts(model)
        self._sequences = Sequences()
        self._mode: Mode | None = None

    def tap(self, told: Callable[[AttentionCall, RowStatistics, Tensor], None]) -> Self:
        """Let a function see every call that is measured, with its statistics and output; returns this watch.

        The tensors are the model's own: read them, and keep copies of what a cache goes on writing to.
        """
        self._recorder.tap = told
        return self

    def start(self) -> Profile:
        """Begin to watch."""
        if self._mode is not None:
            raise RuntimeError("watch: this watch is running already; call headwise.watch again for another one")
        with torch._C.DisableTorchFunction():
            self.profile.info.update(_facts(self._model))
        self.profile.pending = self._settle
        if self._model is not None and not is_compiled_in_place(self._model):
            self._forwards.attach(self._model)
        self._mode = Mode(self._attend, self._other)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._compiled.step_aside(self._mode, self._forwards.suspended, self._compiled_runs)
        return self.profile

    def stop(self) -> None:
        """End watching: hooks and modes are taken away, and what waits on a device is brought in.

        Raises:
            RuntimeError: The watch is not running, or was started in another thread.
        """
        self._end()
        self._tell_of_what_was_asked()
        note_what_stayed_silent(self.profile, self._model, self._names, self._forwards.number)
        self._tell_of_missing_layers()

    def __enter__(self) -> Profile:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        elif self._mode is not None:
            # The model did not come to its end: nothing can be said of layers that were not heard.
            self._end()

    def _end(self) -> None:
        if self._mode is None:
            raise RuntimeError("watch: this watch is not running")
        mode, self._mode = self._mode, None
        mode.ended = True
        self._compiled.restore()
        self._forwards.detach()
        leave(mode)
        self._settle()
        # The profile may live on: it must not keep the model and our buffers alive.
        self.profile.pending = None
        self._recorder.release()
        for name, why in self._recorder.notes.items():
            self.profile.note(f"{name}: undefined for some calls: {why}")

    def _tell_of_what_was_asked(self) -> None:
        """Note what was asked for and could not be done."""
        profile = self.profile
        if self._fuse and profile.layers and not any(layer.fused for layer in profile.layers):
            profile.note(
                "fuse: no call was fused: that takes torch.no_grad() and no dropout, on a CPU with the native kernel"
            )
        wrong = self._recorder.labels.complaint(profile.num_sequences)
        if wrong:
            profile.note(wrong)
            warnings.warn(f"headwise: {wrong}", stacklevel=4)

    def _tell_of_missing_layers(self) -> None:
        ran = len(self._names.caught_paths)
        missing = [one for one in self._wanted or () if isinstance(one, int) and one >= ran]
        if missing and ran:
            last = f"0 to {ran - 1}" if ran > 1 else "only 0"
            message = f"headwise: there are no layers {missing}: the attention layers that ran are {last}"
            warnings.warn(message, stacklevel=4)

    def _settle(self) -> None:
        with torch._C.DisableTorchFunction():
            self._recorder.settle()

    def _stack(self) -> tuple[Running | None, Running | None, list[Running]] | None:
        """The module that calls attention, the root, and all that run; None if the call is not the model's."""
        stack = running_modules(sys._getframe(2))
        if self._model is not None:
            known = [i for i, running in enumerate(stack) if running.module in self._names]
            if not known:
                return None
            # What stands outside the model (a trainer's wrapper) is not its business.
            whole = [i for i in known if stack[i].module is self._model]
            stack = stack[: (whole or known)[-1] + 1]
        if not stack:
            return None, None, stack
        return stack[0], stack[-1], stack

    def _attend(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Run attention as the model asked for it, and measure it."""
        # A function mode of the caller must not see what we do.
        with torch._C.DisableTorchFunction():
            located = self._locate()
            # A mode that was entered before this one must see the model's own operation.
            alone = not torch._C._len_torch_function_stack()
            if located is not None and self._fuse and alone:
                if (out := self._fused(args, kwargs, located)) is not None:
                    return out
        out = SDPA(*args, **kwargs)
        if located is not None:
            with torch._C.DisableTorchFunction():
                self._beside(args, kwargs, out, located)
        return out

    def _locate(self) -> _Located | None:
        """Where attention is being called; None if that is not to be measured."""
        found = self._stack()
        if found is None:
            return None
        caller, root, stack = found
        forward = self._forwards.at(root)
        number, name = self._names.layer(caller, root, attending(stack))
        index = forward.calls[number]
        forward.calls[number] += 1
        return _Located(forward, stack, number, name, index) if _is_wanted(self._wanted, number, name) else None

    def _fused(self, args: tuple[Any, ...], kwargs: dict[str, Any], located: _Located) -> Tensor | None:
        """The output, from the kernel that measures in the same pass; None where the model's own must run."""
        place = place_for_output(args, kwargs)
        if place is None:
            return None
        try:
            with quiet(place.device):
                call, out, _ = self._read(args, kwargs, place, located)
                # Where reading the call expanded or copied the place, the kernel must not write there.
                whole = tuple(out.shape[:3]) == call.sizes[:3]
                if not whole or out.untyped_storage().data_ptr() != place.untyped_storage().data_ptr():
                    return None
                done = self._recorder.attend(call, out, located.forward, located.caller, located.reads_tokens)
                return place if done else None
        except Exception:  # noqa: BLE001 - whatever it is, it is told when the model's own operation has run
            return None

    def _beside(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor, located: _Located) -> None:
        """Measure a call that has run."""
        try:
            with quiet(out.device):
                call, out, dropout = self._read(args, kwargs, out, located)
                self._recorder.record(
                    call, out, dropout, located.forward, located.caller, of_tokens=located.reads_tokens
                )
        except UnmeasurableError as error:
            self._recorder.unseen(located.name, error.reason, error.way_out)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end somebody's training run; it is told
            reason = f"headwise failed on it ({type(error).__name__}: {error})"
            self._recorder.unseen(located.name, reason, "please report it, with the shapes of query, key and mask")

    def _read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor, located: _Located
    ) -> tuple[AttentionCall, Tensor, float]:
        """The call with its place, its output as `[B, H, N, d_v]`, and its dropout probability."""
        forward, stack = located.forward, located.stack
        caller = attending(stack)
        heads = heads_of(caller)
        call, out, dropout = read_call(args, kwargs, out, heads)
        B, _, N, M = call.sizes
        place = place_of(call, caller, heads, forward.past, located.number, located.name, located.index)
        cross = place.kind == "cross"
        masked = located.reads_tokens
        real = forward.real_rows(located.name, B, N, M, cross, self._real) if masked or self._real is not None else None
        if self._real is not None and real is None and not cross:
            told = tuple(self._real.shape)
            self.profile.note(f"real: of shape {told}, which fits no sequences of {B} x {N} tokens: it was not used")
        if not forward.sequences:
            new = self._sequences.number(forward, B, N)
            self.profile.record_sequences([], new)
            if new:  # texts stand in the order in which sequences are numbered
                self._texts.note(forward, self._real)
        return call.with_(place=place, real=real), out, dropout

    def _compiled_runs(self, module: nn.Module) -> None:
        """A compiled module runs, which the watch must not touch."""
        if self._model is None or module in self._names:
            self._recorder.unseen(self._names.path_of(module), REASON, WAY_OUT)

    def _other(self, reason: str, way_out: str) -> None:
        """Attention that goes another way than scaled_dot_product_attention: noted, not measured."""
        found = self._stack()
        if found is None:
            return
        caller, root, _ = found
        self._recorder.unseen(self._names.path(caller, root), reason, way_out)


@dataclass
class _Located:
    """Where an attention call is made: the forward, the running modules, the layer, and the nth call of it."""

    forward: Forward
    stack: list[Running]
    number: int
    name: str
    index: int

    @cached_property
    def reads_tokens(self) -> bool:
        """Whether its rows can be those of the model's own tokens."""
        return reads_tokens(self.stack)

    @property
    def caller(self) -> nn.Module | None:
        """The module that attends."""
        running = attending(self.stack)
        return None if running is None else running.module


def _is_wanted(wanted: tuple[int | str, ...] | None, number: int, name: str) -> bool:
    return wanted is None or any(
        number == one if isinstance(one, int) else name == one or name.startswith(one + ".") for one in wanted
    )


# Reading it from the package's metadata takes longer than a short forward is watched.
_installed = cache(version)


def _facts(model: nn.Module | None) -> dict[str, str | int | float]:
    facts: dict[str, str | int | float] = {
        "headwise": _installed("headwise"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if (transformers := sys.modules.get("transformers")) is not None:
        facts["transformers"] = str(transformers.__version__)
    if model is not None:
        facts["model"] = type(model).__name__
        parameter = next(model.parameters(), None)
        if parameter is not None:
            facts["dtype"] = str(parameter.dtype).removeprefix("torch.")
            facts["device"] = str(parameter.device)
    return facts
