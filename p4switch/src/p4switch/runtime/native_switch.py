"""The switch as Python sees it. Packets never pass through here: a native thread moves them; this sets it up, changes
tables between two packets, and drains the events of programs and ports."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from p4switch.errors import SwitchError
from p4switch.runtime import abi
from p4switch.runtime.compiled_program import Program, unpack_fields
from p4switch.runtime.pipeline import Pipeline
from p4switch.runtime.switch_values import (
    Direction,
    Faults,
    PortStats,
    Queue,
    Shape,
    SwitchConfig,
    SwitchStats,
)
from p4switch.values import PRIORITIES_MAX, QUEUE_PACKETS_MAX

_EVENT_BYTES = 1 << 20
_COLLECT_BYTES = 1 << 16
_FRACTION_ONE = 1 << 32


@dataclass(frozen=True, slots=True)
class DigestEvent:
    """A program's digest; ``values`` in the order of ``pipeline.program.digests[digest].fields``."""

    pipeline: Pipeline
    digest: int
    values: tuple[int, ...]
    at_us: int


@dataclass(frozen=True, slots=True)
class PacketInEvent:
    """A frame sent to the CPU port, with the controller header that the program put on it."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class IdleEvent:
    """An entry that nothing has matched for its timeout."""

    pipeline: Pipeline
    table: int
    handle: int


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A program's log_msg, or with ``trace`` a step of a packet's way."""

    text: str
    trace: bool


@dataclass(frozen=True, slots=True)
class PortEvent:
    """A port went up or down."""

    port: int
    up: bool


Event = DigestEvent | PacketInEvent | IdleEvent | LogEvent | PortEvent


