"""A node that runs kvcast-agent: buffers, the data interface, memory; what the agent takes of its machine besides
these: ports, the engines' socket, the disk; whether a controller answers; and the agent's cold store.

Each place is tried as the agent would take it, and given back: of the cold store a small object is put, read, compared
and deleted.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from hostagent import limits
from hostagent.cold.cold_opening import open_store
from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.stores import ColdStoreError
from hostagent.cold.tier import Trial, try_out, within
from hostagent.config import API_SOCKET, AgentConfig, DataConfig, PoolConfig
from hostagent.disk.disk_options import DiskConfig
from hostagent.memory.available import available_bytes
from hostagent.memory.pool_memory import HUGE_PAGE_BYTES, huge_pages
from hostagent.native.library import datapath
from hostagent.transport.base import TransportError
from hostagent.transport.endpoints import endpoint_of, family_of
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
from kvcast.doctor.findings import Finding, Level, has, judged
from kvcast.doctor.rail_checks import rails, registered
from kvclient.attach import who_may
from kvcodec.native import native_loops
from kvcodec.shipped import NotShippedError
from kvdaemon.errors import CannotRunError
from kvdaemon.identity import Role
from kvdaemon.tls import Certificates, TlsError
from kvdaemon.what_answers import what_answers
from kvproto.ids import parse_address
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from kvproto.units import format_bytes, format_rate
from kvproto.wire.data import FILL_OVERHEAD_BYTES, Fabric

TRIAL_BYTES: Final = 64 << 10
_WANTED: Final = "an object put, read and deleted"


def cold_store(config: ColdConfig) -> Finding:
    """Whether the store takes an object and gives it back."""
    try:
        found = asyncio.run(_try_out(config))
    except CannotRunError as error:
        return Finding("cold store", str(error), _WANTED, Level.MISSING, "the section cold of the configuration")
    except ColdStoreError as error:
        remedy = "start the service, or correct cold.options and cold.secrets; the agent runs without it until then"
        return Finding("cold store", f"{config.scheme}: {error}", _WANTED, Level.SLOW, remedy + _permissions(config))
    if isinstance(found, ColdStoreError):
        remedy = "room in the store, and permission to write: until then the agent only reads it"
        words = f"{config.scheme} takes nothing: {found}"
        return Finding("cold store", words, _WANTED, Level.SLOW, remedy + _permissions(config))
    times = f"put {found.put_s * 1e3:.1f} ms, get {found.get_s * 1e3:.1f} ms"
    if found.undeletable:
        words = f"{config.scheme}: {times}; it deletes nothing: {found.undeletable}"
        remedy = "permission to delete, or a rule of the store that deletes old objects"
        return Finding("cold store", words, _WANTED, Level.NOTE, remedy + _permissions(config))
    return Finding("cold store", f"{config.scheme}: {times}", _WANTED)


def _permissions(config: ColdConfig) -> str:
    """What S3 must allow; it says of no request which of these it misses."""
    if config.scheme != "s3":
        return ""
    return "; S3 must allow s3:GetObject, s3:PutObject, s3:DeleteObject on the objects, s3:ListBucket on the bucket"


async def _try_out(config: ColdConfig) -> Trial | ColdStoreError:
    store = open_store(config)
    try:
        return await try_out(store, f"kvcast/doctor-{os.getpid()}", TRIAL_BYTES, partial(within, config.timeout_s))
    finally:
        await store.close()


_ANSWER_S = 3.0


def ports(config: AgentConfig) -> Finding:
    """Whether the agent can have the ports of its configuration. It must not run: it has them itself."""
    taken = []
    for name, kind, address, port in _wanted(config):
        with socket.socket(family_of(address), kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(kind is socket.SOCK_STREAM))
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    continue  # the finding on the address says it
                taken.append(f"{name} {endpoint_of(address, port)}: {error.strerror}")
    remedy = "end what uses them (ss -lnptu shows it), or set other ports in agent.yaml"
    return judged("ports", "; ".join(taken) or "free", "free", not taken, Level.MISSING, remedy)


def _wanted(config: AgentConfig) -> Iterator[tuple[str, socket.SocketKind, str, int]]:
    data = config.data
    try:
        address = interface_address(data)
    except TransportError:
        return
    yield "data.cast_port", socket.SOCK_DGRAM, address, data.cast_port
    yield "data.control_port", socket.SOCK_DGRAM, address, data.control_port
    yield "data.read_port", socket.SOCK_STREAM, address, data.read_port
    yield "http.port", socket.SOCK_STREAM, *config.http


def api_place(path: str) -> Finding:
    """Whether the engines' socket can be made."""
    place = Path(path).absolute()
    folder = next(one for one in place.parents if one.exists())
    wanted = f"{place} can be made"
    remedy = "set api.socket to another path, or run the agent as a user that may write there"
    if place.exists() and not place.is_socket():
        return Finding("api.socket", "a file that is no socket is there", wanted, Level.MISSING, remedy)
    good = folder.is_dir() and os.access(folder, os.W_OK)
    found = str(place) if good else f"{folder}: not writable"
    return judged("api.socket", found, wanted, good, Level.MISSING, remedy)


