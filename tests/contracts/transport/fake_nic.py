"""RDMA NICs that exist in this process only, behind the calls of libibverbs that the transport makes.

UD messages to a group are copied into the posted rows of every queue pair in it, at once, inside `ibv_post_send`. READs
copy from memory that is registered for them when the event loop gets to it, so that no read is over before those who
asked for it could hear of a part. Queue pairs run dry, break and flush as the specification says. The calls
on the fast path are C functions, because the data path in C makes them from its threads.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import itertools
import math
import os
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_int, c_uint, c_void_p
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest import mock

from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import PortFacts, RdmaPort, VerbsError, gid_of

_ACCESS_ERROR, _FLUSHED, _LOCAL_PROTECTION_ERROR, _RETRY_EXCEEDED = 10, 5, 4, 12
_IP_AT = abi.GRH_BYTES - 20
_SEND_WORDS = ctypes.c_uint64 * (abi.SEND_WR.itemsize // 8)
_GET_EVENT = CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p), POINTER(c_void_p), use_errno=True)
_ACKNOWLEDGE = CFUNCTYPE(None, c_void_p, c_uint)
QUEUE_ENTRIES_MAX = 4096


class _Wr(ctypes.Structure):
    """The beginning of `struct ibv_send_wr` and `struct ibv_recv_wr`."""

    _fields_ = [
        ("work_id", ctypes.c_uint64),
        ("next", c_void_p),
        ("pieces", c_void_p),
        ("pieces_count", c_int),
        ("opcode", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


class _Sge(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("length", ctypes.c_uint32), ("lkey", ctypes.c_uint32)]


Given = TypeVar("Given", bound=ctypes.Structure)


def given(reference: Any, kind: type[Given]) -> Given:
    """The structure that a caller passed by reference."""
    return ctypes.cast(reference, ctypes.POINTER(kind)).contents


@dataclass(eq=False)
class FakeQueue:
    """A completion queue with its channel."""

    number: int
    fd: int
    completions: deque[tuple[int, int, int, int]] = field(default_factory=deque)
    """Work id, status, bytes, queue pair."""
    armed: bool = False
    broken: bool = False

    def add(self, work_id: int, status: int, size_bytes: int, pair: int) -> None:
        self.completions.append((work_id, status, size_bytes, pair))
        self.ring()

    def ring(self) -> None:
        if self.armed:
            self.armed = False
            os.eventfd_write(self.fd, 1)


@dataclass(eq=False)
class FakePair:
    """A queue pair."""

    number: int
    kind: int
    sends: FakeQueue
    receives: FakeQueue
    struct: abi.QueuePairStruct
    state: int = 0
    qkey: int = 0
    peer: int = 0
    groups: set[bytes] = field(default_factory=set)
    rows: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Posted receives: work id, address, bytes."""

    def break_(self) -> None:
        """As the NIC does when something goes wrong: what is posted comes back flushed."""
        self.state = abi.QPS_ERR
        while self.rows:
            self.receives.add(self.rows.popleft()[0], _FLUSHED, 0, self.number)


class Wire:
    """All NICs that reach each other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: where READs are carried out."""
        self.loop = loop
        self.lock = threading.RLock()
        self.numbers = itertools.count(1)
        self.pairs: dict[int, FakePair] = {}
        """By number."""
        self.nics: list[FakeNic] = []
        self.regions: dict[int, tuple[int, int]] = {}
        """Address and size, by key."""

    def reaches(self, key: int, address: int, size_bytes: int) -> bool:
        """Whether a region has these bytes."""
        start, registered_bytes = self.regions.get(key, (0, 0))
        return start <= address <= address + size_bytes <= start + registered_bytes

    def nic(self, address: str) -> FakeNic:
        """The NIC with this address that was opened last."""
        return next(nic for nic in reversed(self.nics) if nic.address == address)


