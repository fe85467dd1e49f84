"""A node that runs kvcast-agent: buffers, the data interface, memory."""

from __future__ import annotations

import errno
import ipaddress
import socket
from pathlib import Path

from hostagent import limits
from hostagent.config import API_SOCKET, AgentConfig, DataConfig, PoolConfig
from hostagent.memory.available import available_bytes
from hostagent.memory.pool_memory import HUGE_PAGE_BYTES, huge_pages
from hostagent.native.library import datapath
from hostagent.transport.base import TransportError
from hostagent.transport.interfaces import (
    InterfaceFlag,
    addresses,
    interface_address,
    interface_flags,
    ipv4_beside,
    is_own_address,
    mtu_bytes,
    sending_interface,
    usable_addresses,
)
from hostagent.transport.link_rate import UNKNOWN_BIT_S, known_link_rate_bit_s
from hostagent.transport.socket_options import ask_buffer, granted_receive_bytes, granted_send_bytes
from hostagent.transport.sockets import buffers_refused
from kvcast.doctor.agent_place_checks import api_place, controllers, disk, no_access, ports
from kvcast.doctor.cold_checks import cold_store
from kvcast.doctor.findings import Finding, Level, has, judged
from kvcast.doctor.rail_checks import rails
from kvcodec.native import native_loops
from kvcodec.shipped import NotShippedError
from kvproto.ids import parse_address
from kvproto.units import format_bytes, format_rate
from kvproto.wire.data import FILL_OVERHEAD_BYTES, Fabric

"""Linux, include/uapi/linux/sockios.h and if.h."""
_IPV4_CONF = Path("/proc/sys/net/ipv4/conf")


def examine(config: AgentConfig | None) -> list[Finding]:
    """Without a configuration: what an agent with the defaults would want, and nothing about interfaces."""
    data = config.data if config is not None else DataConfig()
    pool = config.pool if config is not None else PoolConfig()
    api_socket = config.api_socket if config is not None else API_SOCKET
    findings = [*_buffers(data), _shipped(), _memory(pool, api_socket)]
    if config is None:
        findings.append(
            Finding("data interface", "not looked at", "the agent's", Level.NOTE, "kvcast doctor --config agent.yaml")
        )
    else:
        findings += [*_data_network(data.each_rail()[0]), *(rails(data) if data.rails else ())]
    if config is not None:
        if not _is_served(api_socket):
            findings += [ports(config), api_place(api_socket)]
        elif _asked(api_socket) == errno.EACCES:
            findings.append(no_access(api_socket))
        if config.disk is not None:
            findings.append(disk(config.disk))
        if config.cold is not None:
            findings.append(cold_store(config.cold))
        findings += controllers(config)
    return findings


def _buffers(data: DataConfig) -> list[Finding]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        receive, send = data.receive_buffer_bytes, limits.CAST_SEND_BUFFER_BYTES
        ask_buffer(probe, receive_bytes=receive, send_bytes=send)
        granted = granted_receive_bytes(probe), granted_send_bytes(probe)
    smaller = " (until then windows are smaller)"
    return [
        judged(f"{name} buffer", format_bytes(here), format_bytes(wanted), here >= wanted, Level.SLOW, remedy)
        for name, here, wanted, remedy in (
            ("receive", granted[0], receive, f"sysctl -w net.core.rmem_max={receive}{smaller}"),
            ("send", granted[1], send, f"sysctl -w net.core.wmem_max={send}"),
        )
    ]


def _shipped() -> Finding:
    """Tried by loading it, as an agent would."""
    name, wanted = "shared objects", "data path and codec, in C"
    try:
        datapath()
        native_loops()
    except NotShippedError as error:
        problem, _, remedy = str(error).partition(": ")
        return Finding(name, problem, wanted, Level.MISSING, remedy)
    return Finding(name, wanted, wanted)


def _memory(pool: PoolConfig, socket_path: str) -> Finding:
    wanted = f"{format_bytes(pool.size_bytes)} for the pool"
    if _is_served(socket_path):
        return Finding("memory", "the agent that runs here has its pool", wanted)
    if pool.huge_pages == "required":
        return _huge_pages(pool, wanted)
    available = available_bytes()
    good = available is None or available >= pool.size_bytes
    found = "unknown" if available is None else f"{format_bytes(available)} available"
    remedy = "a smaller pool.size, or a node (or cgroup) with more memory: the agent does not start with less"
    return judged("memory", found, wanted, good, Level.MISSING, remedy)


