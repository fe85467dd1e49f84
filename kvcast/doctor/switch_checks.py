"""A machine that runs kvcast-switch: a compiler, a cache for what it compiles, raw sockets."""

from __future__ import annotations

import socket

from hostagent.config import AgentConfig
from kvcast.doctor.findings import Finding, Level, judged
from p4switch.build import CompilerMissingError, cache_base, find_compiler, is_writable


def examine(config: AgentConfig | None) -> list[Finding]:
    """The agent's configuration does not matter here."""
    return [_compiler(), _cache(), _raw_sockets()]


def _compiler() -> Finding:
    try:
        compiler = find_compiler()
    except CompilerMissingError as error:
        return Finding("C compiler", str(error), "any", Level.MISSING, "apt install gcc libc6-dev")
    return Finding("C compiler", compiler.version.splitlines()[0], "any")


def _cache() -> Finding:
    directory = cache_base()
    remedy = "make it writable, or set XDG_CACHE_HOME; until then every start compiles again"
    return judged("compile cache", str(directory), "writable", is_writable(directory), Level.SLOW, remedy)


def _raw_sockets() -> Finding:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except PermissionError:
        remedy = "run as root or with CAP_NET_RAW; datagram ports (-i 1@udp:...) need nothing"
        return Finding("raw sockets", "not allowed", "for ports on interfaces", Level.NOTE, remedy)
    return Finding("raw sockets", "allowed", "for ports on interfaces")
