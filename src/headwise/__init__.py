"""headwise: what every attention head of a PyTorch model does, measured exactly from its own fused attention.

Public names are loaded when they are first used, so that `import headwise` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.call import AttentionCall as AttentionCall
    from headwise.capture import watch as watch
    from headwise.effects.repeating import induction_scores as induction_scores
    from headwise.effects.similar import pattern_similarity as pattern_similarity
    from headwise.equations import attention as attention
    from headwise.kernels import RowStatistics as RowStatistics
    from headwise.kernels import row_statistics as row_statistics
    from headwise.layer import KVCache as KVCache
    from headwise.layer import MultiHeadAttention as MultiHeadAttention
    from headwise.layer import RotaryEmbedding as RotaryEmbedding
    from headwise.measures.registry import measure as measure
    from headwise.measures.registry import unregister as unregister
    from headwise.measures.roles import Thresholds as Thresholds
    from headwise.profile import Profile as Profile
    from headwise.profile.comparing import compare as compare
    from headwise.profile.comparisons import Comparison as Comparison
    from headwise.profile.files import load as load

__version__ = "0.1.0.dev0"

_HOMES = {
    "AttentionCall": "headwise.call",
    "Comparison": "headwise.profile.comparisons",
    "KVCache": "headwise.layer",
    "MultiHeadAttention": "headwise.layer",
    "Profile": "headwise.profile",
    "RotaryEmbedding": "headwise.layer",
    "RowStatistics": "headwise.kernels",
    "Thresholds": "headwise.measures.roles",
    "attention": "headwise.equations",
    "compare": "headwise.profile.comparing",
    "induction_scores": "headwise.effects.repeating",
    "load": "headwise.profile.files",
    "measure": "headwise.measures.registry",
    "pattern_similarity": "headwise.effects.similar",
    "row_statistics": "headwise.kernels",
    "unregister": "headwise.measures.registry",
    "watch": "headwise.capture",
}

__all__ = [  # noqa: RUF022 - the order in which a reader meets them
    "attention", "MultiHeadAttention", "KVCache", "RotaryEmbedding",
    "AttentionCall", "RowStatistics", "row_statistics", "watch", "Profile", "load",
    "compare", "Comparison", "pattern_similarity", "induction_scores", "measure", "unregister", "Thresholds",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headwise' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({"__version__", *__all__})
