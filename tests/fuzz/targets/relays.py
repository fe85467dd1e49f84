"""Relay links: a node that gathers and passes on, told anything by a parent, a keeper and a child."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from kvchunk.ids import ChunkKey
from kvproto.errors import WireError
from kvproto.ids import ReadId
from kvproto.session.relay.relay_commands import AbortRun, GaveUp, ReadRun, RelayCommand, Whole
from kvproto.session.relay.relay_node import Relay
from kvproto.wire.relay_messages import (
    Decoder,
    Drop,
    Gone,
    Hello,
    Leaves,
    Message,
    Peers,
    Rate,
    Room,
    Run,
    RunKind,
    Want,
    encode,
)
from tests.fuzz.target import Case, check

_PIECES = 8
_HERE, _WANTED = ChunkKey(b"h" * 16), ChunkKey(b"w" * 16)
_RIGHT = bytes(32 * _PIECES)
_KEEPER, _PEER = "10.0.0.1:4790", "10.0.0.2:4790"
_TURN_NS = 20_000_000


def message(random: Random) -> Message:
    """A message; its numbers may be impossible."""
    number, first, count = random.choice((0, 1, 2, 9)), random.randrange(10), random.randrange(1, 10)
    return random.choice(
        (
            Hello("10.0.0.3:4790"),
            Want(number, random.choice((_HERE, _WANTED, ChunkKey(bytes(16)))), _PIECES, random.random() < 0.5),
            Drop(number),
            Room(random.choice((0, 1, 5, 1 << 31))),
            Run(random.choice(list(RunKind)), number, first, count),
            Run(RunKind.GRANT, 1, random.randrange(_PIECES), 1),
            Run(RunKind.HAVE, 1, 0, _PIECES),
            Rate(random.choice((0, 1, 12_500_000)), random.random() < 0.5),
            Peers(1, (_PEER, random.choice((_KEEPER, "10.9.9.9:1")))),
            Leaves(1, random.choice((_RIGHT, b"x", b""))),
            Gone(number),
        )
    )


class Relays:
    """A step: a byte that says who speaks (0 the keeper, 1 a peer, 2 a child), whether a read ends right, wrong or not
    at all after it (4, 8, 12), and what comes over the link."""

    name: ClassVar[str] = "relays"
    checks: ClassVar[str] = "a message, an error or a link's end; nothing is read twice at a time, or past its chunk"
    limit_s: ClassVar[float] = 2.0
    words: ClassVar[tuple[bytes, ...]] = (_HERE, _WANTED, _PEER.encode(), b"\x00\x00\x00\x01", b"\xff" * 4)

    def fresh(self, random: Random) -> Case:
        steps = [bytes((0,)) + encode(Leaves(1, _RIGHT)) + encode(Peers(1, (_PEER,)))]
        for _ in range(random.choice((1, 4, 12, 30))):
            who = random.randrange(3) + 4 * random.randrange(4)
            steps.append(bytes((who,)) + b"".join(encode(message(random)) for _ in range(random.randrange(1, 4))))
        return steps

    def run(self, case: Case) -> None:
        self._reads: dict[ReadId, ReadRun] = {}
        self._is_over = False
        relay = Relay(
            "10.0.0.9:4790",
            64 * 1024,
            whole_pieces=lambda key: _PIECES * (key == _HERE),
            leaves=lambda _key: _RIGHT,
            accepts=lambda _key, leaves: leaves == _RIGHT,
            may_give=lambda endpoint: endpoint in (_KEEPER, _PEER),
        )
        self._take(relay.want([(_WANTED, _PIECES, [_KEEPER])], 0))
        decoders = [Decoder() for _ in range(3)]
        for turn, step in enumerate(case, 1):
            if not step:
                continue
            now_ns, who = turn * _TURN_NS, step[0] % 4 % 3
            try:
                messages = decoders[who].feed(step[1:])
            except WireError:
                messages, decoders[who] = [], Decoder()
                made = relay.child_lost(7, now_ns) if who == 2 else relay.parent_lost((_KEEPER, _PEER)[who], now_ns)
                self._take(made)
            if who == 2:
                self._take(relay.heard_child(7, messages, now_ns))
            else:
                self._take(relay.heard_parent((_KEEPER, _PEER)[who], messages, now_ns))
            if self._reads and step[0] & 12:
                read = min(self._reads)
                del self._reads[read]
                self._take(relay.read_ended(read, {4: True, 8: False, 12: None}[step[0] & 12], now_ns))
        self._take(relay.unwant([_WANTED], (len(case) + 1) * _TURN_NS))
        check(not self._reads, "reads go on of what is wanted no more")

    def close(self) -> None:
        """Nothing is held."""

    def _take(self, made: list[RelayCommand]) -> None:
        for command in made:
            match command:
                case ReadRun(read, key, _, first, count):
                    check(key == _WANTED and first + count <= _PIECES, "a read past its chunk")
                    pieces = set(range(first, first + count))
                    check(
                        not any(pieces & set(range(one.first, one.first + one.count)) for one in self._reads.values()),
                        "a piece is read twice at a time",
                    )
                    check(not self._is_over, "a chunk is read that is gathered no more")
                    self._reads[read] = command
                case AbortRun(read):
                    del self._reads[read]
                case Whole() | GaveUp():
                    self._is_over = True
                case _:
                    pass
