"""Whether a request for a page of this machine comes from such a page.

A browser on the machine (or at the end of its tunnel) asks whatever the pages of strangers make it ask. A page of
theirs reads no answer of another origin; but who owns a name can let it lead to 127.0.0.1 (DNS rebinding), and then is
the same origin. The name stands in Host, and no page can write that.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence


def header_fields(head: bytes) -> dict[str, list[str]]:
    """Fields of a request's head, names in lower case, several values of one name in order."""
    found: dict[str, list[str]] = {}
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.decode("latin-1").partition(":")
        if colon:
            found.setdefault(name.strip().lower(), []).append(value.strip())
    return found


def is_own_origin(fields: Mapping[str, Sequence[str]], machine: str) -> bool:
    """Whether Host names an address, localhost or this `machine` and none that somebody else may own, and Origin, where
    there is one, the same. What is no browser may leave both out."""
    hosts, origins = fields.get("host", ()), fields.get("origin", ())
    if len(hosts) > 1 or len(origins) > 1:
        return False
    if hosts and not _is_own(_without_port(hosts[0]), machine):
        return False
    return not origins or (bool(hosts) and origins[0].partition("://")[2] == hosts[0])


def _without_port(host: str) -> str:
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _is_own(host: str, machine: str) -> bool:
    name = host.lower().rstrip(".")
    if name in ("localhost", machine.lower(), machine.lower().partition(".")[0]):
        return True
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
