"""A host on the fabric against what readers get: forged segments, repeated ones, NAKs, NOTICEs, leaders that lie,
and a holder that lies. The agents and their sockets are real; the attacker has sockets with any address it likes."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from hostagent.core.events import MemberGiven
from kvclient.client import Status
from kvproto.ids import Member, format_address, parse_address
from kvproto.session.timing import LIVENESS
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op
from kvproto.wire.data import ChunkFraming, Fabric
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key

pytestmark = pytest.mark.security

SEGMENT = 4096
SWITCH = "127.79.0.77"
"""An address that belongs to nobody: the attacker speaks as the switch, and as the holder's data address."""
DEADLINE_S = 20.0
BOUND_S = 5.0
"""A few windows of liveness, and a read; the machine may be busy."""


class Attacker:
    """Sends datagrams from any address of the loopback network."""

    def __init__(self, made: Cluster, victim: int) -> None:
        self._made = made
        self._to = made.agents[victim].config.data.address
        self._sockets: dict[str, socket.socket] = {}
        self._framings: dict[tuple[bytes, str], ChunkFraming] = {}

    def _socket(self, source: str) -> socket.socket:
        if source not in self._sockets:
            sock = self._sockets[source] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((source, 0))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(source))
        return self._sockets[source]

    def cast(self, chunk: bytes, size_bytes: int, segment: int, source: str) -> None:
        """A segment with wrong bytes and everything else right, the ICRC included."""
        sock = self._socket(source)
        if (chunk, source) not in self._framings:
            garbage = memoryview(bytearray(random.Random(7).randbytes(size_bytes)))
            self._framings[chunk, source] = ChunkFraming(
                chunk, garbage, Fabric(), parse_address(source), sock.getsockname()[1]
            )
        datagram = self._framings[chunk, source].datagram(segment)
        sock.sendto(datagram, (format_address(Fabric().group), self._made.cast_port))

    def say(self, message: Control, source: str) -> None:
        """A control datagram."""
        self._socket(source).sendto(message.encode(), (self._to, self._made.control_port))

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()


