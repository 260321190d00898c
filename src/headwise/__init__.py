"""headwise: what every attention head of a PyTorch model does, measured exactly from its own fused attention.

Public names are loaded when they are first used, so that `import headwise` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.call import AttentionCall as AttentionCall
    from headwise.capture import watch as watch
    from headwise.equations import attention as attention
    from headwise.kernels import RowStatistics as RowStatistics
    from headwise.kernels import row_statistics as row_statistics
    from headwise.layer import KVCache as KVCache
    from headwise.layer import MultiHeadAttention as MultiHeadAttention
    from headwise.layer import RotaryEmbedding as RotaryEmbedding
    from headwise.profile import Profile as Profile
    from headwise.profile.files import load as load

__version__ = "0.1.0.dev0"

_HOMES = {
    "AttentionCall": "headwise.call",
    "KVCache": "headwise.layer",
    "MultiHeadAttention": "headwise.layer",
    "Profile": "headwise.profile",
    "RotaryEmbedding": "headwise.layer",
    "RowStatistics": "headwise.kernels",
    "attention": "headwise.equations",
    "load": "headwise.profile.files",
    "row_statistics": "headwise.kernels",
    "watch": "headwise.capture",
}

__all__ = [  # noqa: RUF022 - the order in which a reader meets them
    "attention", "MultiHeadAttention", "KVCache", "RotaryEmbedding",
    "AttentionCall", "RowStatistics", "row_statistics", "watch", "Profile", "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headwise' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
