"""What every daemon of kvcast has: configuration file, HTTP, readiness, a process's beginning and end.

Not pure: the one part of `kvproto` that owns files, sockets and signals. Nothing pure imports it (`make lint`).
"""
