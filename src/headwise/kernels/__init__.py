"""Row statistics of an attention call: one protocol, several implementations, one chooser that can say why."""

from headwise.kernels.chooser import KERNELS, Choice, choose, fused_attention, row_statistics
from headwise.kernels.formulas import RowFormula
from headwise.kernels.geometry import Geometry, geometry_of
from headwise.kernels.native.moments import moments
from headwise.kernels.native.tally import Tally, tally
from headwise.kernels.protocol import Kernel, RowStatistics
from headwise.kernels.tiles import Tile, weight_tile, working_dtype

__all__ = [
    "KERNELS",
    "Choice",
    "Geometry",
    "Kernel",
    "RowFormula",
    "RowStatistics",
    "Tally",
    "Tile",
    "choose",
    "fused_attention",
    "geometry_of",
    "moments",
    "row_statistics",
    "tally",
    "weight_tile",
    "working_dtype",
]
