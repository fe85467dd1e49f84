"""The way to a switch: P4Runtime by finsy.

`codec`, `replication_engine` and `reports` say how entries look in P4Runtime and back; `codec` and `tofino` join them
for one program each; `p4runtime_target` keeps the session with a switch.
"""
