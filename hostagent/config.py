"""The agent's configuration file: YAML, every key known, every mistake one clear line.

Owns names, defaults and ranges. Looks at nothing of the system: whether an interface exists, the transport finds out.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

from hostagent import limits
from hostagent.disk.config import DiskConfig
from kvproto.daemon import checks, settings
from kvproto.daemon.errors import ConfigError
from kvproto.daemon.settings import Section
from kvproto.session.read_window import READ_WINDOW_MIN_BYTES

TRANSPORTS = ("auto", "verbs", "sockets", "frames")
HUGE_PAGES = ("auto", "never")


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
    ready_file: Path | None = None
    log_level: str = "info"
    disk: DiskConfig | None = None
    """None: no disk tier."""
    gate_floor_bytes_per_s: float = field(default=50e6)
    """Rate that a fetch is expected to have before anything was measured."""


def load(path: Path) -> AgentConfig:
    """Read and check a file. Raises ConfigError."""
    return settings.load(path, parse)


def parse(values: object) -> AgentConfig:
    """Check the values of a file. Raises ConfigError naming the key."""
    top = Section(values)
    http = top.section("http")
    config = AgentConfig(
        node=top.take("node", _name, socket.gethostname()),
        data=_data(top.section("data")),
        pool=_pool(top.section("pool")),
        controllers=top.section("controller").take("address", _controllers, ()),
        api_socket=top.section("api").take("socket", _socket_path, "/run/kvcast/agent.sock"),
        http=(http.take("address", checks.ipv4, "127.0.0.1"), http.take("port", checks.whole(0, 65535), 9475)),
        ready_file=top.take("ready_file", checks.optional_path, None),
        log_level=top.take("log_level", checks.one_of(checks.LOG_LEVELS), "info"),
        disk=_disk(top.section("disk")),
        gate_floor_bytes_per_s=float(top.section("gate").take("floor_bytes_per_s", checks.size, 50_000_000)),
    )
    top.done()
    return config


def _data(section: Section) -> DataConfig:
    default = DataConfig()
    transport = section.take("transport", checks.one_of(TRANSPORTS), default.transport)
    frames = None
    if transport == "frames":
        frames = _frames(section.section("frames"))
    else:
        section.skip("frames")
    config = DataConfig(
        transport=transport,
        interface=section.take("interface", checks.text, default.interface),
        address=section.take("address", checks.ipv4, default.address),
        group=section.take("group", checks.multicast, default.group),
        pool_address=section.take("pool_address", checks.ipv4, default.pool_address),
        qkey=section.take("qkey", checks.whole(0, 0xFFFF_FFFF), default.qkey),
        from_switch_dscp=section.take("from_switch_dscp", checks.whole(0, 63), default.from_switch_dscp),
        segment_bytes=section.take("segment_bytes", _segment_bytes, default.segment_bytes),
        cast_port=section.take("cast_port", checks.whole(1, 65535), default.cast_port),
        control_port=section.take("control_port", checks.whole(1, 65535), default.control_port),
        read_port=section.take("read_port", checks.whole(0, 65535), default.read_port),
        receive_buffer_bytes=section.take("receive_buffer", checks.size, default.receive_buffer_bytes),
        switch_port=section.take("switch_port", checks.whole(0, 511), default.switch_port),
        rdma_device=section.take("rdma_device", checks.text, default.rdma_device),
        rdma_read_window_bytes=section.take("rdma_read_window", _read_window, default.rdma_read_window_bytes),
        frames=frames,
    )
    section.done()
    if not config.address and (transport == "frames" or not config.interface):
        raise ConfigError("data.address is missing: give the node's address on the data network, or data.interface")
    return config


def _frames(section: Section) -> FramesConfig:
    return FramesConfig(
        switch=section.need("switch", _udp_address),
        local=section.need("local", _udp_address),
        mac=section.need("mac", checks.mac),
        read_address=section.take("read_address", checks.ipv4, "127.0.0.1"),
    )


def _pool(section: Section) -> PoolConfig:
    default = PoolConfig()
    return PoolConfig(
        size_bytes=section.take("size", _pool_bytes, default.size_bytes),
        prefault=section.take("prefault", checks.flag, default.prefault),
        huge_pages=section.take("huge_pages", checks.one_of(HUGE_PAGES), default.huge_pages),
    )


def _disk(section: Section) -> DiskConfig | None:
    path = section.take("path", checks.text, "")
    size_bytes = section.take("size", _disk_bytes, 0)
    default = DiskConfig(path, size_bytes)
    config = DiskConfig(
        path,
        size_bytes,
        direct=section.take("direct", checks.flag, default.direct),
        read_threads=section.take("read_threads", checks.whole(1, 64), default.read_threads),
        sync_s=section.take("sync_s", checks.number(0, 86_400), default.sync_s),
        write_bytes_per_s=section.take("write_rate", checks.size, default.write_bytes_per_s),
        promote=section.take("promote", checks.flag, default.promote),
        flush_s=section.take("flush_s", checks.number(0, 86_400), default.flush_s),
    )
    section.done()
    if bool(path) != bool(size_bytes):
        raise ConfigError(
            "disk.path and disk.size go together: give a folder and how much of it may be used, or neither"
        )
    return config if path else None


# ---------------------------------------------------------------------- values


def _name(value: object) -> str:
    name = str(value)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise ValueError(f"{name!r} is not a name of letters, digits, '.', '_' and '-', 64 at most")
    return name


def _pool_bytes(value: object) -> int:
    size_bytes = checks.size(value)
    if not limits.POOL_BYTES_MIN <= size_bytes <= limits.POOL_BYTES_MAX or size_bytes % limits.EXTENT_ALIGN_BYTES:
        raise ValueError(f"{value!r} is not a multiple of {limits.EXTENT_ALIGN_BYTES} bytes from 1MiB to 16TiB")
    return size_bytes


def _disk_bytes(value: object) -> int:
    size_bytes = checks.size(value)
    if not limits.DISK_BYTES_MIN <= size_bytes <= limits.DISK_BYTES_MAX or size_bytes % limits.EXTENT_ALIGN_BYTES:
        raise ValueError(f"{value!r} is not a multiple of {limits.EXTENT_ALIGN_BYTES} bytes from 1MiB to 256TiB")
    return size_bytes


def _segment_bytes(value: object) -> int:
    size_bytes = checks.size(value)
    if size_bytes % 4 or not 64 <= size_bytes <= 8192:
        raise ValueError(f"{value!r} is not a multiple of 4 bytes from 64 to 8192")
    return size_bytes


def _read_window(value: object) -> int:
    size_bytes = checks.size(value)
    if size_bytes < READ_WINDOW_MIN_BYTES:
        raise ValueError(f"{value!r} is less than the {READ_WINDOW_MIN_BYTES} bytes that reads need in flight")
    return size_bytes


def _udp_address(value: object) -> tuple[str, int]:
    host, port = checks.host_port(value, port_min=1)
    return checks.ipv4(host), port


def _controllers(value: object) -> tuple[str, ...]:
    """One HOST:PORT or a list of them; "" is none."""
    if value == "":
        return ()
    addresses = value if isinstance(value, list) else [value]
    for address in addresses:
        checks.host_port(address, port_min=1)
    if len(set(addresses)) < len(addresses):
        raise ValueError("names an address twice")
    return tuple(addresses)


def _socket_path(value: object) -> str:
    path = checks.text(value)
    if not path or len(os.fsencode(path)) > 100:
        raise ValueError(f"{value!r} is not a path of at most 100 bytes (the kernel's limit for sockets is 107)")
    return path
