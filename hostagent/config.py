"""The agent's configuration file: YAML, every key known, every mistake one clear line.

Owns names, defaults and ranges. Looks at nothing of the system: whether an interface exists, the transport finds out.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import yaml

from hostagent import limits
from hostagent.disk.config import DiskConfig
from kvproto.session.read_window import READ_WINDOW_MIN_BYTES

T = TypeVar("T")

LOG_LEVELS = ("debug", "info", "warning", "error")
TRANSPORTS = ("auto", "verbs", "sockets", "frames")
HUGE_PAGES = ("auto", "never")
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([KMGT]iB|B)?", re.IGNORECASE)


class ConfigError(Exception):
    """The configuration cannot be used; one line that names file, key and remedy."""


@dataclass(frozen=True, slots=True)
class FramesConfig:
    """A port of an embedded switch reached through UDP, one Ethernet frame a datagram."""

    switch: tuple[str, int]
    local: tuple[str, int]
    mac: bytes
    read_address: str


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The network of the data."""

    transport: str = "auto"
    """One of TRANSPORTS. auto: verbs where the data interface has RDMA, else sockets."""
    interface: str = ""
    address: str = ""
    group: str = "239.75.86.1"
    pool_address: str = "10.75.255.254"
    qkey: int = 0x11111111
    from_switch_dscp: int = 0x2A
    segment_bytes: int = 4096
    cast_port: int = 4791
    control_port: int = 4793
    read_port: int = 4790
    receive_buffer_bytes: int = 8 * limits.MIB
    switch_port: int = 0
    rdma_device: str = ""
    """Only this RDMA device; empty: the one with the address."""
    rdma_read_window_bytes: int = limits.VERBS_READ_WINDOW_BYTES
    """What may be in flight of RDMA READs from one peer, at most: it follows the delay (`ReadWindow`)."""
    frames: FramesConfig | None = None


@dataclass(frozen=True, slots=True)
class PoolConfig:
    size_bytes: int = 256 * limits.MIB
    prefault: bool = True
    huge_pages: str = "auto"


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """All of it, checked."""

    node: str
    data: DataConfig
    pool: PoolConfig
    controllers: tuple[str, ...] = ()
    """host:port of the controller and of those on standby; empty: none, local chunks only."""
    api_socket: str = "/run/kvcast/agent.sock"
    http: tuple[str, int] = ("127.0.0.1", 9475)
    ready_file: str = ""
    log_level: str = "info"
    disk: DiskConfig | None = None
    """None: no disk tier."""
    gate_floor_bytes_per_s: float = field(default=50e6)
    """Rate that a fetch is expected to have before anything was measured."""


