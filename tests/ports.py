"""Ports for tests that start servers of their own."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

_FIRST_PORT, _PORTS = 16_384, 16_384
"""Below those that Linux gives out by itself (ip_local_port_range), so that nobody comes upon one by chance."""
_ports = itertools.cycle(_FIRST_PORT + (os.getpid() * 257 + step) % _PORTS for step in range(_PORTS))


def free_port() -> int:
    """A port that nobody uses at this moment, for UDP or TCP on whatever address; another one with each call, and far
    from those of a process that runs tests beside this one."""
    for port in _ports:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream,
            contextlib.suppress(OSError),
        ):
            datagrams.bind(("", port))
            stream.bind(("", port))
            return port
    raise AssertionError("a cycle has no end")
