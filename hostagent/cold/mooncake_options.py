"""The options of a cold store in Mooncake Store (`cold.scheme: mooncake`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from hostagent.cold.cold_options import ColdConfig
from hostagent.limits import EXTENT_ALIGN_BYTES
from kvdaemon import checks
from kvdaemon.errors import CannotRunError

MIB: Final = 1 << 20
BUFFER_BYTES_MAX: Final = 1 << 36
REPLICAS_MAX: Final = 16
DIGITS_MAX: Final = 9


@dataclass(frozen=True, slots=True)
class MooncakeOptions:
    """Each field is an option of the same name."""

    master: str
    """HOST:PORT of mooncake_master."""
    metadata_server: str = "P2PHANDSHAKE"
    """Where Mooncake's clients find each other, as in http://10.0.0.9:8080/metadata; by default they ask each other."""
    address: str = ""
    """Of this node, for the nodes that lend memory; empty: the one that leads to the master."""
    protocol: str = "tcp"
    devices: str = ""
    """Of RDMA, with commas between them; empty: Mooncake chooses."""
    replicas: int = 1
    """Of each object that is stored, on as many nodes."""
    root: str = ""
    """Stands before each name, with a slash between."""
    buffer: int = 64 * MIB
    """Bytes of memory that are registered for what is under way; the largest object fits in."""


def mooncake_options(config: ColdConfig) -> MooncakeOptions:
    """What a configuration says, checked. Raises CannotRunError."""
    if config.secrets:
        raise CannotRunError("cold.secrets: mooncake takes no credentials: leave them out")
    known = [one.name for one in fields(MooncakeOptions)]
    for name in config.options:
        if name not in known:
            raise CannotRunError(f"cold.options: mooncake does not know {name}, but {', '.join(known)}")
    if "master" not in config.options:
        raise CannotRunError("cold.options: mooncake needs master, the HOST:PORT of mooncake_master")
    return MooncakeOptions(**_checked(config.options))


def _checked(options: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in options.items():
        try:
            values[name] = _CHECKS.get(name, checks.text)(text)
        except ValueError as error:
            raise CannotRunError(f"cold.options: mooncake: {name}: {error}") from None
    return values


def _master(text: str) -> str:
    checks.host_port(text, port_min=1)
    return text


def _metadata_server(text: str) -> str:
    if not text:
        raise ValueError("it is empty: leave it out to let Mooncake's clients find each other (P2PHANDSHAKE)")
    return text


def _whole(text: str, most: int) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else 0
    if not 1 <= number <= most:
        raise ValueError(f"{text!r} is not a whole number from 1 to {most}")
    return number


def _buffer(text: str) -> int:
    size_bytes = checks.size(int(text) if text.isascii() and text.isdigit() else text)
    if not MIB <= size_bytes <= BUFFER_BYTES_MAX:
        raise ValueError(f"{text!r} is not a size from 1MiB to 64GiB")
    return -(-size_bytes // EXTENT_ALIGN_BYTES) * EXTENT_ALIGN_BYTES


def _root(text: str) -> str:
    return "".join(f"{part}/" for part in text.split("/") if part)


_CHECKS: Final[Mapping[str, Callable[[str], Any]]] = {
    "master": _master,
    "metadata_server": _metadata_server,
    "protocol": checks.one_of(("tcp", "rdma")),
    "replicas": lambda text: _whole(text, REPLICAS_MAX),
    "buffer": _buffer,
    "root": _root,
}
