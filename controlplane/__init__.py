"""The control plane: who holds what, what it is worth, and what the switch should do.

`core` decides and is pure: time is passed in, effects are returned. `daemon`, `rpc` and `p4runtime` are the shells that
own clocks and sockets.
"""
