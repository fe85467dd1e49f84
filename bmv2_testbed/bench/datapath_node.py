"""One node of `kvcast bench datapath`: a holder or a reader, with the agent's transport and the protocol's machines.

There is no switch on loopback: the holder's process answers JOINs as one would, and a member that is not there keeps
every reader company, so that even a single one is cast to. Speaks with the benchmark by lines on its pipes.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import functools
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bmv2_testbed.bench.idle_sink import IdleSink
from hostagent import limits
from hostagent.config import DataConfig
from hostagent.event_loop import MachineTimer
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport import socket_options
from hostagent.transport.base import ChunkPlace, ControlArrival
from hostagent.transport.host import Host, HostTransport, Parts, bound_udp, group_socket
from hostagent.transport.sockets import SegmentSocket, SocketsTransport, TcpReads
from kvchunk.ids import ChunkKey
from kvproto.commands import (
    ChunkHere,
    HolderCommand,
    PinChunk,
    ReaderCommand,
    SendControl,
    SendSegments,
    UnpinChunk,
    VerifyChunk,
)
from kvproto.events import (
    ChunkVerified,
    ChunkWanted,
    ControlReceived,
    HolderEvent,
    HolderRef,
    ReaderEvent,
    SegmentsReceived,
    SegmentsSent,
    SendFailed,
)
from kvproto.ids import Address, Member, NodeId, format_address, parse_address
from kvproto.session.holder import Holder
from kvproto.session.parameters import HolderParameters, ReaderParameters
from kvproto.session.reader import Reader
from kvproto.wire.control import Control, Flag, Op
from kvproto.wire.data import Fabric
from p4switch.build import build_shared_object

CHUNKS = 8
HOLDER_ADDRESS = parse_address("127.78.0.1")
ABSENT_MEMBER = 63
DEADLINE_S = 60.0
PAIR_WINDOW = 512
PAIR_SILENCE_S = 2


def key_of(index: int) -> ChunkKey:
    """The name of one of the benchmark's chunks."""
    return ChunkKey(index.to_bytes(16, "big"))


def reader_address(index: int) -> Address:
    """A reader's, on loopback."""
    return Address(HOLDER_ADDRESS + 1 + index)


def content(size_bytes: int) -> npt.NDArray[np.uint8]:
    """What all chunks together hold."""
    return np.random.default_rng(1).integers(0, 256, size_bytes, np.uint8)


class SendingCasts:
    """Sends only: a real network does not bring a holder its own casts, loopback would."""

    def __init__(self, host: Host) -> None:
        self._outgoing = SegmentSocket(host, host.config.cast_port)
        self.cast, self.fill, self.close = self._outgoing.cast, self._outgoing.fill, self._outgoing.close

    def use_fabric(self, fabric: Fabric) -> int:
        self._outgoing.use_fabric(fabric)
        return 0

    def data_socket(self) -> None: ...
    def drain_receive(self) -> None: ...
    def expect(self, chunk: ChunkPlace, missing: npt.NDArray[np.bool_]) -> None: ...
    def forget(self, key: ChunkKey) -> None: ...
    def settle(self) -> None: ...


class SendingTransport(HostTransport):
    """A holder's."""

    def _open_parts(self, host: Host) -> Parts:
        return Parts(SendingCasts(host), TcpReads(host))


class Node(IdleSink):
    """What both kinds share: a transport, whose sink it is."""

    def __init__(self, args: argparse.Namespace, address: Address) -> None:
        super().__init__()
        self.fabric = Fabric(segment_bytes=args.segment)
        self.chunk_bytes: int = args.size // CHUNKS
        self.segments: int = self.chunk_bytes // args.segment
        self.memory = PoolMemory(args.size, prefault=True)
        self.config = DataConfig(
            address=format_address(address),
            cast_port=args.cast_port,
            control_port=args.control_port,
            read_port=0,
            segment_bytes=args.segment,
        )
        kind = SocketsTransport if address != HOLDER_ADDRESS else SendingTransport
        self.transport = kind(self.config, self.memory)
        self.loop = asyncio.get_running_loop()

    def place(self, key: ChunkKey) -> ChunkPlace:
        return ChunkPlace(key, int.from_bytes(key, "big") * self.chunk_bytes, self.chunk_bytes)


