"""The node's DRAM pool: extents, chunks, whose they are and who leaves first. All of it is pure.

`chunks.ChunkPool` owns reference counts and states, `kvpolicy.value` what chunks are worth and so the order, `extents`
free space. The memory itself is `hostagent.memory`.
"""
