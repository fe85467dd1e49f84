"""The control plane: who holds what, what it is worth, and what the switch should do.

The policies (`directory`, `value`, `admission`, `eviction`, `spill`) and the core are pure: time is passed in, effects
are returned. `daemon`, `rpc` and `switch.p4runtime` are the shells that own clocks and sockets.
"""