class HolderNode(Node):
    """Answers GETs with casts, and JOINs and LEAVEs as the switch would."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args, HOLDER_ADDRESS)
        self._holder = Holder(HolderParameters(segment_bytes=args.segment), self)
        self._interest: dict[ChunkKey, int] = {}
        self.memory.bytes_[:] = content(args.size)

    def segments_of(self, key: ChunkKey) -> int:
        return self.segments

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None:
        gets = [ControlReceived(message, source) for message, source, _ in arrivals if message.op is Op.GET]
        if gets:
            self._carry_out(self._holder.handle_all(gets, time.monotonic_ns()))
        for message, source, _ in arrivals:
            if message.op is not Op.GET:
                self._notify(message, Member(source - HOLDER_ADDRESS - 1))

    def segments_sent(self, key: ChunkKey, count: int, _rail: int = 0) -> None:
        self._handle(SegmentsSent(key, count))

    def segments_failed(self, key: ChunkKey, count: int, _rail: int = 0) -> None:
        self._handle(SendFailed(key, count))

    def _notify(self, cause: Control, member: Member) -> None:
        before = self._interest.get(cause.key, 1 << ABSENT_MEMBER)
        joins = cause.op is Op.JOIN
        members = before | 1 << member if joins else before & ~(1 << member)
        self._interest[cause.key] = members
        flags = Flag.JOINED if joins else Flag.LEFT
        notice = Control(
            Op.NOTICE, cause.key, cause.segments, cause.segment, 0, cause.tag, flags, member=member, members=members
        )
        for other in range(ABSENT_MEMBER):
            if (members | before) >> other & 1:
                self.transport.send_control(notice, reader_address(other))

    def _handle(self, event: HolderEvent) -> None:
        self._carry_out(self._holder.handle(event, time.monotonic_ns()))

    def _carry_out(self, commands: list[HolderCommand]) -> None:
        for command in commands:
            match command:
                case SendSegments(key, first, count):
                    self.transport.casts.cast(self.place(key), first, count)
                case PinChunk() | UnpinChunk():
                    pass
                case _:
                    raise TypeError(f"the holder asks for {command}")


class ReaderNode(Node):
    """Fetches all chunks once."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args, reader_address(args.index))
        self._args = args
        self._timer = MachineTimer(self.loop, self._timer_fired)
        self._over = asyncio.Event()
        self._stopped = False
        self._left = 0
        """Chunks still to come."""

    def start_reader(self, receive_buffer_bytes: int) -> None:
        window = receive_buffer_bytes // 2 // self.fabric.segment_bytes
        member = Member(self._args.index)
        self._reader = Reader(ReaderParameters(member, self.fabric.segment_bytes, receive_window_segments=window))

    async def fetch(self) -> None:
        """All of it; the memory then holds it."""
        self._over.clear()
        holder = (HolderRef(NodeId("holder"), HOLDER_ADDRESS, readable=False),)
        self._left = CHUNKS
        self._handle([ChunkWanted(key_of(i), self.segments, self.chunk_bytes, holder, i) for i in range(CHUNKS)])
        async with asyncio.timeout(DEADLINE_S):
            await self._over.wait()

    def stop(self) -> None:
        """No timer fires any more."""
        self._stopped = True
        self._timer.cancel()

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None:
        self._handle([ControlReceived(message, source) for message, source, _ in arrivals])

    def casts_placed(self, arrivals: Sequence[SegmentsReceived]) -> None:
        self._handle(arrivals)

    def casts_unexpected(self, arrivals: Sequence[SegmentsReceived]) -> None:
        self._handle([arrived for arrived in arrivals if self._reader.missing(arrived.key) is None])

    def cast_patience_s(self) -> float:
        return limits.CAST_FOLLOWER_POLL_S_MAX if self._reader.patient else limits.CAST_POLL_S_MAX

    def cast_patience_segments(self) -> int:
        if self._reader.patient:
            return limits.CAST_FOLLOWER_WAKE_SEGMENTS
        return min(limits.CAST_WAKE_SEGMENTS, self._reader.half_window)

    def _timer_fired(self) -> None:
        self.transport.casts.drain_receive()
        now_ns = time.monotonic_ns()
        self._carry_out(self._reader.handle_timer(now_ns), now_ns)

    def _handle(self, events: Sequence[ReaderEvent]) -> None:
        now_ns = time.monotonic_ns()
        self._carry_out(self._reader.handle_all(events, now_ns), now_ns)

    def _carry_out(self, commands: list[ReaderCommand], now_ns: int) -> None:
        for command in commands:
            match command:
                case SendControl(message, address):
                    if message.op is Op.JOIN and (missing := self._reader.missing(message.key)) is not None:
                        self.transport.casts.expect(self.place(message.key), missing)
                    self.transport.send_control(message, address)
                case VerifyChunk(key):
                    self.transport.casts.forget(key)
                    self.loop.call_soon(self._handle, [ChunkVerified(key, good=True)])
                case ChunkHere():
                    self._left -= 1
                    if not self._left:
                        self._over.set()
                case _:
                    raise TypeError(f"the reader asks for {command}")
        if not self._stopped:
            due_ns = self._reader.wake_ns
            if due_ns is not None:
                self._timer.set(due_ns, now_ns)


