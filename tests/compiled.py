"""Whether the native kernel can be tested: not on a machine without a C++ compiler."""

from __future__ import annotations

import pytest

from headwise.kernels.native import library
from headwise.kernels.native.building import BuildError, compiler


def _compiler() -> str:
    try:
        return compiler()[0]
    except BuildError:
        return ""


# Where there is a compiler and yet no library, tests must fail.
HERE = not isinstance(library(), str) or bool(_compiler())
needs_native = pytest.mark.skipif(not HERE, reason="no C++ compiler: the native kernel was not compiled")
