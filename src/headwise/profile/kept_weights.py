"""The exact weights of single heads, as methods of a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.profile.kept_reading import Head, Holder, Rows


class ExactWeights:
    """What a profile says of single heads, where `headwise.watch(keep=...)` kept what that takes."""

    def weights(
        self: Holder, head: Head, rows: Rows = None, *, sequence: int = 0, call: int = 0, phase: str | None = None
    ) -> Any:
        """The exact weights of one head in one sequence, recomputed from what `watch(keep="qk")` kept.

        The rows are those of all forwards that read the sequence in this phase, one after the other: in "decode" row i
        is the i-th token that was added to the cache, and keys that were not there yet are 0.

        Args:
            head: "L3H5" or (3, 5).
            rows: A slice, an int or a list of ints; None: all, up to 256 MB.
            sequence: Which one, counted from 0 in the order in which they were read, as in `sequences`.
            call: Which attention call of the module within one forward, as in the table.
            phase: "prefill" or "decode"; None: prefill where there is one.

        Returns:
            A torch.Tensor `[rows, M]`, float32 (float64 of a float64 model), before dropout; 0 at keys that are hidden,
            padding among them. Its attribute `tokens` holds the texts of the M keys ("" where they are padding),
            `query_tokens` those of the rows; where a text is not known, its position.

        Raises:
            ValueError: Nothing was kept, or nothing of this head; it was dropped at `keep_limit`; no such rows.
        """
        from headwise.profile.kept_reading import head_weights

        return head_weights(self, head, rows, sequence, call, phase)

    def map(
        self: Holder,
        head: Head,
        size: int | tuple[int, int] = (64, 64),
        how: str = "mean",
        *,
        sequence: int = 0,
        call: int = 0,
        phase: str | None = None,
    ) -> Any:
        """The weights of one head in one sequence, pooled to a map `[<= size[0], <= size[1]]`, in linear memory.

        Args:
            head: As in `weights`, like all that follow.
            size: The most rows and columns: one number for both, or two.
            how: The "mean" of a bin, or its "max".
            sequence: Which sequence.
            call: Which call.
            phase: Which phase.
        """
        from headwise.profile.kept_reading import head_map

        return head_map(self, head, size, how, sequence, call, phase)

    def output(
        self: Holder, head: Head, rows: Rows = None, *, sequence: int = 0, call: int = 0, phase: str | None = None
    ) -> Any:
        """Weights times values of one head `[rows, d_v]`, where `watch(keep="qkv")` kept the values.

        Args:
            head: As in `weights`, like all that follow.
            rows: Which rows.
            sequence: Which sequence.
            call: Which call.
            phase: Which phase.
        """
        from headwise.profile.kept_reading import head_output

        return head_output(self, head, rows, sequence, call, phase)
