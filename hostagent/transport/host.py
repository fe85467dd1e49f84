"""What every transport on a kernel's network shares: control datagrams, life cycle, and the seams of the rest.

Control goes through (address, 4793), notices come to (group, 4793), whatever carries casts and reliable reads. Those
are parts that the concrete transports bring: `CastPart` sends and receives segments, `ReadPart` asks and answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import functools
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from hostagent.config import DataConfig
from hostagent.memory.leases import LocalLeases
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport.base import (
    AskingPart,
    CastPart,
    ChunkPlace,
    ReadPart,
    TransportCounters,
    TransportError,
    TransportFacts,
    TransportSink,
    Way,
)
from hostagent.transport.control_intake import ControlIntake
from hostagent.transport.interface_watch import InterfaceWatch, Place, place_of
from hostagent.transport.interfaces import sending_interface
from hostagent.transport.rail_casts import RailCast, RailCasts
from hostagent.transport.rail_reads import RailReads
from hostagent.transport.read_tokens import TokenBook
from kvchunk.ids import ChunkKey
from kvproto.ids import Address, format_address, parse_address
from kvproto.wire.control import Control
from kvproto.wire.data import Fabric
from kvproto.wire.layouts import UDP_PORT_ROCE

log = logging.getLogger(__name__)

_IP_UNICAST_IF = 50
"""ip(7): the interface of unicast datagrams; needs no privilege and no route."""
_IP_MULTICAST_ALL = 49
_SOFT_ROCE = ", or soft-RoCE (rmmod rdma_rxe, or data.transport: verbs)"


class _Addresses(TypedDict):
    address: str
    own: Address
    read_address: str


@dataclass(frozen=True, slots=True)
class Host:
    """What the parts of a started transport need."""

    config: DataConfig
    memory: PoolMemory
    loop: asyncio.AbstractEventLoop
    sink: TransportSink
    counters: TransportCounters
    address: str
    """IPv4, for casts and control datagrams; empty: there is none."""
    own: Address
    """The same; 0: there is none."""
    read_address: str
    """Of reliable reads, IPv4 or IPv6."""
    native: ctypes.CDLL
    """The data path in C."""
    tokens: TokenBook | None = None
    """Who may read; None: everybody."""
    leases: LocalLeases | None = None
    """Where the thread that answers reads finds chunks; None: the event loop answers."""
    rail: int = 0
    """Which of the node's networks this is."""

    def segments_sent(self, key: ChunkKey, count: int) -> None:
        """See `TransportSink.segments_sent`."""
        self.sink.segments_sent(key, count, self.rail)

    def segments_failed(self, key: ChunkKey, count: int) -> None:
        """See `TransportSink.segments_failed`."""
        self.sink.segments_failed(key, count, self.rail)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a concrete transport brings; `close` ends what both share, after both."""

    casts: CastPart
    reads: ReadPart
    close: Callable[[], None] = lambda: None
    rdma_mtu_bytes: int = 0
    bind_anew: Callable[[Host], str] | None = None
    """Bind everything to the data interface as it is now, with its address now, and tell the endpoint of reads; what
    was bound before is used on where that raises TransportError or OSError. None: only a restart helps."""


@dataclass(slots=True, eq=False)
class _Rail:
    """The second rail of a node, or a further one."""

    host: Host
    parts: Parts
    """Of reads."""
    endpoint: str
    control: _Control | None = None
    """None: there is no IPv4."""
    watch: InterfaceWatch | None = None


class HostTransport:
    """See the module's docstring and the contract in `base`."""

    casts: CastPart
    """Once it has started."""
    reads: AskingPart
    """Once it has started."""
    _control: _Control | None = None
    """None: there is no IPv4."""
    watch: InterfaceWatch | None = None
    """Of the data interface; there is none of the loopback."""
    _rail_casts: RailCasts | None = None
    _rail_reads: RailReads | None = None
    """None: there is one rail."""

    def __init__(
        self,
        config: DataConfig,
        memory: PoolMemory,
        tokens: TokenBook | None = None,
        leases: LocalLeases | None = None,
    ) -> None:
        """`tokens`: who may read, None: everybody; `leases`: of the pool's chunks, by which reads are answered without
        asking the sink. They end after this."""
        self._leases = leases
        self._config = config
        self._memory = memory
        self._tokens = tokens
        self.counters = TransportCounters()
        self._rails: list[_Rail] = []
        """Without the first."""
        self._open: contextlib.ExitStack | None = None
        """What ends when it is closed; None: it is not started."""
        self._in_use: Fabric | None = None
        """The fabric from which casts are received; None after a change that failed."""

    def _open_parts(self, host: Host) -> Parts:
        """The parts that carry casts and reads here. Raises TransportError, leaving nothing open."""
        raise NotImplementedError

    def _open_rail(self, host: Host) -> Parts:
        """The parts that carry reads on a further rail. Raises TransportError, leaving nothing open."""
        raise NotImplementedError

    def _open_rail_casts(self, host: Host) -> RailCast:
        """The part that carries casts there. Raises TransportError."""
        raise NotImplementedError

    async def start(
        self, sink: TransportSink, fabric: Fabric, moved: Callable[[TransportFacts], None] = lambda _: None
    ) -> TransportFacts:
        """Bind and listen. `moved(facts)`: the data network changed, and with it what is told here. Raises
        TransportError, or NotShippedError."""
        config, *others = self._config.each_rail()
        place = _place_of(config)
        self._moved = moved
        self._host = host = Host(
            config=config,
            memory=self._memory,
            loop=asyncio.get_running_loop(),
            sink=sink,
            counters=self.counters,
            **_addresses_of(place),
            native=datapath(),
            tokens=self._tokens,
            leases=self._leases,
        )
        with contextlib.ExitStack() as undo:
            if host.address:
                self._control = control = _Control(host)
                undo.callback(control.close)
                control.join(fabric.group)
            else:
                log.info("no IPv4 on the data network: no casts, all chunks are read at %s", host.read_address)
            parts = self._open_parts(host)
            self.casts, self.reads, self._bind_anew = parts.casts, parts.reads, parts.bind_anew
            for close in (parts.close, parts.reads.close, parts.casts.close):
                undo.callback(close)
            endpoint = parts.reads.listen()
            if place.interface:
                self.watch = InterfaceWatch(config, place, self._place_changed)
                undo.callback(self.watch.close)
            for other in others:
                self._start_rail(other, undo)
            if others:
                self.casts = self._rail_casts = RailCasts(
                    parts.casts,
                    1 + len(others),
                    lambda rail: self._open_rail_casts(self._rails[rail - 1].host),
                    self._no_cast,
                )
                undo.callback(self.casts.close)
                each = [parts.reads, *(rail.parts.reads for rail in self._rails)]
                self.reads = self._rail_reads = RailReads(each, self.ways_to, self.counters, sink.way_left)
                undo.callback(self._rail_reads.close)
            granted = self.casts.use_fabric(fabric)
            self._open = undo.pop_all()
        self._in_use = fabric
        endpoints = tuple(rail.endpoint for rail in self._rails)
        self._facts = TransportFacts(host.own, place.mac, endpoint, granted, parts.rdma_mtu_bytes, endpoints)
        return self._facts

    def _start_rail(self, config: DataConfig, undo: contextlib.ExitStack) -> None:
        place = _place_of(config)
        host = replace(self._host, config=config, rail=len(self._rails) + 1, **_addresses_of(place))
        parts = self._open_rail(host)
        for close in (parts.close, parts.reads.close):
            undo.callback(close)
        rail = _Rail(host, parts, parts.reads.listen())
        if host.address:
            rail.control = _Control(host)
            undo.callback(rail.control.close)
        if place.interface:
            rail.watch = InterfaceWatch(config, place, functools.partial(self._rail_moved, rail))
            undo.callback(rail.watch.close)
        self._rails.append(rail)

    def ways_to(self, endpoint: str) -> Sequence[Way]:
        """How a peer that is read here can be reached: on each rail that both have. The first is `endpoint` itself."""
        first = Way(endpoint, self._host.read_address)
        if not self._rails:
            return (first,)
        theirs = self._host.sink.rails_of(endpoint)
        return (first, *(Way(one, own.host.read_address) for one, own in zip(theirs, self._rails, strict=False)))

    def way_to(self, endpoint: str, turn: int = 0) -> Way:
        """One of these, by which something comes as far as is known; by `turn`, another one."""
        ways = self.ways_to(endpoint)
        left = () if self._rail_reads is None else self._rail_reads.left_of(endpoint)
        rails = [rail for rail in range(len(ways)) if rail not in left] or range(len(ways))
        return ways[rails[turn % len(rails)]]

    async def close(self) -> None:
        """End everything."""
        if self._open is not None:
            self._open.close()
            self._open = None

    @property
    def network_trouble(self) -> str:
        """Why nothing is bound to the data network as it is now; empty: all is, as far as can be told. As long as one
        rail works, chunks come and go."""
        watches = [self.watch, *(rail.watch for rail in self._rails)]
        troubles = [watch.trouble if watch is not None else "" for watch in watches]
        return "; ".join(troubles) if all(troubles) else ""

    def use_fabric(self, fabric: Fabric) -> None:
        """Group, Q_Key, segment size and code point as the controller says; may be called again when they change.

        Raises TransportError where this node cannot; it then receives no casts until a call succeeds.
        """
        if fabric == self._in_use:
            return
        self._in_use = None
        if self._control is not None:
            self._control.join(fabric.group)
        self.casts.use_fabric(fabric)
        self._in_use = fabric

    def _place_changed(self, place: Place, bind: bool) -> None:
        """Raises TransportError or OSError: it is to be tried again, or needs a restart."""
        endpoint = self._facts.read_endpoint
        if bind:
            if self._bind_anew is None:
                raise TransportError("restart kvcast-agent, whose RDMA connections went with what was there before")
            host = replace(self._host, **_addresses_of(place))
            if self._control is not None:
                self._control.bind_anew(host)
            endpoint = self._bind_anew(host)
            self._host = host
            if self._in_use is not None:
                self.casts.use_fabric(self._in_use)
        facts = replace(self._facts, address=self._host.own, mac=place.mac, read_endpoint=endpoint)
        if facts != self._facts:
            self._facts = facts
            self._moved(facts)

    def _rail_moved(self, rail: _Rail, place: Place, bind: bool) -> None:
        """As `_place_changed`."""
        if bind:
            if rail.parts.bind_anew is None:
                raise TransportError("restart kvcast-agent, whose RDMA connections went with what was there before")
            host = replace(rail.host, **_addresses_of(place))
            rail.endpoint = rail.parts.bind_anew(host)
            if rail.control is not None and host.address:
                rail.control.bind_anew(host)
            rail.host = host
            if self._rail_casts is not None:
                self._rail_casts.bind_anew()
        facts = replace(self._facts, rail_endpoints=tuple(one.endpoint for one in self._rails))
        if facts != self._facts:
            self._facts = facts
            self._moved(facts)

    def _no_cast(self, rail: int, key: ChunkKey, count: int) -> None:
        self._host.loop.call_soon(self._rails[rail - 1].host.segments_failed, key, count)

    def cast_by(self, rail: int, chunk: ChunkPlace, first: int, count: int, blocks: Sequence[int]) -> None:
        """See `CastPart.cast`, by a further rail."""
        if self._rail_casts is None:
            raise IndexError(f"rail {rail} of 1")
        self._rail_casts.cast_by(rail, chunk, first, count, blocks)

    def send_control(self, message: Control, destination: Address, rail: int = 0) -> None:
        """One control datagram to UDP port 4793 of an address, by a rail. Best effort."""
        control = self._rails[rail - 1].control if rail else self._control
        if control is not None:
            control.send(message, destination)
        else:
            self.counters.drop("control_send_no_ipv4")


