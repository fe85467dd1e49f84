"""Memory that a node shares: the pool's own, what keeps it over a restart, and the tables in which engines lease.

`pool_memory` owns the pool's memory file. What lies where in it is `hostagent.pool`, which is pure.
"""
