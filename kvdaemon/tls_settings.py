"""The part of configurations about TLS: `tls` with its three files, and `insecure`.

Whoever speaks beyond this machine does so by TLS, or its configuration says `insecure: true`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvdaemon import checks
from kvdaemon.errors import ConfigError
from kvdaemon.settings import Section


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files: this process's certificate (with those between it and the authority's), its key, and the authorities
    whose certificates it accepts."""

    cert: Path
    key: Path
    ca: Path


def take_tls(section: Section, folder: Path = Path()) -> TlsSettings | None:
    """The section `tls`; relative paths start at `folder`. None: it is not there. Raises ConfigError."""
    cert, key, ca = (section.take(name, _path_in(folder), None) for name in ("cert", "key", "ca"))
    section.done()
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        raise ConfigError("tls.cert, tls.key and tls.ca go together (kvcast pki makes all three)")
    return TlsSettings(cert, key, ca)


def demand_tls(key: str, address: str, tls: TlsSettings | None, *, insecure: bool) -> None:
    """Raise ConfigError where `key` leads to another machine without TLS, unless the operator set `insecure`."""
    if tls is None and not insecure and not is_loopback(address):
        raise ConfigError(
            f"{key}: {address} is not this machine's own: give certificates in tls (kvcast pki makes them),"
            " or write insecure: true"
        )


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT, or unix:PATH, stays on this machine."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _path_in(folder: Path) -> Callable[[object], Path]:
    def check(value: object) -> Path:
        words = checks.text(value)
        if not words:
            raise ValueError("the path is empty")
        return folder / words

    return check