def no_access(path: str) -> Finding:
    """Somebody has the engines' socket, and this user may not use it."""
    found, _, remedy = who_may(path).partition("; ")
    return Finding("api.socket", found, f"{path} for engines", Level.MISSING, remedy or "a user who may")


def disk(config: DiskConfig) -> Finding:
    """Whether the folder of the disk tier can be written to and has room; what lies there already counts."""
    folder = Path(config.path).absolute()
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    wanted = f"{format_bytes(config.size_bytes)} at {folder}"
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        remedy = "disk.path at a folder that the agent's user may write to"
        return Finding("disk", f"{existing}: not writable", wanted, Level.MISSING, remedy)
    held = sum(file.stat().st_blocks * 512 for file in folder.iterdir() if file.is_file()) if folder.is_dir() else 0
    facts = os.statvfs(existing)
    room = held + facts.f_bavail * facts.f_frsize
    found = f"{format_bytes(room)} free"
    return judged("disk", found, wanted, room >= config.size_bytes, Level.MISSING, "a smaller disk.size, or more room")


def controllers(config: AgentConfig) -> list[Finding]:
    """One line for each; asked for its status. One that does not answer matters less while another one does."""
    certificates = None
    if config.tls is not None:
        try:
            certificates = Certificates(config.tls, Role.AGENT, config.node)
        except TlsError as error:
            remedy = "kvcast pki makes certificates; see docs/how-to/certificates.md"
            return [Finding("certificate", str(error), "this node's own", Level.MISSING, remedy)]
    answers = {address: _status(address, certificates) for address in config.controllers}
    level = Level.SLOW if any(not problem for _, problem in answers.values()) else Level.MISSING
    remedy = "start kvcast-controller, or correct controller.address: without one only local chunks are known"
    return [
        judged("controller", f"{address}: {problem or state}", "answers", not problem, level, remedy)
        for address, (state, problem) in answers.items()
    ]


def _status(address: str, certificates: Certificates | None) -> tuple[str, str]:
    """What a controller says of itself, or why it does not."""
    with _channel(address, certificates) as channel:
        try:
            status = control_pb2_grpc.OperatorStub(channel).Status(rpc.StatusRequest(), timeout=_ANSWER_S)
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            if code is grpc.StatusCode.PERMISSION_DENIED:
                return "answers", ""  # operators only: it is one
            if code is grpc.StatusCode.UNIMPLEMENTED:
                return "", "answers, and is no kvcast-controller"
            return "", (certificates.why_not(address) if certificates is not None else "") or what_answers(address)
    if status.leadership == "lapsed":
        return "answers, but its lease has run out: it starts nothing", ""
    return "is on standby" if status.switch_view.state == "standby" else "answers", ""


def _channel(address: str, certificates: Certificates | None) -> grpc.Channel:
    direct = ("grpc.enable_http_proxy", 0)
    if certificates is None:
        return grpc.insecure_channel(address, options=[direct])
    credentials, options = certificates.for_channel()
    return grpc.secure_channel(address, credentials, [direct, *options])


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
        else:
            findings += registered(api_socket)
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
