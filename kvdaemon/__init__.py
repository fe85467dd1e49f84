"""What all daemons of kvcast share: configuration file, HTTP, readiness, start and end of the process.

Not pure: the one part of `kvproto` that owns files, sockets and signals. Nothing pure imports it (`make lint`).
"""