@functools.cache
def pair_library() -> ctypes.CDLL:
    """The C pair (datapath.c)."""
    library = ctypes.CDLL(str(build_shared_object("pair", [Path(__file__).with_name("datapath.c")])))
    u32, u16 = ctypes.c_uint32, ctypes.c_uint16
    library.pair_send.argtypes = [ctypes.c_int, u32, u16, ctypes.c_void_p, u32, u32, u32, u32, u32]
    library.pair_receive.argtypes = [ctypes.c_int, u32, u32, u16, u32, u32]
    return library


def say(**figures: Any) -> None:
    """One line to the benchmark."""
    print(json.dumps(figures), flush=True)


def run_pair(args: argparse.Namespace) -> None:
    """A node of the C pair."""
    library, fabric = pair_library(), Fabric(segment_bytes=args.segment)
    segments = args.size // args.segment
    holds = args.index < 0
    memory = content(args.size) if holds else np.zeros(0, np.uint8)
    address = format_address(HOLDER_ADDRESS if holds else reader_address(args.index))
    if holds:
        sock = bound_udp(address, args.control_port, "--control-port")
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
    else:
        sock = group_socket(address, (format_address(fabric.group),), args.cast_port)
    each = 1
    if args.way == "buffers":
        each = limits.CAST_BUFFER_BYTES_MAX // fabric.datagram_bytes
        if not holds:
            sock.setsockopt(socket.IPPROTO_UDP, socket_options.UDP_GRO, 1)
    socket_options.ask_buffer(sock, receive_bytes=DataConfig().receive_buffer_bytes)
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", PAIR_SILENCE_S, 0))
    say(ready=True)
    sys.stdin.readline()
    began_s, cpu_s = time.monotonic(), time.process_time()
    if holds:
        error = library.pair_send(
            sock.fileno(),
            fabric.group,
            args.cast_port,
            memory.ctypes.data,
            args.segment,
            segments,
            PAIR_WINDOW,
            args.readers,
            each,
        )
        if error:
            raise OSError(error, f"the pair sends: {os.strerror(error)}")
        received = 0
    else:
        received = library.pair_receive(
            sock.fileno(), args.index, HOLDER_ADDRESS, args.control_port, args.segment, segments
        )
    whole = holds or received == segments
    seconds = time.monotonic() - began_s
    say(seconds=seconds, cpu_s=time.process_time() - cpu_s, right=whole)


async def run_node(args: argparse.Namespace) -> None:
    """A node of kvcast."""
    node = HolderNode(args) if args.index < 0 else ReaderNode(args)
    facts = await node.transport.start(node, node.fabric)
    if isinstance(node, ReaderNode):
        node.start_reader(facts.receive_buffer_bytes)
    say(ready=True)
    await node.loop.run_in_executor(None, sys.stdin.readline)
    began_s, cpu_s = time.monotonic(), time.process_time()
    right = True
    if isinstance(node, ReaderNode):
        await node.fetch()
        node.stop()
    else:
        await node.loop.run_in_executor(None, sys.stdin.readline)
    figures = {"seconds": time.monotonic() - began_s, "cpu_s": time.process_time() - cpu_s}
    if isinstance(node, ReaderNode):
        right = bool((node.memory.bytes_ == content(args.size)).all())
    counters = node.transport.counters
    say(**figures, right=right, overflows=counters.cast_receive_overflows, dropped=counters.dropped)
    await node.transport.close()
    node.memory.close()


def main() -> int:
    """Entry point of one node's process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=("pair", "buffers", "kvcast"), required=True)
    parser.add_argument("--index", type=int, required=True, help="of a reader; -1: the holder")
    for name in ("--size", "--segment", "--readers", "--cast-port", "--control-port"):
        parser.add_argument(name, type=int, required=True)
    args = parser.parse_args()
    if args.way != "kvcast":
        run_pair(args)
    else:
        asyncio.run(run_node(args))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
