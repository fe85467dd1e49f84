"""LMCache's multi-process server with the pool as its second level: `second_level.KvcastL2`."""
