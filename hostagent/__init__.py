"""The host agent: one daemon per node, which owns its share of the pool and moves chunks."""