class Switch:
    """A running switch. All methods may be called from any thread; :meth:`events` from one thread at a time.

    Packets move on a native thread between :meth:`start` and :meth:`stop`; without it, :meth:`step` moves them on the
    caller's. Use as a context manager, or :meth:`close` it.
    """

    def __init__(self, config: SwitchConfig | None = None) -> None:
        config = config or SwitchConfig()
        self.config = config
        self._library = abi.runtime()
        unused = abi.RECIRCULATION_PORTS_MAX - len(config.recirculation_ports)
        ports = (*config.recirculation_ports, *([abi.NONE] * unused))
        raw = abi.SwitchConfigStruct(
            abi.NONE if config.cpu_port is None else config.cpu_port,
            config.drop_port,
            config.seed & ((1 << 64) - 1),
            int(config.virtual_clock),
            int(config.trace),
            (ctypes.c_uint32 * abi.RECIRCULATION_PORTS_MAX)(*ports),
            config.recirculation_rate_bits,
            config.recirculation_queue_bytes,
        )
        handle = self._library.ps_switch_new(ctypes.byref(raw))
        if not handle:
            raise SwitchError("the switch cannot be set up: not enough memory or file descriptors")
        self._handle: int | None = handle
        self._pipelines: weakref.WeakValueDictionary[int, Pipeline] = weakref.WeakValueDictionary()
        self._active: Pipeline | None = None
        self._event_block = ctypes.create_string_buffer(_EVENT_BYTES)
        self._events_lock = threading.Lock()
        self._memory_ports: set[int] = set()
        self._closing = threading.Lock()

    @property
    def handle(self) -> int:
        """Of the native object.

        Raises:
            SwitchError: the switch is closed.
        """
        if self._handle is None:
            raise SwitchError("the switch is closed")
        return self._handle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops the thread, closes all ports, ends a waiting :meth:`events`. Pipelines end with their switch."""
        with self._closing:
            if self._handle is None:
                return
            handle = self._handle
            self._library.ps_events_close(handle)
            with self._events_lock:
                self._handle = None
            self._library.ps_stop(handle)
            self._library.ps_commit(handle, None)
            self._active = None
            for pipeline in list(self._pipelines.values()):
                pipeline.free()
            self._library.ps_switch_free(handle)

    # ------------------------------------------------------------------ pipeline

    def prepare(self, program: Program) -> Pipeline:
        """Fresh state for a program, its const entries in place; on no packet's path until :meth:`commit`.

        Raises:
            SwitchError: the program's descriptor is faulty, or there is not enough memory for its state.
        """
        pipeline = Pipeline(self, program)
        self._pipelines[pipeline.serial] = pipeline
        return pipeline

    def commit(self, pipeline: Pipeline | None) -> None:
        """From the next packet on, packets run through ``pipeline`` (None: they are dropped)."""
        self._library.ps_commit(self.handle, pipeline.handle if pipeline is not None else None)
        self._active = pipeline

    @property
    def pipeline(self) -> Pipeline | None:
        """The one on the packets' path."""
        return self._active

    # ------------------------------------------------------------------ ports

    def add_interface(self, port: int, name: str) -> None:
        """A Linux interface (needs root or CAP_NET_RAW).

        Raises:
            SwitchError: no such interface, no permission, port number in use. So for all of these.
        """
        self._open(self._library.ps_add_interface, port, name.encode())

    def add_unix(self, port: int, local: Path, peer: Path) -> None:
        """UNIX datagrams: received at ``local``, sent to ``peer`` (which may come and go)."""
        self._open(self._library.ps_add_unix, port, str(local).encode(), str(peer).encode())

    def add_udp(self, port: int, local: tuple[str, int], peer: tuple[str, int] | None = None) -> tuple[str, int]:
        """UDP datagrams; numeric addresses. Without ``peer`` it is whoever sends first. Returns the bound address."""
        number = ctypes.c_uint16(local[1])
        peer_host, peer_port = (peer[0].encode(), peer[1]) if peer is not None else (None, 0)
        self._open(self._library.ps_add_udp, port, local[0].encode(), ctypes.byref(number), peer_host, peer_port)
        return local[0], number.value

    def add_memory(self, port: int, *, discard: bool = False) -> None:
        """A port inside the process, for tests: see :meth:`inject` and :meth:`collect`. ``discard`` only counts."""
        self._open(self._library.ps_add_memory, port, int(discard))
        self._memory_ports.add(port)

    def _open(self, function: ctypes._NamedFuncPointer, port: int, *arguments: object) -> None:
        error = ctypes.create_string_buffer(abi.ERROR_BYTES)
        if function(self.handle, port, *arguments, error, abi.ERROR_BYTES) != 0:
            raise SwitchError(error.value.decode(errors="replace"))

    def remove_port(self, port: int) -> None:
        """Closes a port."""
        self._check(self._library.ps_remove_port(self.handle, port), port)
        self._memory_ports.discard(port)

    def _check(self, result: int, port: int) -> None:
        if result == -1:
            raise SwitchError(f"there is no port {port}")

    def set_faults(self, port: int, direction: Direction, faults: Faults | None) -> None:
        """Injects faults from now on; None ends it. The random sequence restarts from the seed."""
        raw = abi.FaultsStruct()
        if faults is not None:
            raw = abi.FaultsStruct(
                faults.seed & ((1 << 64) - 1),
                *(_fraction(p) for p in (faults.loss, faults.duplicate, faults.reorder, faults.corrupt)),
                faults.delay_us,
                faults.jitter_us,
                faults.reorder_gap,
                1,
            )
        self._check(self._library.ps_set_faults(self.handle, port, int(direction), ctypes.byref(raw)), port)

    def set_shape(self, port: int, shape: Shape | None) -> None:
        """Limits a port's output from now on; None ends it and sends what waits."""
        rate, burst, queue = (shape.rate_bits, shape.burst_bytes, shape.queue_bytes) if shape is not None else (0, 1, 0)
        if shape is not None and (rate <= 0 or burst <= 0 or queue < 0):
            raise ValueError("a shape's rate and burst are positive, its queue is not negative")
        self._check(self._library.ps_set_shape(self.handle, port, rate, burst, queue), port)

    def set_queue(self, port: int, queue: Queue) -> None:
        """What may wait for a port before egress, where the program looks at queues. What waits already stays."""
        if not (0 < queue.packets <= QUEUE_PACKETS_MAX and 0 < queue.priorities <= PRIORITIES_MAX and queue.bytes >= 0):
            raise ValueError(
                f"a queue has 1 to {QUEUE_PACKETS_MAX} packets, 1 to {PRIORITIES_MAX} priorities and no negative bytes"
            )
        self._check(self._library.ps_set_queue(self.handle, port, queue.packets, queue.bytes, queue.priorities), port)

    def set_pcap(self, port: int, direction: Direction, path: Path | None) -> None:
        """Captures a port's frames into a new file; None ends the capture and completes the file."""
        result = self._library.ps_set_pcap(
            self.handle, port, int(direction), None if path is None else str(path).encode()
        )
        self._check(result, port)
        if result == -2:
            raise SwitchError(f"capture file {path} cannot be written")

    def port_stats(self, port: int) -> PortStats:
        """A port's counters."""
        words = (ctypes.c_uint64 * abi.PORT_STATS_WORDS)()
        self._check(self._library.ps_port_stats_read(self.handle, port, words), port)
        return PortStats(*words)

    def stats(self) -> SwitchStats:
        """The switch's counters."""
        words = (ctypes.c_uint64 * abi.SWITCH_STATS_WORDS)()
        self._library.ps_stats_read(self.handle, words)
        return SwitchStats(*words)

    def set_exclusion(self, exclusion_id: int, ports: Iterable[int]) -> None:
        """The ports of a level-2 exclusion id (TNA): a replica whose RID is the packet's has no copy for them.

        Raises:
            SwitchError: no such id or port.
        """
        words = (ctypes.c_uint64 * (abi.PORTS_MAX // 64))()
        for port in ports:
            if not 0 <= port < abi.PORTS_MAX:
                raise SwitchError(f"no port {port}: numbers go from 0 to {abi.PORTS_MAX - 1}")
            words[port // 64] |= 1 << port % 64
        if exclusion_id < 0 or self._library.ps_set_exclusion(self.handle, exclusion_id, words) != 0:
            raise SwitchError(f"no exclusion id {exclusion_id}: they go from 0 to 511")

    def set_trace(self, on: bool) -> None:
        """Reports the path of every packet as LogEvents with ``trace``."""
        self._library.ps_set_trace(self.handle, int(on))

    # ------------------------------------------------------------------ running

    def start(self) -> None:
        """Moves packets on a native thread from now on."""
        if self._library.ps_start(self.handle) != 0:
            raise SwitchError("the packet thread cannot be started")

    def stop(self) -> None:
        """Ends the native thread; ports stay open."""
        self._library.ps_stop(self.handle)

    def step(self) -> int:
        """Without the thread: handles what waits in sockets, timers and the recirculation queue; returns how many."""
        return int(self._library.ps_step(self.handle))

    def advance(self, us: int) -> None:
        """Moves the virtual clock; what falls due on the way happens at its own time.

        Raises:
            ValueError: the switch has a real clock.
        """
        if self._library.ps_advance(self.handle, us) < 0:
            raise ValueError("this switch has a real clock (SwitchConfig.virtual_clock)")

    def now_us(self) -> int:
        """Microseconds since the switch was made, as programs see them."""
        return int(self._library.ps_now_us(self.handle))

    def inject(self, port: int, frame: bytes) -> None:
        """A frame as if it had come in on a port."""
        result = self._library.ps_inject(self.handle, port, frame, len(frame))
        self._check(result, port)
        if result == -2:
            raise SwitchError(f"a frame of {len(frame)} bytes cannot be taken in")

    def packet_out(self, frame: bytes) -> None:
        """A frame as if it had come in on the CPU port."""
        if self.config.cpu_port is None:
            raise SwitchError("the switch has no CPU port")
        self.inject(self.config.cpu_port, frame)

    def collect(self, port: int | None = None) -> list[tuple[int, bytes]]:
        """Frames that memory ports have sent since the last call, in the order of sending: (port, frame)."""
        records: list[tuple[int, int, bytes]] = []
        for number in sorted(self._memory_ports) if port is None else [port]:
            block = ctypes.create_string_buffer(_COLLECT_BYTES)
            used = self._library.ps_collect(self.handle, number, block, len(block))
            while used > len(block):
                block = ctypes.create_string_buffer(used)
                used = self._library.ps_collect(self.handle, number, block, len(block))
            if used < 0:
                raise SwitchError(f"port {number} is no memory port")
            records += _memory_records(block.raw[:used])
        return [(number, frame) for _, number, frame in sorted(records, key=lambda record: record[0])]

    def bench(self, port: int, frames: list[bytes], count: int) -> float:
        """Runs ``count`` packets, the given ones in turn, through an ingress port; seconds of processor time taken."""
        packed = b"".join(len(f).to_bytes(4, "little") + f + bytes(-len(f) % 4) for f in frames)
        return float(self._library.ps_bench(self.handle, port, packed, len(packed), count)) / 1e9

    # ------------------------------------------------------------------ events

    def events(self, timeout_s: float | None) -> list[Event]:
        """Waits for digests, packet-ins, idle entries, log lines and port changes, and takes what there is.

        Blocks without the GIL; None waits for ever. An empty list after the timeout, or once the switch is closed.
        """
        with self._events_lock:
            if self._handle is None:
                return []
            timeout_ms = -1 if timeout_s is None else max(0, round(timeout_s * 1000))
            used = self._library.ps_events_wait(self._handle, self._event_block, _EVENT_BYTES, timeout_ms)
            raw = self._event_block.raw[:used] if used > 0 else b""
        return list(self._decode(raw))

    def _decode(self, raw: bytes) -> Iterator[Event]:
        at = 0
        while at < len(raw):
            total, kind, serial, at_us, a, b, length, _ = abi.EVENT_HEADER.unpack_from(raw, at)
            body = raw[at + abi.EVENT_HEADER.size : at + abi.EVENT_HEADER.size + length]
            at += total
            event = self._event(kind, serial, at_us, a, b, body)
            if event is not None:
                yield event

    def _event(self, kind: int, serial: int, at_us: int, a: int, b: int, body: bytes) -> Event | None:
        if kind == abi.EVENT_PACKET_IN:
            return PacketInEvent(body)
        if kind == abi.EVENT_LOG:
            return LogEvent(body.decode(errors="replace"), bool(a))
        if kind == abi.EVENT_PORT:
            return PortEvent(a, bool(b))
        pipeline = self._pipelines.get(serial)
        if pipeline is None:  # of a program that has been replaced and forgotten
            return None
        if kind == abi.EVENT_DIGEST:
            return DigestEvent(pipeline, a, unpack_fields(pipeline.program.digests[a].fields, body), at_us)
        return IdleEvent(pipeline, a, b)


def _fraction(probability: float) -> int:
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"a probability is between 0 and 1, not {probability}")
    return min(round(probability * _FRACTION_ONE), _FRACTION_ONE - 1)


def _memory_records(raw: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(raw):
        serial, port, length = abi.MEMORY_RECORD.unpack_from(raw, at)
        start = at + abi.MEMORY_RECORD.size
        yield serial, port, raw[start : start + length]
        at += (abi.MEMORY_RECORD.size + length + 7) // 8 * 8
