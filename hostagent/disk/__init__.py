"""The disk tier of a node: chunks in one slab file and an index of records in another, both checksummed."""