def _place_of(config: DataConfig) -> Place:
    """Raises TransportError."""
    try:
        return place_of(config)
    except OSError as error:
        raise TransportError(f"the data interface cannot be looked at: {error.strerror}") from error


def _addresses_of(place: Place) -> _Addresses:
    own = parse_address(place.cast_address) if place.cast_address else Address(0)
    return {"address": place.cast_address, "own": own, "read_address": place.address}


class _Control:
    """The two control sockets: the node's own, and the group's."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._port = host.config.control_port
        self._socket = bound_udp(host.address, self._port, "data.control_port", host.config.interface)
        self._intake = self._take(self._socket)
        self._group: Address | None = None
        self._notice_socket: socket.socket | None = None

    def join(self, group: Address) -> None:
        """Be a member of this group, for notices and for everything else that comes to it. Raises TransportError."""
        if group == self._group:
            return
        self._leave()
        self._notice_socket = group_socket(self._host.address, (format_address(group),), self._port)
        self._notice_intake = self._take(self._notice_socket)
        self._group = group

    def bind_anew(self, host: Host) -> None:
        """Interface or address are others now. Raises TransportError, OSError."""
        if host.address == self._host.address:
            leave_by(self._socket, host.address, host.config.interface)
        else:
            fresh = bound_udp(host.address, self._port, "data.control_port", host.config.interface)
            self._intake.close()
            self._socket.close()
            self._host, self._socket = host, fresh
            self._intake = self._take(fresh)
        group, self._group = self._group, None
        if group is None:
            return
        try:
            self.join(group)
        except TransportError:
            self._group = group
            raise

    def send(self, message: Control, destination: Address) -> None:
        counters = self._host.counters
        try:
            self._socket.sendto(message.encode(), (format_address(destination), self._port))
        except OSError as error:
            counters.drop(f"control_send_{errno.errorcode.get(error.errno or 0, 'error').lower()}")
        else:
            counters.control_sent += 1

    def close(self) -> None:
        self._leave()
        self._intake.close()
        self._socket.close()

    def _leave(self) -> None:
        if self._notice_socket is not None:
            self._notice_intake.close()
            self._notice_socket.close()
            self._notice_socket = None

    def _take(self, sock: socket.socket) -> ControlIntake:
        host = self._host
        return ControlIntake(sock, host.loop, host.sink, host.counters, host.own, host.rail)


def group_socket(address: str, groups: Sequence[str], port: int) -> socket.socket:
    """A non-blocking UDP socket that receives what comes to these groups at a port, on the interface with this address.

    Raises TransportError.
    """
    to = groups[0] if len(groups) == 1 else ""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # Several programs may listen to one group; their unicast ports tell two agents apart.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((to, port))
        for group in groups:
            sock.setsockopt(
                socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + socket.inet_aton(address)
            )
        sock.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise TransportError(
                f"UDP {to or '*'}:{port} is in use{_SOFT_ROCE if port == UDP_PORT_ROCE else ''}"
            ) from error
        raise TransportError(
            f"cannot join group {', '.join(groups)} on {address} (UDP {port}): {error.strerror};"
            " does the data interface do multicast?"
        ) from error
    return sock


def bound_udp(address: str, port: int, key: str, interface: str = "", *, shared: bool = False) -> socket.socket:
    """A non-blocking UDP socket; `key` of the configuration is named when it cannot be had; `shared`: others may have
    the port already. Raises TransportError.

    What it sends leaves by `interface`, else by the one that has `address`, whatever the routing table says: the
    switch's pool address is in no node's subnet, and a default route would take KV to the management network.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        leave_by(sock, address, interface)
    except TransportError:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise TransportError(
                f"UDP {address}:{port} ({key}) is in use: is another agent running on this node"
                f"{_SOFT_ROCE if port == UDP_PORT_ROCE else ''}?"
            ) from error
        raise TransportError(f"cannot bind UDP {address}:{port} ({key}): {error.strerror}") from error
    return sock


def leave_by(sock: socket.socket, address: str, interface: str) -> None:
    """What a socket with this address sends leaves by `interface`, else by the one that has the address. Raises
    TransportError, or OSError when it has just gone."""
    leaves_by = sending_interface(address, interface)
    if leaves_by is not None:
        index = socket.if_nametoindex(leaves_by)
        sock.setsockopt(socket.IPPROTO_IP, _IP_UNICAST_IF, struct.pack("!I", index))
