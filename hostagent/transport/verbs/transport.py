"""The transport that uses the NIC's RDMA, and falls back function by function to sockets where it cannot.

Control datagrams, FILL and the answering of TCP readers are those of the sockets transport, so clusters may mix.
`mode` says what a missing function means: without reads by RDMA, `verbs` is an error and `auto` uses the sockets
transport; casts fall back in both modes. Each fallback is logged once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from hostagent import limits
from hostagent.config import DataConfig
from hostagent.memory.leases import LocalLeases
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import CastPart, ChunkPlace, TransportError
from hostagent.transport.expected_casts import ExpectedCasts
from hostagent.transport.host import Host, HostTransport, Parts, group_socket
from hostagent.transport.native_receiver import NativeIntake
from hostagent.transport.rail_casts import RailCast
from hostagent.transport.read_tokens import TokenBook
from hostagent.transport.sockets import NoCasts, SegmentSocket, SocketCasts, rail_parts, socket_casts, socket_parts
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort, VerbsError, device_names
from hostagent.transport.verbs.native_casts import NativeCastQueue, NativeCastReceiver
from hostagent.transport.verbs.reads import VerbsReads
from kvproto.fanout import Fanout
from kvproto.ids import Address, format_address
from kvproto.wire.data import Fabric
from kvproto.wire.rdma import rdma_segment_bytes_max

log = logging.getLogger(__name__)


class VerbsTransport(HostTransport):
    """See the module's docstring and the contract in `base`."""

    def __init__(
        self,
        config: DataConfig,
        memory: PoolMemory,
        tokens: TokenBook | None = None,
        leases: LocalLeases | None = None,
        *,
        read_idle_s: float = limits.VERBS_READ_IDLE_S,
    ) -> None:
        super().__init__(config, memory, tokens, leases)
        self._read_idle_s = read_idle_s

    def _open_rail(self, host: Host) -> Parts:
        return self._opened(host, lambda port, region: NoCasts(host), rail_parts)

    def _open_rail_casts(self, host: Host) -> RailCast:
        return socket_casts(host)

    def _open_parts(self, host: Host) -> Parts:
        return self._opened(host, lambda port, region: VerbsCasts(host, port, region), socket_parts)

    def _opened(
        self, host: Host, casts: Callable[[RdmaPort, MemoryRegion], CastPart], over_sockets: Callable[[Host], Parts]
    ) -> Parts:
        try:
            if ":" in host.read_address:
                raise VerbsError(f"{host.read_address} is IPv6: RDMA goes by IPv4")
            port, region = _open_port(host)
        except VerbsError as error:
            if self._config.transport == "verbs":
                raise TransportError(f"data.transport is verbs, but {error}") from error
            # No RDMA device at all is not worth a warning; one that cannot be used is.
            level = logging.WARNING if device_names() else logging.DEBUG
            log.log(level, "no RDMA here, casts and reads over sockets: %s", error)
            return over_sockets(host)

        def close() -> None:
            region.close()
            port.close()

        try:
            reads = VerbsReads(host, port, region, idle_s=self._read_idle_s)
        except VerbsError as error:
            close()
            raise TransportError(f"RDMA of {port.facts.device} cannot be used: {error}") from error
        facts = port.facts
        log.info("RDMA: %s port %d, GID index %d, MTU %d", facts.device, facts.port, facts.gid_index, facts.mtu_bytes)
        return Parts(casts(port, region), reads, close, facts.mtu_bytes)


def _open_port(host: Host) -> tuple[RdmaPort, MemoryRegion]:
    """The port with our address, the pool registered with it. Raises VerbsError."""
    port = RdmaPort.open(host.address, host.config.rdma_device)
    memory = host.memory
    try:
        region = port.register(
            memory.bytes_.ctypes.data,
            memory.size_bytes,
            abi.ACCESS_LOCAL_WRITE,
            "the pool (pool.size)",
            host.config.rdma_region_bytes,
        )
    except VerbsError:
        port.close()
        raise
    return port, region


