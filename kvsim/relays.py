"""Relay links between simulated hosts: messages come in order, some time later, and never get lost; pieces go over the
hosts' connections, as all reads do."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from hostagent.core import effects, events
from hostagent.tree import PIECE_BYTES
from kvproto.ids import Address, NodeId, ReadId, format_address
from kvproto.session.relay.relay_commands import AbortRun, EndChild, LeaveParent, TellChild, TellParent
from kvproto.wire.relay_messages import Decoder, Message, encode
from kvsim.engine import Engine
from kvsim.reads import Reads

LINK_NS: Final = 200_000
"""From one process to the other."""


def endpoint_of(address: Address) -> str:
    """Where a host answers reads."""
    return f"{format_address(address)}:4790"


class Host(Protocol):
    """Whose links these are."""

    dead: bool
    address: Address
    directory: dict[NodeId, Address]

    def tell(self, event: events.Event) -> None: ...


class RelayWay:
    """Of one host."""

    def __init__(self, host: Host, engine: Engine, segment_bytes: int, ways: dict[str, "RelayWay"]) -> None:
        """`ways`: of all hosts, by their endpoints."""
        self._host = host
        self._engine = engine
        self._segment_bytes = segment_bytes
        self._ways = ways
        self._children: dict[str, int] = {}
        self._last_child = 0
        self.parents: set[str] = set()
        self.endpoint = endpoint_of(host.address)
        ways[self.endpoint] = self

    def carriers(self, reads: Reads) -> Mapping[type, Callable[[Any], None]]:
        """What carries out which effect, in this life of the process."""
        return {
            TellParent: lambda one: self._tell_parent(one.endpoint, one.message),
            TellChild: lambda one: self._tell_child(one.link, one.message),
            LeaveParent: lambda one: self._leave(one.endpoint),
            EndChild: lambda _: None,
            effects.RelayRead: partial(self._read, reads),
            AbortRun: lambda one: reads.abort_run(one.read),
            effects.ShowPieces: lambda _: None,
            effects.HidePieces: lambda _: None,
        }

    def end(self) -> None:
        """The process dies: its links end."""
        for endpoint in list(self.parents):
            self._leave(endpoint)
        for endpoint in list(self._children):
            self._lose(endpoint)

    def _tell_parent(self, endpoint: str, message: Message) -> None:
        self.parents.add(endpoint)
        way = self._ways[endpoint]
        self._later(lambda: way.from_child(self.endpoint, message))

    def from_child(self, endpoint: str, message: Message) -> None:
        """A child says something; a dead process answers with a reset."""
        child = self._ways[endpoint]
        if self.endpoint not in child.parents:
            return
        if self._host.dead:
            self._lose(endpoint)
            return
        if endpoint not in self._children:
            self._last_child += 1
            self._children[endpoint] = self._last_child
        self._host.tell(events.RelayHeard(self._children[endpoint], _sent(message)))

    def _tell_child(self, link: int, message: Message) -> None:
        endpoint = next((one for one, number in self._children.items() if number == link), None)
        if endpoint is not None:
            child = self._ways[endpoint]
            self._later(lambda: child.from_parent(self.endpoint, message))

    def from_parent(self, endpoint: str, message: Message) -> None:
        """A parent says something."""
        if endpoint in self.parents:
            self._host.tell(events.RelayHeard(endpoint, _sent(message)))

    def _leave(self, endpoint: str) -> None:
        self.parents.discard(endpoint)
        self._ways[endpoint].child_left(self.endpoint)

    def child_left(self, endpoint: str) -> None:
        """A child has ended its link."""
        number = self._children.pop(endpoint, None)
        if number is not None:
            self._later(lambda: self._host.tell(events.RelayHeard(number, lost=True)))

    def _lose(self, endpoint: str) -> None:
        self._children.pop(endpoint, None)
        child = self._ways[endpoint]
        child.parents.discard(self.endpoint)
        self._later(lambda: child.tell_lost(self.endpoint))

    def tell_lost(self, endpoint: str) -> None:
        """A link to a parent has ended."""
        self._host.tell(events.RelayHeard(endpoint, lost=True))

    def _later(self, call: Callable[[], None]) -> None:
        self._engine.at(self._engine.now_ns + LINK_NS, call)

    def _read(self, reads: Reads, effect: effects.RelayRead) -> None:
        run, chunk = effect.run, effect.chunk
        per_piece = PIECE_BYTES // self._segment_bytes
        first = run.first * per_piece
        count = min(run.count * per_piece, chunk.size_bytes // self._segment_bytes - first)
        names = {endpoint_of(address): name for name, address in self._host.directory.items()}
        reads.start_run(
            run,
            effects.StartRead(
                ReadId(0),
                names[run.endpoint],
                run.endpoint,
                chunk,
                first,
                count,
                first * self._segment_bytes,
                count * self._segment_bytes,
                count * self._segment_bytes,
                self._segment_bytes,
            ),
        )


def _sent(message: Message) -> tuple[Message, ...]:
    """As it comes out of a stream."""
    return tuple(Decoder().feed(encode(message)))
