"""The disk tier of a node: chunks in one slab file, an index of records beside it, both checksummed."""
