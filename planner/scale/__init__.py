"""How the cost of managing grows with nodes and chunks, and what splitting into cells would lose."""

from planner.scale.growth import CHUNKS_PER_NODE, STEPS, Growth, grow
from planner.scale.load import Load, load_of
from planner.scale.reuse import CELL_NODES, CELLS, CellReuse, Uses, reuse_in_cells
from planner.scale.unit_costs import UnitCosts, measure

__all__ = [
    "CELLS",
    "CELL_NODES",
    "CHUNKS_PER_NODE",
    "STEPS",
    "CellReuse",
    "Growth",
    "Load",
    "UnitCosts",
    "Uses",
    "grow",
    "load_of",
    "measure",
    "reuse_in_cells",
]