def _huge_pages(pool: PoolConfig, wanted: str) -> Finding:
    free, reserved = huge_pages() or (0, 0)
    needed = -(-pool.size_bytes // HUGE_PAGE_BYTES)
    remedy = f"sysctl -w vm.nr_hugepages={reserved - free + needed}, or pool.huge_pages: auto"
    return judged("memory", f"{free} free huge pages of 2 MiB", wanted, free >= needed, Level.MISSING, remedy)


def _is_served(socket_path: str) -> bool:
    """Whether an agent listens here already."""
    return _asked(socket_path) in (0, errno.EACCES)


def _asked(socket_path: str) -> int:
    """Error number of a connection to the engines' socket; 0 for none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(socket_path)


def _data_network(data: DataConfig) -> list[Finding]:
    try:
        address = interface_address(data)
    except TransportError as error:
        return [Finding("data interface", str(error), "an interface with an address", Level.MISSING, "data.interface")]
    findings = [_address(address), _link_rate(data)]
    try:
        interface = sending_interface(address, data.interface)
    except TransportError as error:
        return [*findings, Finding("KV leaves by", str(error), "the data interface", Level.MISSING, "data.interface")]
    if interface is not None:
        findings += [Finding("KV leaves by", interface, interface), _the_address(interface, data, address)]
        findings += _interface(interface, data.segment_bytes)
        findings.append(_accept_local(interface))
    cast_address = ipv4_beside(address, interface)
    if not cast_address:
        remedy = f"an IPv4 address for {interface}, beside {address}; until then all chunks are read"
        return [*findings, Finding("casts", "none: no IPv4", "an IPv4 address for casts", Level.NOTE, remedy)]
    findings.append(_reverse_path(interface, data, cast_address))
    if findings[0].level is Level.OK:
        findings.append(_cast_buffers(data, cast_address))
    return findings


def _the_address(interface: str, data: DataConfig, address: str) -> Finding:
    own = usable_addresses([one for one in addresses() if one.interface == interface])
    is_said = bool(data.address) or len(own) < 2
    remedy = f"data.address says which of {', '.join(own)} peers use; without it {address}, the first"
    return judged(f"address of {interface}", address, "the only one, or chosen", is_said, Level.NOTE, remedy)


def _cast_buffers(data: DataConfig, address: str) -> Finding:
    name, wanted = "cast buffers", "cut into datagrams by the kernel or the NIC (UDP_SEGMENT)"
    try:
        refused = buffers_refused(address, Fabric(parse_address(data.group), segment_bytes=data.segment_bytes))
    except TransportError as error:
        return Finding(name, str(error), wanted, Level.MISSING, "data.address")
    if refused is None:
        return Finding(name, wanted, wanted)
    remedy = (
        "an MTU for whole segments, checksums by the NIC (ethtool -K IFACE tx on), Linux 5.0; until then casts cost"
    )
    return Finding(name, f"refused: {refused.strerror}", wanted, Level.SLOW, f"{remedy} several times as much")


def _address(address: str) -> Finding:
    if is_own_address(address):
        return Finding("data address", address, address)
    remedy = f"ip address add {address}/PREFIX dev IFACE, or correct data.address"
    return Finding("data address", "not of this machine", address, Level.MISSING, remedy)


def _link_rate(data: DataConfig) -> Finding:
    rate_bit_s = known_link_rate_bit_s(data)
    found = "the driver does not say" if rate_bit_s is None else format_rate(rate_bit_s)
    remedy = f"gate.link_rate, or the gate assumes {format_rate(UNKNOWN_BIT_S)} until it has measured fetches"
    return judged("link rate", found, "known", rate_bit_s is not None, Level.NOTE, remedy)


def _interface(name: str, segment_bytes: int) -> list[Finding]:
    flags, mtu = interface_flags(name), mtu_bytes(name)
    needed = segment_bytes + FILL_OVERHEAD_BYTES
    link = f"ip link set {name}"
    return [
        has(f"{name} is up", InterfaceFlag.UP in flags, Level.MISSING, f"{link} up", ("up", "down")),
        has(f"{name} does multicast", InterfaceFlag.MULTICAST in flags, Level.MISSING, f"{link} multicast on"),
        judged(
            f"MTU of {name}",
            str(mtu),
            f"{needed} for segments of {segment_bytes}",
            mtu >= needed,
            Level.MISSING,
            f"{link} mtu 9000 (and the switch's ports), or smaller segments in switch and agents",
        ),
    ]


def _accept_local(interface: str) -> Finding:
    allowed = any(_setting(name, "accept_local") for name in ("all", interface))
    remedy = f"sysctl -w net.ipv4.conf.{interface}.accept_local=1 lets a node read back from the switch what it filled"
    return has("accept_local", allowed, Level.NOTE, remedy, ("1", "0"))


def _reverse_path(interface: str | None, data: DataConfig, address: str) -> Finding:
    """NOTICE comes from the pool address: under strict filtering (RFC 3704) it must be routed to this interface."""
    names = ("all",) if interface is None else ("all", interface)
    mode = max(_setting(name, "rp_filter") for name in names)
    remedy = f"ip route add {data.pool_address} dev IFACE, or sysctl -w net.ipv4.conf.IFACE.rp_filter=2".replace(
        "IFACE", interface or "IFACE"
    )
    routed = _source_towards(data.pool_address) == address
    found = f"{mode}, pool address {'routed to' if routed else 'not behind'} the data interface"
    good = mode != 1 or routed or ipaddress.IPv4Address(address).is_loopback
    return judged("rp_filter", found, "not 1, or the route", good, Level.MISSING, remedy)


def _source_towards(destination: str) -> str | None:
    """Own address that the kernel would use to reach a destination; None without a route. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address


def _setting(interface: str, name: str) -> int:
    return int((_IPV4_CONF / interface / name).read_text())
