"""The node's DRAM pool: memory, extents, chunks.

`chunks.ChunkPool` owns reference counts and states, `kvpolicy.value` what chunks are worth and so the order, `extents`
free space; all three are pure. `memory` owns the shared memory itself.
"""
