"""The core's relays, told what links bring."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hostagent.core import effects
from hostagent.core.events import RelayHeard
from hostagent.core.relays import Relays
from hostagent.tree import PIECE_BYTES, ROOT_CODE
from kvchunk.ids import ChunkKey
from kvproto.events import HolderRef
from kvproto.ids import Address, NodeId
from kvproto.session.relay.relay_commands import LeaveParent, TellChild
from kvproto.wire.relay_messages import Gone, Hello, Want

KEY = ChunkKey(bytes(15) + b"\x01")


def made() -> tuple[Relays, list[Any]]:
    """Relays of a node that has no chunk, and what they emit."""
    emitted: list[Any] = []
    node: Any = SimpleNamespace(
        clock=SimpleNamespace(now_ns=0),
        emit=emitted.append,
        pool=SimpleNamespace(find=lambda _key: None),
        directory=SimpleNamespace(
            node_named=lambda name: SimpleNamespace(name=name, read_endpoint=f"{name}:1"),
            node_at=lambda _address: None,
        ),
        options=SimpleNamespace(relay_share=1.0),
        alarms=SimpleNamespace(add=lambda _call: SimpleNamespace(set=lambda _due: None)),
    )
    relays = Relays(node, lambda _key, _leaves: None)
    relays.listens("127.0.0.1:1")
    return relays, emitted


def test_a_batch_that_was_refused_whole_is_not_the_end_of_the_link() -> None:
    relays, emitted = made()
    relays.heard(RelayHeard(1, (Hello("127.0.0.2:1"),)))
    relays.heard(RelayHeard(1, ()))
    relays.heard(RelayHeard(1, (Want(1, KEY, 4, keeper=True),)))
    assert emitted == [TellChild(1, Gone(1))]
    relays.heard(RelayHeard(1, lost=True))
    relays.heard(RelayHeard(1, (Want(2, KEY, 4, keeper=True),)))
    assert emitted[1:] == [effects.EndRelayLink(1)]


def test_a_keeper_whose_node_is_gone_is_left() -> None:
    relays, emitted = made()
    chunk: Any = SimpleNamespace(key=KEY)
    entry: Any = SimpleNamespace(key=KEY, digest=ROOT_CODE + bytes(32), size_bytes=4 * PIECE_BYTES)
    assert relays.take([(chunk, entry, [HolderRef(NodeId("a"), Address(1))])]) == {KEY}
    relays.nodes_lost(["b", "a"])
    assert LeaveParent("a:1") in emitted
    assert not relays.is_coming(KEY), "its only keeper is gone"
