"""Relays joined by links that carry so many bytes a second each way: the cores ship, the network is a model.

Hosts may stand in racks, each with a link to the others.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from kvchunk.ids import ChunkKey
from kvproto.ids import ReadId
from kvproto.limits import MS
from kvproto.session.relay import relay_commands as commands
from kvproto.session.relay.pieces import pieces_of
from kvproto.session.relay.relay_node import Relay
from kvproto.wire.relay_messages import Decoder, Message, encode

PIECE_BYTES = 64 * 1024
DELAY_NS = 200_000
"""From host to host, and of an interpreter."""


def key_of(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


@dataclass(eq=False)
class Host:
    """A node of the network."""

    name: str
    up_bytes_s: float
    down_bytes_s: float
    relay: Relay
    whole: dict[ChunkKey, int] = field(default_factory=dict)
    memory: dict[ChunkKey, list[int]] = field(default_factory=dict)
    """What each piece holds: 1 is right."""
    gave_up: set[ChunkKey] = field(default_factory=set)
    blamed: list[str] = field(default_factory=list)
    reads: dict[ReadId, tuple[ChunkKey, int, int]] = field(default_factory=dict)
    sent_pieces: int = 0
    up_free_ns: int = 0
    down_free_ns: int = 0
    queues: dict[str, list[tuple[Host, commands.ReadRun]]] = field(default_factory=dict)
    is_sending: bool = False
    is_dead: bool = False
    is_stalled: bool = False
    lies: bool = False
    ended_ns: int = 0
    rack: str = ""


@dataclass(eq=False)
class CoreLink:
    """Of one rack, one way."""

    free_ns: int = 0
    pieces: dict[ChunkKey, int] = field(default_factory=dict)
    """That it carried."""

    @property
    def total(self) -> int:
        return sum(self.pieces.values())


class Network:
    """Runs until nothing happens any more."""

    def __init__(self, core_bytes_s: float = 0.0) -> None:
        """`core_bytes_s`: of each rack's link to the others, each way."""
        self.now_ns = 0
        self._core_bytes_s = core_bytes_s
        self.core_up: defaultdict[str, CoreLink] = defaultdict(CoreLink)
        self.core_down: defaultdict[str, CoreLink] = defaultdict(CoreLink)
        self.cut: set[str] = set()
        """Racks whose link carries nothing any more."""
        self.hosts: dict[str, Host] = {}
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = count()
        self._links: dict[tuple[str, str], int] = {}
        self._link_numbers = count(1)
        self._gives: dict[tuple[str, ReadId], str] = {}
        """Whom each read is asked of."""

    def host(self, name: str, up: float, down: float | None = None, rack: str = "") -> Host:
        def whole_pieces(key: ChunkKey) -> int:
            return host.whole.get(key, 0)

        relay = Relay(
            name,
            PIECE_BYTES,
            whole_pieces=whole_pieces,
            leaves=lambda key: bytes(32 * host.whole[key]),
            accepts=lambda _key, leaves: not any(leaves),
            may_give=lambda endpoint: endpoint in self.hosts,
            rack_of=lambda endpoint: rack if endpoint == name else self.hosts[endpoint].rack,
        )
        host = self.hosts[name] = Host(name, up, up if down is None else down, relay, rack=rack)
        return host

    def at(self, at_ns: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_ns, next(self._serial), call))

    def fetch(self, host: Host, chunks: Sequence[tuple[ChunkKey, int]], keepers: Sequence[str], at_ns: int = 0) -> None:
        def begin() -> None:
            for key, pieces in chunks:
                host.memory[key] = [0] * pieces
            self.carry_out(host, host.relay.want([(key, pieces, keepers) for key, pieces in chunks], self.now_ns))

        self.at(at_ns, begin)

    def run(self, until_ns: int = 60_000 * MS) -> None:
        while self._agenda and self._agenda[0][0] <= until_ns:
            self.now_ns, _, call = heapq.heappop(self._agenda)
            call()

    def kill(self, host: Host) -> None:
        host.is_dead = True
        for child, parent in list(self._links):
            if host.name in (child, parent):
                self._end_link(child, parent)
        for other in self.hosts.values():
            for read in list(other.reads):
                if self._gives.get((other.name, read)) == host.name:
                    self._fail(other, read)

    def _fail(self, host: Host, read: ReadId) -> None:
        def end() -> None:
            if host.reads.pop(read, None) is not None:
                self.carry_out(host, host.relay.read_ended(read, None, self.now_ns))

        self.at(self.now_ns + DELAY_NS, end)

    def _end_link(self, child: str, parent: str) -> None:
        link = self._links.pop((child, parent), None)
        if link is None:
            return
        reader, giver = self.hosts[child], self.hosts[parent]
        self.at(
            self.now_ns + DELAY_NS,
            lambda: self.carry_out(reader, reader.relay.parent_lost(parent, self.now_ns)),
        )
        self.at(self.now_ns + DELAY_NS, lambda: self.carry_out(giver, giver.relay.child_lost(link, self.now_ns)))

    def carry_out(self, host: Host, made: Sequence[commands.RelayCommand]) -> None:
        if host.is_dead:
            return
        for command in made:
            match command:
                case commands.TellParent(endpoint, message):
                    self._tell(host, endpoint, message)
                case commands.TellChild(link, message):
                    ends = next((ends for ends, number in self._links.items() if number == link), None)
                    if ends is not None:
                        self._tell_child(ends, message)
                case commands.LeaveParent(endpoint):
                    self._end_link(host.name, endpoint)
                case commands.ReadRun():
                    self._read(host, command)
                case commands.AbortRun(read):
                    host.reads.pop(read, None)
                case commands.Blamed(endpoint, _):
                    host.blamed.append(endpoint)
                case commands.EndChild(link):
                    raise AssertionError(f"{host.name} ends link {link}")
                case commands.Whole(key):
                    assert all(piece == 1 for piece in host.memory[key])
                    host.whole[key] = len(host.memory[key])
                    host.ended_ns = self.now_ns
                case commands.GaveUp(key):
                    host.gave_up.add(key)
        wake_ns = host.relay.wake_ns
        if wake_ns is not None:
            self.at(max(wake_ns, self.now_ns), lambda: self._wake(host, wake_ns))

    def _wake(self, host: Host, wake_ns: int) -> None:
        if host.relay.wake_ns == wake_ns and not host.is_dead:
            self.carry_out(host, host.relay.handle_timer(self.now_ns))

    def _tell(self, host: Host, endpoint: str, message: Message) -> None:
        ends = host.name, endpoint
        parent = self.hosts[endpoint]
        if parent.is_dead:
            self.at(
                self.now_ns + DELAY_NS,
                lambda: self.carry_out(host, host.relay.parent_lost(endpoint, self.now_ns)),
            )
            return
        link = self._links.setdefault(ends, next(self._link_numbers))

        def arrive() -> None:
            if self._links.get(ends) == link and not parent.is_dead and not self._is_cut(host, parent):
                (come,) = Decoder().feed(encode(message))
                self.carry_out(parent, parent.relay.heard_child(link, [come], self.now_ns))

        self.at(self.now_ns + DELAY_NS, arrive)

    def _tell_child(self, ends: tuple[str, str], message: Message) -> None:
        child, endpoint = self.hosts[ends[0]], ends[1]

        def arrive() -> None:
            if ends in self._links and not child.is_dead and not self._is_cut(child, self.hosts[endpoint]):
                (come,) = Decoder().feed(encode(message))
                self.carry_out(child, child.relay.heard_parent(endpoint, [come], self.now_ns))

        self.at(self.now_ns + DELAY_NS, arrive)

    # --- pieces: each host's uplink serves its readers in turns, each downlink takes one after the other

    def _read(self, host: Host, read: commands.ReadRun) -> None:
        host.reads[read.read] = read.key, read.first, read.count
        self._gives[host.name, read.read] = read.endpoint
        giver = self.hosts[read.endpoint]
        if giver.is_dead:
            self._fail(host, read.read)
            return
        self.at(self.now_ns + DELAY_NS, lambda: self._queue(giver, host, read))

    def _queue(self, giver: Host, reader: Host, read: commands.ReadRun) -> None:
        if self._is_cut(giver, reader):
            return
        proven = giver.relay.proven_pieces(read.key)
        part = pieces_of(read.first, read.count)
        assert read.key in giver.whole or (proven is not None and proven[1] & part == part), (
            "asked for what is not there"
        )
        giver.queues.setdefault(reader.name, []).append((reader, read))
        self._send(giver)

    def _send(self, giver: Host) -> None:
        if giver.is_sending or giver.is_dead or giver.is_stalled or not giver.queues:
            return
        name = next(iter(giver.queues))
        queue = giver.queues.pop(name)
        reader, read = queue.pop(0)
        if queue:
            giver.queues[name] = queue
        giver.is_sending = True
        giver.sent_pieces += read.count
        sent_ns = self.now_ns + int(read.count * PIECE_BYTES / giver.up_bytes_s * 1e9)
        core_ns = self._cross(giver, reader, read, sent_ns)
        begun_ns = max(self.now_ns, reader.down_free_ns)
        reader.down_free_ns = come_ns = max(
            core_ns, begun_ns + int(read.count * PIECE_BYTES / reader.down_bytes_s * 1e9)
        )

        def sent() -> None:
            giver.is_sending = False
            self._send(giver)

        self.at(sent_ns, sent)
        self.at(come_ns + DELAY_NS, lambda: self._come(giver, reader, read))

    def _cross(self, giver: Host, reader: Host, read: commands.ReadRun, sent_ns: int) -> int:
        """When what leaves the giver then has crossed the core."""
        if giver.rack == reader.rack:
            return sent_ns
        took_ns = int(read.count * PIECE_BYTES / self._core_bytes_s * 1e9)
        for link in (self.core_up[giver.rack], self.core_down[reader.rack]):
            link.pieces[read.key] = link.pieces.get(read.key, 0) + read.count
            link.free_ns = sent_ns = max(sent_ns, link.free_ns + took_ns)
        return sent_ns

    def _is_cut(self, one: Host, other: Host) -> bool:
        return one.rack != other.rack and bool({one.rack, other.rack} & self.cut)

    def _come(self, giver: Host, reader: Host, read: commands.ReadRun) -> None:
        if self._is_cut(giver, reader):
            return
        if reader.is_dead or giver.is_dead or reader.reads.pop(read.read, None) is None:
            return
        value = 2 if giver.lies else 1
        for piece in range(read.first, read.first + read.count):
            assert reader.memory[read.key][piece] != 1, "written over"
            reader.memory[read.key][piece] = value
        self.carry_out(reader, reader.relay.read_ended(read.read, value == 1, self.now_ns))
