"""A matrix of weights as a PNG of one pixel a weight: ink on nothing, so that any paper shines through."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEVELS = 32
"""Shades that are told apart; fewer make a smaller file."""


def shades(weights: NDArray[np.float64]) -> NDArray[np.uint8]:
    """How dark each weight is drawn, 0..255: by its square root, so that even a share of 1 / 100 can be seen."""
    import numpy as np

    steps = np.rint(np.sqrt(np.clip(weights, 0, 1)) * (LEVELS - 1))
    return np.asarray(np.rint(steps * (255 / (LEVELS - 1))), np.uint8)


def png(alpha: NDArray[np.uint8]) -> bytes:
    """Black ink of this opacity `[rows, columns]`: grey and alpha of 8 bits (PNG colour type 4)."""
    import numpy as np

    rows, columns = alpha.shape
    pixels = np.zeros((rows, 1 + 2 * columns), np.uint8)  # a filter byte, then grey and alpha in turn
    pixels[:, 2::2] = alpha
    header = struct.pack(">IIBBBBB", columns, rows, 8, 4, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(pixels.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_part(*part) for part in parts)


def _part(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def uri(weights: Any) -> str:
    """Weights `[rows, columns]` as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png(shades(weights))).decode()
