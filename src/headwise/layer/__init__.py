"""Multi-head attention as a layer, eq. 2 and 3 of Vaswani et al. 2017."""

from headwise.layer.cache import KVCache
from headwise.layer.heads import HeadWeights
from headwise.layer.multi_head import MultiHeadAttention
from headwise.layer.rotary import RotaryEmbedding

__all__ = ["HeadWeights", "KVCache", "MultiHeadAttention", "RotaryEmbedding"]