def load(path: str) -> AgentConfig:
    """Read and check a file. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"cannot read {path}: {reason}") from error
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        at = f" line {where.line + 1}" if where is not None else ""
        raise ConfigError(f"{path}{at}: not YAML: {getattr(error, 'problem', None) or 'cannot be parsed'}") from error
    try:
        return parse(tree if tree is not None else {})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(tree: object) -> AgentConfig:
    """Check a parsed file. Raises ConfigError naming the key."""
    root = _Section("", tree)
    controller = root.section("controller")
    api = root.section("api")
    http = root.section("http")
    gate = root.section("gate")
    config = AgentConfig(
        node=root.take("node", _name, socket.gethostname()),
        data=_data(root.section("data")),
        pool=_pool(root.section("pool")),
        controllers=controller.take("address", _controllers, ()),
        api_socket=api.take("socket", _socket_path, "/run/kvcast/agent.sock"),
        http=(http.take("address", _ipv4, "127.0.0.1"), http.take("port", _port, 9475)),
        ready_file=root.take("ready_file", _text, ""),
        log_level=root.take("log_level", _one_of(LOG_LEVELS), "info"),
        disk=_disk(root.section("disk")),
        gate_floor_bytes_per_s=float(gate.take("floor_bytes_per_s", _size, 50_000_000)),
    )
    for section in (root, controller, api, http, gate):
        section.finish()
    return config


def _data(section: _Section) -> DataConfig:
    default = DataConfig()
    transport = section.take("transport", _one_of(TRANSPORTS), default.transport)
    frames_section = section.section("frames")
    frames = None
    if transport == "frames":
        frames = FramesConfig(
            switch=frames_section.need("switch", _endpoint),
            local=frames_section.need("local", _endpoint),
            mac=frames_section.need("mac", _mac),
            read_address=frames_section.take("read_address", _ipv4, "127.0.0.1"),
        )
        frames_section.finish()
    config = DataConfig(
        transport=transport,
        interface=section.take("interface", _text, default.interface),
        address=section.take("address", _ipv4, default.address),
        group=section.take("group", _multicast, default.group),
        pool_address=section.take("pool_address", _ipv4, default.pool_address),
        qkey=section.take("qkey", _number(0, 0xFFFF_FFFF), default.qkey),
        from_switch_dscp=section.take("from_switch_dscp", _number(0, 63), default.from_switch_dscp),
        segment_bytes=section.take("segment_bytes", _segment_bytes, default.segment_bytes),
        cast_port=section.take("cast_port", _number(1, 65535), default.cast_port),
        control_port=section.take("control_port", _number(1, 65535), default.control_port),
        read_port=section.take("read_port", _port, default.read_port),
        receive_buffer_bytes=section.take("receive_buffer", _size, default.receive_buffer_bytes),
        switch_port=section.take("switch_port", _number(0, 511), default.switch_port),
        rdma_device=section.take("rdma_device", _text, default.rdma_device),
        rdma_read_window_bytes=section.take("rdma_read_window", _read_window, default.rdma_read_window_bytes),
        frames=frames,
    )
    section.finish()
    if not config.address and (transport == "frames" or not config.interface):
        raise ConfigError("data.address is missing: give the node's address on the data network, or data.interface")
    return config


def _pool(section: _Section) -> PoolConfig:
    size_bytes = section.take("size", _size, PoolConfig().size_bytes)
    if not limits.POOL_BYTES_MIN <= size_bytes <= limits.POOL_BYTES_MAX:
        raise ConfigError(f"pool.size is {size_bytes} bytes; at least 1MiB and at most 16TiB make a pool")
    if size_bytes % limits.EXTENT_ALIGN_BYTES:
        raise ConfigError(f"pool.size is {size_bytes} bytes; it must be a multiple of {limits.EXTENT_ALIGN_BYTES}")
    pool = PoolConfig(
        size_bytes, section.take("prefault", _flag, True), section.take("huge_pages", _one_of(HUGE_PAGES), "auto")
    )
    section.finish()
    return pool


def _disk(section: _Section) -> DiskConfig | None:
    path = section.take("path", _text, "")
    size_bytes = section.take("size", _size, 0)
    default = DiskConfig(path, size_bytes)
    config = DiskConfig(
        path,
        size_bytes,
        direct=section.take("direct", _flag, default.direct),
        read_threads=section.take("read_threads", _number(1, 64), default.read_threads),
        sync_s=section.take("sync_s", _seconds, default.sync_s),
        write_bytes_per_s=section.take("write_rate", _size, default.write_bytes_per_s),
        promote=section.take("promote", _flag, default.promote),
        flush_s=section.take("flush_s", _seconds, default.flush_s),
    )
    section.finish()
    if bool(path) != bool(size_bytes):
        raise ConfigError(
            "disk.path and disk.size go together: give a folder and how much of it may be used, or neither"
        )
    if not path:
        return None
    if not limits.DISK_BYTES_MIN <= size_bytes <= limits.DISK_BYTES_MAX or size_bytes % limits.EXTENT_ALIGN_BYTES:
        raise ConfigError(f"disk.size is {size_bytes} bytes; it must be a multiple of 4096 from 1MiB to 256TiB")
    return config


class _Section:
    """One mapping of the file; remembers which keys were asked for, so that the others can be refused."""

    def __init__(self, path: str, tree: object) -> None:
        if tree is None:
            tree = {}
        if not isinstance(tree, Mapping):
            raise ConfigError(f"{path or 'the file'} must be a mapping of keys to values")
        self._path = path
        self._tree = dict(tree)
        self._known: set[str] = set()

    def take(self, key: str, check: Callable[[object], T], default: T) -> T:
        self._known.add(key)
        if self._tree.get(key) is None:
            return default
        return self._checked(key, check)

    def need(self, key: str, check: Callable[[object], T]) -> T:
        self._known.add(key)
        if self._tree.get(key) is None:
            raise ConfigError(f"{self._name(key)} is missing")
        return self._checked(key, check)

    def section(self, key: str) -> _Section:
        self._known.add(key)
        return _Section(self._name(key), self._tree.get(key))

    def finish(self) -> None:
        for key in self._tree:
            if key not in self._known:
                raise ConfigError(f"unknown key {self._name(str(key))}; known are {', '.join(sorted(self._known))}")

    def _checked(self, key: str, check: Callable[[object], T]) -> T:
        try:
            return check(self._tree[key])
        except ValueError as error:
            raise ConfigError(f"{self._name(key)}: {error}") from None

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


# ---------------------------------------------------------------------- values


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def _name(value: object) -> str:
    text = _text(value) if isinstance(value, str) else str(value)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text):
        raise ValueError(f"{text!r} is not a name of letters, digits, '.', '_' and '-', 64 at most")
    return text


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _number(least: int, most: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{value!r} is not a number from {least} to {most}")
        return value

    return check


_port = _number(0, 65535)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 86_400:
        raise ValueError(f"{value!r} is not a number of seconds from 0 to 86400")
    return float(value)


def _one_of(allowed: tuple[str, ...]) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
        return str(value)

    return check


def _size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{value!r} is not a size like 4096, 64KiB, 8MiB or 2GiB")
    return int(match[1]) * _UNITS[(match[2] or "").lower()]


def _segment_bytes(value: object) -> int:
    size_bytes = _size(value)
    if size_bytes % 4 or not 64 <= size_bytes <= 8192:
        raise ValueError(f"{size_bytes} is not a multiple of 4 from 64 to 8192")
    return size_bytes


def _read_window(value: object) -> int:
    size_bytes = _size(value)
    if size_bytes < READ_WINDOW_MIN_BYTES:
        raise ValueError(f"{size_bytes} is less than the {READ_WINDOW_MIN_BYTES} bytes that reads need in flight")
    return size_bytes


def _ipv4(value: object) -> str:
    try:
        return str(ipaddress.IPv4Address(_text(value)))
    except ipaddress.AddressValueError:
        raise ValueError(f"{value!r} is not an IPv4 address") from None


def _multicast(value: object) -> str:
    address = _ipv4(value)
    if not ipaddress.IPv4Address(address).is_multicast:
        raise ValueError(f"{address} is not a multicast address (224.0.0.0 to 239.255.255.255)")
    return address


def _endpoint(value: object) -> tuple[str, int]:
    host, _, port = _text(value).rpartition(":")
    if not port.isdigit() or not 0 < int(port) <= 65535:
        raise ValueError(f"{value!r} is not ADDRESS:PORT")
    return _ipv4(host), int(port)


def _controllers(value: object) -> tuple[str, ...]:
    """One HOST:PORT or a list of them; "" is none."""
    if value == "":
        return ()
    addresses = tuple(_text(one) for one in value) if isinstance(value, list) else (_text(value),)
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) <= 65535:
            raise ValueError(f"{address!r} is not HOST:PORT")
    if len(set(addresses)) < len(addresses):
        raise ValueError("names an address twice")
    return addresses


def _mac(value: object) -> bytes:
    text = _text(value)
    if not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", text):
        raise ValueError(f"{value!r} is not a MAC address like 02:4b:56:00:00:01")
    return bytes.fromhex(text.replace(":", ""))


def _socket_path(value: object) -> str:
    text = _text(value)
    if not text or len(os.fsencode(text)) > 100:
        raise ValueError(f"{value!r} is not a path of at most 100 bytes (the kernel's limit for sockets is 107)")
    return text