class SlowWay:
    """What lies between a reader and a holder's read endpoint; keeps all bytes back until `opened`."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.79.0.99", 0))
        self.opened = threading.Event()
        self.endpoint = f"127.79.0.99:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := one.recv(65536):
                self.opened.wait(DEADLINE_S)
                other.sendall(part)

    def close(self) -> None:
        self.opened.set()
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


class Scene:
    """Two agents, a chunk at the first, a fetch at the second, and somebody who means harm."""

    def __init__(self, made: Cluster, size_bytes: int = MIB, data_address: str = "") -> None:
        self.made = made
        self.body = random.Random(size_bytes).randbytes(size_bytes)
        made.client(0).put(key(1), None, self.body)
        made.publish(1, 0)
        self.holder = made.agents[0].config.data.address
        self.way = SlowWay(made.agents[0].facts.read_endpoint)
        changes = {"address": parse_address(data_address), "member": 0} if data_address else {}
        made.tell(nodes=(dataclasses.replace(made.node(0), read_endpoint=self.way.endpoint, **changes),))
        self.reader = made.agents[1]
        self.attacker = Attacker(made, 1)
        self.found: tuple[Status, bytes] | None = None
        self.took_s = 0.0
        self._thread = threading.Thread(target=self._fetch)

    def _fetch(self) -> None:
        started = time.monotonic()
        with self.made.client(1).fetch([key(1)], deadline_s=DEADLINE_S) as got:
            self.found = got.outcome, b"".join(map(bytes, got.views))
        self.took_s = time.monotonic() - started

    def begin(self) -> None:
        """The reader asks; from now on it takes casts of the chunk."""
        self._thread.start()
        self.made.until(lambda: self.reader.core.wanted(key(1)) is not None)

    def missing(self, segment: int) -> bool:
        """Whether a segment has not come; nothing of a chunk that nobody wants is missing."""
        wanted = self.made.call(lambda: self.reader.core.wanted(key(1)))
        return wanted is not None and bool(wanted.missing[segment])

    def end(self) -> None:
        """Right bytes, before long, and nobody honest is blamed."""
        self._thread.join(DEADLINE_S + 10)
        assert self.found == (Status.OK, self.body)
        stats = self.made.client(1).stats()
        assert stats["checksum_failures_total"] == 0, "the honest holder is blamed"

    def close(self) -> None:
        self.way.close()
        if self._thread.ident is not None:
            self._thread.join(DEADLINE_S + 10)
        self.attacker.close()


@pytest.fixture
def pair() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


@contextlib.contextmanager
def scene(made: Cluster, **options: str) -> Iterator[Scene]:
    it = Scene(made, **options)  # type: ignore[arg-type]
    try:
        yield it
    finally:
        it.close()


@pytest.mark.parametrize("as_holder", [True, False], ids=["the holder's address", "another address"])
def test_a_forged_segment_costs_its_piece_and_nothing_else(pair: Cluster, as_holder: bool) -> None:
    with scene(pair) as it:
        it.begin()
        source, last = it.holder if as_holder else SWITCH, len(it.body) // SEGMENT - 1
        started = time.monotonic()
        while it.missing(last):
            assert time.monotonic() - started < DEADLINE_S / 2, "the attack takes place"
            it.attacker.cast(key(1), len(it.body), last, source)
        it.way.opened.set()
        it.end()
        counters = it.reader.transport.counters
        assert counters.dropped["segment_wrong"] == 64 * 1024 // SEGMENT
        assert counters.read_bytes_received < len(it.body) + 2 * 64 * 1024 + 4096


def test_garbage_in_every_segment_is_wrong_bytes_for_nobody(pair: Cluster) -> None:
    with scene(pair) as it:
        it.begin()
        for segment in range(len(it.body) // SEGMENT):
            it.attacker.cast(key(1), len(it.body), segment, it.holder)
        it.way.opened.set()
        it.end()


def test_naks_with_the_holders_address_are_no_evidence(pair: Cluster) -> None:
    with scene(pair, data_address=SWITCH) as it:
        pair.call(partial(it.reader.handle, MemberGiven(Member(1))))
        it.begin()
        pair.until(lambda: it.reader.transport.counters.control_sent > 0)
        for _ in range(50):
            it.attacker.say(Control(Op.NAK, key(1), len(it.body) // SEGMENT), SWITCH)
        it.way.opened.set()
        it.end()


@pytest.mark.parametrize("repeats", [False, True], ids=["says that it leads", "and repeats a segment"])
def test_who_only_claims_to_lead_is_not_waited_for(pair: Cluster, repeats: bool) -> None:
    """The reader asks a switch to join; somebody answers in its place that another member leads, again and again."""
    with scene(pair, data_address=SWITCH) as it:
        pair.call(partial(it.reader.handle, MemberGiven(Member(1))))
        it.way.opened.set()
        over = threading.Event()
        notice = Control(
            Op.NOTICE,
            key(1),
            len(it.body) // SEGMENT,
            flags=Flag.JOINED,
            member=Member(2),
            members=0b110,
            tag=TAG_LEADS,
        )

        def harm() -> None:
            while not over.wait(0.002):
                it.attacker.say(notice, SWITCH)
                if repeats:
                    it.attacker.cast(key(1), len(it.body), 0, SWITCH)

        lying = threading.Thread(target=harm)
        lying.start()
        try:
            it.begin()
            it.end()
        finally:
            over.set()
            lying.join()
        assert it.reader.transport.counters.control_received > 10, "the lies are heard"
        assert LIVENESS.ceiling_ns / 1e9 / 4 < it.took_s < BOUND_S, "they are believed for a while, and not for long"


def test_a_holder_that_lies_is_found_out_and_the_other_one_serves() -> None:
    with cluster(3) as made:
        body = random.Random(5).randbytes(MIB)
        for number in (0, 1):
            made.client(number).put(key(1), None, body)
        made.publish(1, 0, 1)
        chunk = made.agents[0].core.pool.find(key(1))
        assert chunk is not None
        made.agents[0].memory.view(chunk.offset + 70_000, 1)[0] ^= 1
        made.tell(nodes=(dataclasses.replace(made.node(1), draining=True),))  # so that the liar is asked first
        client = made.client(2)
        with client.fetch([key(1)], deadline_s=DEADLINE_S) as got:
            assert (got.outcome, [bytes(view) for view in got.views]) == (Status.OK, [body])
        assert client.stats()["checksum_failures_total"] == 1, "it is blamed for what it answered itself"
        assert made.agents[2].transport.counters.read_bytes_received < len(body) + 3 * 64 * 1024, "the rest is kept"
