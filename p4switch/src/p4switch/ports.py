"""Port specifications as the command line and the admin socket write them. Pure.

1@eth1                                a Linux interface (AF_PACKET)
2@udp:127.0.0.1:5001,127.0.0.1:5002   datagrams: local address, peer (without peer: who sends first)
3@unix:/run/in.sock,/run/out.sock     UNIX datagrams: own path, peer's path
4@memory                              frames come and go through the Python API

3:loss=0.01,rate=100mbit,seed=7       faults and shaping of port 3
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from p4switch.errors import SwitchError
from p4switch.values import PRIORITIES_MAX, QUEUE_PACKETS_MAX

PORT_NUMBER_MAX = 510
"""v1model has 9-bit ports; 511 drops."""

PORT_OPTIONS = (
    *("loss", "duplicate", "reorder", "corrupt", "delay", "jitter"),
    *("rate", "burst", "queue", "depth", "priorities", "seed", "direction"),
)

_RATE_UNITS = {"": 1, "bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20}
_TIME_UNITS_US = {"": 1, "us": 1, "ms": 1000, "s": 1_000_000}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


@dataclass(frozen=True, slots=True)
class Interface:
    """A Linux network interface."""

    name: str


@dataclass(frozen=True, slots=True)
class UdpSocket:
    """Datagrams over UDP; `peer` None: whoever sends first."""

    local: tuple[str, int]
    peer: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """Datagrams over a UNIX socket."""

    local: Path
    peer: Path


@dataclass(frozen=True, slots=True)
class Memory:
    """No device: frames are injected and collected by the process."""


Medium: TypeAlias = Interface | UdpSocket | UnixSocket | Memory


@dataclass(frozen=True, slots=True)
class PortSpec:
    """A numbered port and what it is attached to."""

    number: int
    medium: Medium


@dataclass(frozen=True, slots=True)
class PortOptions:
    """Faults, shaping and queue of a port.

    Probabilities 0..1 for each frame; `direction` says which frames ("rx": arriving, "tx": leaving, "both").
    `rate_bits` and `delay_us` 0: none. `queue_packets` and `priorities` are of the queue before egress, which packets
    of programs that look at queues wait in.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    delay_us: int = 0
    jitter_us: int = 0
    seed: int = 1
    rate_bits: int = 0
    burst_bytes: int = 1 << 16
    queue_bytes: int = 1 << 18
    queue_packets: int = 64
    priorities: int = 1
    direction: str = "tx"


def parse_port(text: str) -> PortSpec:
    """`NUMBER@MEDIUM`. Raises SwitchError."""
    number, at, medium = text.partition("@")
    if not at or not number.isdecimal():
        raise SwitchError(f"port {text!r}: write NUMBER@INTERFACE, e.g. 1@eth1")
    if int(number) > PORT_NUMBER_MAX:
        raise SwitchError(f"port {text!r}: numbers go from 0 to {PORT_NUMBER_MAX}")
    return PortSpec(int(number), _parse_medium(medium, text))


def parse_port_options(text: str) -> tuple[int, PortOptions]:
    """`NUMBER:key=value,...`. Raises SwitchError."""
    number, colon, options = text.partition(":")
    if not colon or not number.isdecimal():
        raise SwitchError(f"port option {text!r}: write NUMBER:KEY=VALUE,..., e.g. 3:loss=0.01,rate=100mbit")
    pairs = {}
    for item in filter(None, options.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise SwitchError(f"port option {text!r}: {item!r} has no value")
        pairs[key.strip()] = value.strip()
    return int(number), port_options(pairs)


def port_options(pairs: dict[str, str]) -> PortOptions:
    """Options by name, with units. Raises SwitchError naming the option."""
    values: dict[str, float | int | str] = {}
    for key, text in pairs.items():
        match key:
            case "loss" | "duplicate" | "reorder" | "corrupt":
                values[key] = _probability(key, text)
            case "rate":
                values["rate_bits"] = _quantity(key, text, _RATE_UNITS)
            case "delay" | "jitter":
                values[f"{key}_us"] = _quantity(key, text, _TIME_UNITS_US)
            case "burst" | "queue":
                values[f"{key}_bytes"] = _quantity(key, text, _SIZE_UNITS)
            case "depth":
                values["queue_packets"] = _within(key, text, QUEUE_PACKETS_MAX)
            case "priorities":
                values[key] = _within(key, text, PRIORITIES_MAX)
            case "seed":
                values[key] = _quantity(key, text, {"": 1})
            case "direction" if text in ("rx", "tx", "both"):
                values[key] = text
            case "direction":
                raise SwitchError(f"port option direction={text}: one of rx, tx, both")
            case _:
                raise SwitchError(f"unknown port option {key!r}: known are {', '.join(PORT_OPTIONS)}")
    return PortOptions(**values)  # type: ignore[arg-type]


def parse_rate(what: str, text: str) -> int:
    """Bits a second: `100mbit`. Raises SwitchError naming `what`."""
    return _number_with_unit(what, text, _RATE_UNITS)


def parse_size(what: str, text: str) -> int:
    """Bytes: `256k`. Raises SwitchError naming `what`."""
    return _number_with_unit(what, text, _SIZE_UNITS)


def _parse_medium(medium: str, text: str) -> Medium:
    kind, colon, rest = medium.partition(":")
    if medium == "memory":
        return Memory()
    if colon and kind == "udp":
        local, _, peer = rest.partition(",")
        return UdpSocket(_address(local, text), _address(peer, text) if peer else None)
    if colon and kind == "unix":
        own, comma, peer = rest.partition(",")
        if not comma or not own or not peer:
            raise SwitchError(f"port {text!r}: write unix:OWN_PATH,PEER_PATH")
        return UnixSocket(Path(own), Path(peer))
    if not medium or "/" in medium or len(medium) > 15:
        raise SwitchError(f"port {text!r}: {medium!r} is no interface name")
    return Interface(medium)


def _address(text: str, port: str) -> tuple[str, int]:
    host, colon, number = text.rpartition(":")
    if not colon or not host or not number.isdecimal() or int(number) > 65535:
        raise SwitchError(f"port {port!r}: {text!r} is no HOST:PORT")
    return host, int(number)


def _probability(key: str, text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise SwitchError(f"port option {key}={text}: a probability from 0 to 1")
    return value


def _within(key: str, text: str, most: int) -> int:
    value = _quantity(key, text, {"": 1})
    if not 0 < value <= most:
        raise SwitchError(f"port option {key}={text}: 1 to {most}")
    return value


def _quantity(key: str, text: str, units: dict[str, int]) -> int:
    return _number_with_unit(f"port option {key}", text, units)


def _number_with_unit(what: str, text: str, units: dict[str, int]) -> int:
    match = _QUANTITY.fullmatch(text.lower())
    if match is None or match[2] not in units:
        known = ", ".join(u for u in units if u)
        raise SwitchError(f"{what}={text}: a number" + (f" with unit {known}" if known else ""))
    return round(float(match[1]) * units[match[2]])
