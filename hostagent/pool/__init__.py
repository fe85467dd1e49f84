"""The node's DRAM pool: memory, extents, chunks, and the order of eviction.

`chunks.ChunkPool` owns reference counts and states, `policy` owns the order, `extents` owns free space; all three are
pure. `memory` owns the shared memory itself.
"""
