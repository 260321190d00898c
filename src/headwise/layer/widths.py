"""The widths of a multi-head attention layer, what they cost, and the errors of those that do not fit (eq. 2, 3)."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.errors import shown


@dataclass(frozen=True)
class Widths:
    """The sizes of a layer. FLOPs count a multiply-add as 2, and neither biases nor the softmax.

    Attributes:
        d_model: Width of the tokens that ask, and of the output.
        d_context: Width of the tokens that are read.
        num_heads: Query heads H.
        num_kv_heads: Key-value heads H_kv.
        head_dim: Width of a query and of a key d_k.
        value_head_dim: Width of a value d_v.
    """

    d_model: int
    d_context: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int

    @property
    def q(self) -> int:
        """Width of all queries together, H * d_k."""
        return self.num_heads * self.head_dim

    @property
    def k(self) -> int:
        """Width of all keys together, H_kv * d_k."""
        return self.num_kv_heads * self.head_dim

    @property
    def v(self) -> int:
        """Width of all values together, H_kv * d_v."""
        return self.num_kv_heads * self.value_head_dim

    @property
    def out(self) -> int:
        """Width of Concat(head_1, ..., head_H), H * d_v."""
        return self.num_heads * self.value_head_dim

    @property
    def flops_per_query(self) -> int:
        """FLOPs of projecting a token that asks: its query, and W^O."""
        return 2 * self.d_model * (self.q + self.out)

    @property
    def flops_per_key(self) -> int:
        """FLOPs of projecting a token that is read: its key and value."""
        return 2 * self.d_context * (self.k + self.v)

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of eq. 1 for one query and one key: their score, and adding up the value, in every head."""
        return 2 * self.num_heads * (self.head_dim + self.value_head_dim)


def widths_of(
    d_model: int,
    num_heads: int,
    num_kv_heads: int | None,
    head_dim: int | None,
    value_head_dim: int | None,
    d_context: int | None,
) -> Widths:
    """The widths of a layer, with their defaults: `d_k = d_v = d_model / num_heads` (eq. 3).

    Raises:
        ValueError: Widths that do not divide, with the head counts that would fit; a size below 1.
    """
    sizes = {
        "d_model": d_model, "num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim,
        "value_head_dim": value_head_dim, "d_context": d_context,
    }  # fmt: skip
    for name, size in sizes.items():
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ValueError(f"MultiHeadAttention: {name}: expected an integer of at least 1; got {shown(size)}")
    if head_dim is None:
        if d_model % num_heads:
            raise ValueError(
                f"MultiHeadAttention: d_model = {d_model} does not divide into num_heads = {num_heads} heads; "
                f"head counts that fit: {_divisors(d_model)}; or give head_dim (heads of any width)"
            )
        head_dim = d_model // num_heads
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_heads % num_kv_heads:
        raise ValueError(
            f"MultiHeadAttention: num_heads = {num_heads} query heads cannot share num_kv_heads = {num_kv_heads} "
            f"key-value heads evenly; key-value head counts that fit: {_divisors(num_heads)}"
        )
    return Widths(
        d_model,
        d_model if d_context is None else d_context,
        num_heads,
        num_kv_heads,
        head_dim,
        head_dim if value_head_dim is None else value_head_dim,
    )


def _divisors(number: int) -> str:
    return ", ".join(str(size) for size in range(1, number + 1) if number % size == 0)