class VerbsCasts(ExpectedCasts):
    """Casts over UD, or over sockets while the NIC cannot carry those of the fabric."""

    def __init__(self, host: Host, port: RdmaPort, region: MemoryRegion) -> None:
        super().__init__()
        self._host = host
        self._port = port
        self._region = region
        self._fills: SegmentSocket | None = None
        self._queue: NativeCastQueue | None = None
        self._receiver: NativeCastReceiver | None = None
        self._memberships: socket.socket | None = None
        self._sockets: SocketCasts | None = None
        self._segment_bytes = 0
        self._said = ""
        self._used = False
        """Whether there has been a fabric before."""
        self._qkey_violations = port.qkey_violations()
        self._out_of_buffer = port.hardware_counter("out_of_buffer")
        self._timer: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._look_at_counters()

    def use_fabric(self, fabric: Fabric) -> int:
        """See `CastPart.use_fabric`."""
        self._fabric = fabric
        if fabric.segment_bytes != self._segment_bytes:
            self._expected.clear()
            self._segment_bytes = fabric.segment_bytes
        if self._again is not None:
            self._again.cancel()
            self._again = None
        reason = self._cannot_carry(fabric)
        if not reason:
            try:
                granted = self._use_verbs(fabric)
                self._used = True
                self._expect_again()
                return granted
            except VerbsError as error:
                reason = str(error)
        if reason != self._said:
            self._said = reason
            log.warning("casts over sockets, reads over RDMA: %s", reason)
        self._leave_verbs()
        try:
            if self._sockets is None:
                self._sockets = SocketCasts(self._host)
            granted = self._sockets.use_fabric(fabric)
        except TransportError as error:
            self._leave_sockets()
            if self._used:
                raise
            # The agent starts with its own idea of the fabric, which the controller's will replace.
            log.warning("no casts until the fabric is another: %s", error)
            granted = 0
        self._used = True
        self._expect_again()
        return granted

    def _taker(self) -> NativeIntake | SocketCasts | None:
        """Whoever receives casts now."""
        return self._sockets if self._receiver is None else self._receiver.intake

    def data_socket(self) -> socket.socket | None:
        """See `CastPart.data_socket`. The NIC has the port while casts go by RDMA."""
        return None if self._sockets is None else self._sockets.data_socket()

    def cast(self, chunk: ChunkPlace, first: int, count: int, blocks: Sequence[int] = ()) -> None:
        """See `CastPart.cast`."""
        if self._queue is not None:
            groups = [self._fabric.group_of(block) for block in blocks] or [self._fabric.group]
            self._queue.add(chunk, first, count, groups)
            self._host.counters.cast_packets_sent += count * len(groups)
        elif self._sockets is not None:
            self._sockets.cast(chunk, first, count, blocks)
        else:
            self._host.loop.call_soon(self._host.segments_failed, chunk.key, count)

    def fill(self, chunk: ChunkPlace, first: int, count: int, pool: Address, *, cast_too: bool = False) -> None:
        """See `CastPart.fill`. The switch wants whole packets: those are made in software. What readers wait for, too,
        the NIC casts."""
        filling = self._fills or self._sockets
        if cast_too and (self._queue is not None or filling is None):
            self.cast(chunk, first, count)
        elif filling is not None:
            filling.fill(chunk, first, count, pool, cast_too=cast_too)
        else:
            self._host.counters.fill_packets_failed += count
            self._host.loop.call_soon(self._host.sink.fill_sent, chunk.key, count)

    def close(self) -> None:
        """End both directions."""
        for timer in (self._timer, self._again):
            if timer is not None:
                timer.cancel()
        self._close_verbs()
        self._close_sockets()

    def read_counters(self) -> None:
        """Bring what the NIC counts into our counters."""
        counters = self._host.counters
        violations = self._port.qkey_violations()
        if violations is not None and self._qkey_violations is not None:
            counters.drop("cast_qkey", (violations - self._qkey_violations) & 0xFFFF_FFFF)
        self._qkey_violations = violations
        out_of_buffer = self._port.hardware_counter("out_of_buffer")
        if out_of_buffer is not None and self._out_of_buffer is not None:
            counters.cast_receive_overflows += max(0, out_of_buffer - self._out_of_buffer)
        self._out_of_buffer = out_of_buffer

    # ------------------------------------------------------------------ inside

    def _cannot_carry(self, fabric: Fabric) -> str:
        """Why this port cannot cast on this fabric; empty when it can."""
        facts = self._port.facts
        if not facts.multicast:
            return f"{facts.device} has no multicast for UD queue pairs"
        if facts.groups_max < len(fabric.groups):
            return (
                f"{facts.device} has {facts.groups_max} multicast groups, and fabric.fanout needs {len(fabric.groups)}"
            )
        if fabric.message_bytes > facts.mtu_bytes:
            return (
                f"a segment of {fabric.segment_bytes} bytes and its header do not fit the RDMA MTU of {facts.device},"
                f" {facts.mtu_bytes}: raise the interface's MTU, or build the switch program with"
                f" SEGMENT_BYTES={rdma_segment_bytes_max(facts.mtu_bytes)}"
            )
        return ""

    def _use_verbs(self, fabric: Fabric) -> int:
        host, port = self._host, self._port
        self._leave_sockets()
        self._leave_groups()
        if self._queue is None:
            self._queue = NativeCastQueue(port, self._region, host, host.native, self._casts_broke)
        self._queue.use_fabric(fabric)
        if self._fills is None:
            # Any port but RoCE's own, which the NIC (or the kernel's soft-RoCE) has.
            self._fills = SegmentSocket(host, 0)
        self._fills.use_fabric(fabric)
        if fabric.fanout is Fanout.MULTICAST and fabric.groups:
            # An attached queue pair tells no switch that snoops: a socket that nothing comes to does.
            self._memberships = group_socket(host.address, tuple(map(format_address, fabric.groups)), 0)
        self._receiver = NativeCastReceiver(port, fabric, host, self._casts_broke)
        return self._receiver.waiting_bytes_max

    def _expect_again(self) -> None:
        """Somebody else receives casts from now on."""
        if (taker := self._taker()) is not None:
            for chunk, missing in self._expected.values():
                taker.expect(chunk, missing)

    def _casts_broke(self, error: VerbsError) -> None:
        """A queue pair that cannot be replaced, or a device that is gone: later there may be another, or sockets."""
        log.warning("casts over RDMA broke, trying again in %g s: %s", limits.VERBS_AGAIN_S, error)
        self._leave_verbs()
        self._try_later()

    def _try_later(self) -> None:
        if self._again is None:
            self._again = self._host.loop.call_later(limits.VERBS_AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        self._again = None
        try:
            self.use_fabric(self._fabric)
        except TransportError as error:
            log.debug("still no casts: %s", error)
            self._try_later()

    def _leave_verbs(self) -> None:
        """Segments that have not left are reported as failed: whoever waits for them pins their chunk."""
        for part in (self._queue, self._fills):
            if part is not None:
                part.give_up()
        self._close_verbs()

    def _leave_sockets(self) -> None:
        """As `_leave_verbs`."""
        if self._sockets is not None:
            self._sockets.give_up()
        self._close_sockets()

    def _close_verbs(self) -> None:
        self._leave_groups()
        for part in (self._queue, self._fills):
            if part is not None:
                part.close()
        self._queue = self._fills = None

    def _leave_groups(self) -> None:
        """Receive nothing."""
        for part in (self._receiver, self._memberships):
            if part is not None:
                part.close()
        self._receiver = self._memberships = None

    def _close_sockets(self) -> None:
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    def _look_at_counters(self) -> None:
        self.read_counters()
        self._timer = self._host.loop.call_later(limits.VERBS_COUNTERS_S, self._look_at_counters)
