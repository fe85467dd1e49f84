"""The host agent: one daemon a node that owns its share of the pool and moves chunks."""