class FakeNic:
    """libibverbs, as one port sees it: the `library` of an `RdmaPort`."""

    def __init__(self, wire: Wire, address: str) -> None:
        self.address = address
        self.wire = wire
        self.dscp = 0
        """Of what it sends."""
        self.lost = 0
        """Messages for which no receive was posted."""
        self.refuses_pairs = False
        self.refuses_posts = False
        self.refuses_regions_above = math.inf
        """Bytes."""
        self.holds_sends = False
        """What is posted stays in the queue until `release`."""
        self._held: deque[tuple[FakePair, int, int]] = deque()
        self.qkey_violations = 0
        self.posts = 0
        """Calls that posted receives."""
        self._handles: dict[int, Any] = {}
        self._keep: dict[int, Any] = {}
        self._poll, self._notify = abi.PollCq(self._poll_cq), abi.RequestNotify(self._request_notify)
        self._send, self._receive = abi.Post(self._post_send), abi.Post(self._post_recv)
        pointers = {"poll_cq": self._poll, "req_notify_cq": self._notify}
        pointers |= {"post_send": self._send, "post_recv": self._receive}
        self._context = abi.Context(**{name: ctypes.cast(call, c_void_p) for name, call in pointers.items()})
        self.ibv_get_cq_event = _GET_EVENT(self._get_cq_event)
        self.ibv_ack_cq_events = _ACKNOWLEDGE(lambda _queue, _count: None)

    @property
    def context(self) -> int:
        return ctypes.addressof(self._context)

    def pairs(self, kind: int = abi.QPT_UD, *, receives: bool | None = None) -> list[FakePair]:
        """Its queue pairs; `receives`: those that have posted receives, or not."""
        with self.wire.lock:
            its = [pair for pair in self.wire.pairs.values() if pair.number in self._keep and pair.kind == kind]
            return [pair for pair in its if receives is None or bool(pair.groups) == receives]

    def deliver(self, message: bytes, source: str, *, dscp: int = 0, group: bytes | None = None, qkey: int = 0) -> None:
        """A UD message comes in: for a group, or for all queue pairs in any."""
        with self.wire.lock:
            for pair in self.pairs(receives=True):
                if group is not None and group not in pair.groups:
                    continue
                if group is not None and qkey != pair.qkey:
                    self.qkey_violations += 1
                elif not pair.rows:
                    self.lost += 1
                else:
                    work_id, address, room = pair.rows.popleft()
                    head = bytearray(abi.GRH_BYTES)
                    head[_IP_AT] = 0x45
                    head[_IP_AT + 1] = dscp << 2
                    head[_IP_AT + 12 : _IP_AT + 16] = socket.inet_aton(source)
                    head[_IP_AT + 16 :] = (group or min(pair.groups))[-4:]
                    whole = bytes(head) + message
                    ctypes.memmove(address, whole[:room], min(room, len(whole)))
                    pair.receives.add(work_id, abi.WC_SUCCESS, len(whole), pair.number)

    @property
    def held_count(self) -> int:
        """Work requests that wait for `release`."""
        with self.wire.lock:
            return len(self._held)

    def release(self, count: int, status: int = abi.WC_SUCCESS) -> None:
        """Complete this many of the held sends; the last of them with `status`."""
        with self.wire.lock:
            for left in range(count, 0, -1):
                pair, work_id, flags = self._held.popleft()
                its = status if left == 1 else abi.WC_SUCCESS
                if its != abi.WC_SUCCESS or flags & abi.SEND_SIGNALED:
                    pair.sends.add(work_id, its, 0, pair.number)

    # ------------------------------------------------------------------ the fast path

    def _poll_cq(self, pointer: int, room: int, records: int) -> int:
        with self.wire.lock:
            queue = self._handles[pointer]
            if queue.broken:
                return -1
            count = min(room, len(queue.completions))
            for place in range(count):
                work_id, status, size_bytes, pair = queue.completions.popleft()
                words = (ctypes.c_uint32 * 12).from_address(records + place * abi.WC.itemsize)
                words[0], words[1], words[2] = work_id & 0xFFFF_FFFF, work_id >> 32, status
                words[5], words[7] = size_bytes, pair
            return count

    def _request_notify(self, pointer: int, _solicited: int) -> int:
        with self.wire.lock:
            self._handles[pointer].armed = True
            return 0

    def _get_cq_event(self, channel: int, queue: Any, _context: Any) -> int:
        with self.wire.lock:
            struct = abi.CompChannelStruct.from_address(channel)
            try:
                os.eventfd_read(struct.fd)
            except BlockingIOError:
                ctypes.set_errno(errno.EAGAIN)
                return -1
            queue[0] = next(one.number for one in self._handles.values() if getattr(one, "fd", -1) == struct.fd)
            return 0

    def _post_recv(self, pointer: int, first: int, _bad: Any) -> int:
        with self.wire.lock:
            pair = self._handles[pointer]
            self.posts += 1
            for _, wr, pieces in _chain(first):
                if pair.state == abi.QPS_ERR:
                    pair.receives.add(wr.work_id, _FLUSHED, 0, pair.number)
                else:
                    pair.rows.append((wr.work_id, pieces[0].address, pieces[0].length))
            return 0

    def _post_send(self, pointer: int, first: int, _bad: Any) -> int:
        with self.wire.lock:
            pair = self._handles[pointer]
            if self.refuses_posts:
                return errno.ENOMEM
            for address, wr, pieces in _chain(first):
                if self.holds_sends:
                    self._held.append((pair, wr.work_id, wr.flags))
                    continue
                words = tuple(_SEND_WORDS.from_address(address))
                if pair.kind == abi.QPT_RC:
                    read = pair, wr.work_id, words, (pieces[0].address, pieces[0].length, pieces[0].lkey)
                    self.wire.loop.call_soon_threadsafe(self._carry_out, *read)
                    continue
                status = _FLUSHED if pair.state == abi.QPS_ERR else self._cast(words, pieces)
                if status != abi.WC_SUCCESS or wr.flags & abi.SEND_SIGNALED:
                    pair.sends.add(wr.work_id, status, 0, pair.number)
            return 0

    def _carry_out(self, pair: FakePair, work_id: int, words: Any, local: tuple[int, int, int]) -> None:
        """A READ, unless its queue pair is gone."""
        with self.wire.lock:
            if pair.number not in self.wire.pairs:
                return
            status = _FLUSHED if pair.state == abi.QPS_ERR else self._read(pair, words, local)
            pair.sends.add(work_id, status, 0, pair.number)
            if status != abi.WC_SUCCESS:
                pair.state = abi.QPS_ERR

    def _cast(self, words: Any, pieces: Any) -> int:
        """Raises no error: nobody knows who is in a group."""
        if not all(self.wire.reaches(piece.lkey, piece.address, piece.length) for piece in pieces):
            return _LOCAL_PROTECTION_ERROR
        handle, qkey = words[5], words[6] >> 32
        message = b"".join(ctypes.string_at(piece.address, piece.length) for piece in pieces)
        for nic in self.wire.nics:
            nic.deliver(message, self.address, dscp=self.dscp, group=self._handles[handle], qkey=qkey)
        return abi.WC_SUCCESS

    def _read(self, pair: FakePair, words: Any, local: tuple[int, int, int]) -> int:
        remote, key, (address, size_bytes, local_key) = words[5], words[6] & 0xFFFF_FFFF, local
        if pair.peer not in self.wire.pairs:
            return _RETRY_EXCEEDED
        if not self.wire.reaches(local_key, address, size_bytes):
            return _LOCAL_PROTECTION_ERROR
        if not self.wire.reaches(key, remote, size_bytes):
            return _ACCESS_ERROR
        ctypes.memmove(address, remote, size_bytes)
        return abi.WC_SUCCESS

    # ------------------------------------------------------------------ making and ending things

    def _made(self, thing: Any) -> int:
        """A pointer that is none: only good for giving it back."""
        with self.wire.lock:
            number = 0x1000 + next(self.wire.numbers)
            self._handles[number] = thing
            return number

    def ibv_alloc_pd(self, _context: int) -> int:
        return self._made(None)

    def ibv_dealloc_pd(self, pointer: int) -> int:
        del self._handles[pointer]
        return 0

    def ibv_close_device(self, _context: int) -> int:
        with self.wire.lock:
            self.wire.nics.remove(self)
        assert not self._handles, "everything made on it has to be gone"
        return 0

    def ibv_reg_mr(self, _pd: int, address: int, size_bytes: int, _access: int) -> Any:
        if size_bytes > self.refuses_regions_above:
            ctypes.set_errno(errno.ENOMEM)
            return None
        with self.wire.lock:
            key = next(self.wire.numbers)
            self.wire.regions[key] = address, size_bytes
        return ctypes.pointer(abi.MemoryRegionStruct(lkey=key, rkey=key, length=size_bytes))

    def ibv_dereg_mr(self, region: Any) -> int:
        with self.wire.lock:
            del self.wire.regions[region.contents.lkey]
        return 0

    def ibv_create_comp_channel(self, _context: int) -> Any:
        return ctypes.pointer(abi.CompChannelStruct(fd=os.eventfd(0, os.EFD_NONBLOCK)))

    def ibv_destroy_comp_channel(self, channel: Any) -> int:
        os.close(channel.contents.fd)
        return 0

    def ibv_create_cq(self, _context: int, _entries: int, _mine: None, channel: Any, _vector: int) -> int:
        queue = FakeQueue(0, channel.contents.fd)
        queue.number = self._made(queue)
        return queue.number

    def ibv_destroy_cq(self, pointer: int) -> int:
        del self._handles[pointer]
        return 0

    def ibv_create_qp(self, _pd: int, attr: Any) -> Any:
        if self.refuses_pairs:
            ctypes.set_errno(errno.ENOMEM)
            return None
        init = given(attr, abi.QpInitAttr)
        with self.wire.lock:
            number = next(self.wire.numbers)
            struct = abi.QueuePairStruct(qp_num=number)
            queues = self._handles[init.send_cq], self._handles[init.recv_cq]
            pair = FakePair(number, init.qp_type, *queues, struct)
            self.wire.pairs[number] = self._handles[ctypes.addressof(struct)] = self._keep[number] = pair
        return ctypes.pointer(struct)

    def ibv_modify_qp(self, pointer: Any, attr: Any, mask: int) -> int:
        pair, values = self._handles[ctypes.addressof(pointer.contents)], given(attr, abi.QpAttr)
        with self.wire.lock:
            pair.state = values.qp_state
            if mask & abi.QP_QKEY:
                pair.qkey = values.qkey
            if mask & abi.QP_DEST_QPN:
                pair.peer = values.dest_qp_num
            if pair.state == abi.QPS_ERR:
                pair.break_()
        return 0

    def ibv_destroy_qp(self, pointer: Any) -> int:
        with self.wire.lock:
            pair = self._handles.pop(ctypes.addressof(pointer.contents))
            del self.wire.pairs[pair.number], self._keep[pair.number]
        return 0

    def ibv_attach_mcast(self, pointer: Any, gid: bytes, _lid: int) -> int:
        self._handles[ctypes.addressof(pointer.contents)].groups.add(gid)
        return 0

    def ibv_detach_mcast(self, pointer: Any, gid: bytes, _lid: int) -> int:
        self._handles[ctypes.addressof(pointer.contents)].groups.remove(gid)
        return 0

    def ibv_create_ah(self, _pd: int, attr: Any) -> int:
        return self._made(bytes(given(attr, abi.AhAttr).dgid))

    def ibv_destroy_ah(self, pointer: int) -> int:
        del self._handles[pointer]
        return 0

    def ibv_query_port(self, _context: int, _port: int, attr: Any) -> int:
        given(attr, abi.PortAttr).qkey_viol_cntr = self.qkey_violations
        return 0


def _chain(first: int | None) -> Iterator[tuple[int, _Wr, Any]]:
    """Address, beginning and pieces of each work request."""
    while first:
        wr = _Wr.from_address(first)
        yield first, wr, (_Sge * wr.pieces_count).from_address(wr.pieces)
        first = wr.next


def open_port(wire: Wire, address: str) -> RdmaPort:
    """A port on the wire."""
    nic = FakeNic(wire, address)
    facts = PortFacts("fake0", 1, 3, gid_of(address), 4096, 16, QUEUE_ENTRIES_MAX, QUEUE_ENTRIES_MAX, True)
    with wire.lock:
        wire.nics.append(nic)
    return RdmaPort(nic, nic.context, facts)  # type: ignore[arg-type]


@contextmanager
def in_place_of_real_ones() -> Iterator[Wire]:
    """Every address has a NIC here, until the end of a `with` block."""
    wire = Wire(asyncio.get_running_loop())

    def opened(address: str, _device: str = "") -> RdmaPort:
        if not address:
            raise VerbsError("no address")
        return open_port(wire, address)

    with mock.patch.object(RdmaPort, "open", opened):
        yield wire
