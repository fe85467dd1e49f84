"""The core's relays, told what links bring."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hostagent.core.arrivals import Arrivals
from hostagent.core.events import RelayHeard
from hostagent.core.relays import Relays
from hostagent.tree import PIECE_BYTES, ROOT_CODE
from kvchunk.ids import ChunkKey
from kvpolicy.value import Tier
from kvproto.events import ChunkWanted, HolderLost, HolderRef
from kvproto.ids import Address, NodeId
from kvproto.session.choice import Chooser
from kvproto.session.relay.relay_commands import EndChild, LeaveParent, TellChild, TellParent
from kvproto.wire.relay_messages import Gone, Hello, Want

KEY = ChunkKey(bytes(15) + b"\x01")


def node_of(emitted: list[Any]) -> Any:
    """A node that has no chunk; `emitted` takes what it emits."""
    return SimpleNamespace(
        clock=SimpleNamespace(now_ns=0),
        emit=emitted.append,
        pool=SimpleNamespace(find=lambda _key: None),
        directory=SimpleNamespace(
            node_named=lambda name: SimpleNamespace(name=name, read_endpoint=f"{name}:1", rack=name[1:]),
            node_reading_at=lambda _endpoint: None,
        ),
        options=SimpleNamespace(relay_share=1.0, rails=1, rack="", reader=SimpleNamespace(segment_bytes=4096)),
        alarms=SimpleNamespace(add=lambda _call: SimpleNamespace(set=lambda _due: None)),
    )


def made() -> tuple[Relays, list[Any]]:
    """Relays of such a node, and what they emit."""
    emitted: list[Any] = []
    relays = Relays(node_of(emitted), lambda _key, _leaves, _readers: None, lambda: Chooser(is_free=False), lambda: 0)
    relays.is_way = True
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
    assert emitted[1:] == [EndChild(1)]


def test_a_keeper_whose_node_is_gone_is_left() -> None:
    relays, emitted = made()
    chunk: Any = SimpleNamespace(key=KEY)
    entry: Any = SimpleNamespace(key=KEY, digest=ROOT_CODE + bytes(32), size_bytes=4 * PIECE_BYTES)
    assert relays.take([(chunk, entry, [HolderRef(NodeId("a"), Address(1))])]) == {KEY}
    relays.nodes_lost(["b", "a"])
    assert LeaveParent("a:1") in emitted
    assert KEY not in relays.coming, "its only keeper is gone"


def test_a_holder_of_this_rack_is_asked_before_others() -> None:
    for racks in (["", "-r1", "-r2"], ["-r1", "-r2", ""]):
        relays, emitted = made()
        chunk: Any = SimpleNamespace(key=KEY)
        entry: Any = SimpleNamespace(key=KEY, digest=ROOT_CODE + bytes(32), size_bytes=4 * PIECE_BYTES)
        holders = [HolderRef(NodeId(f"{name}{rack}"), Address(1)) for name, rack in zip("abc", racks, strict=True)]
        relays.take([(chunk, entry, holders)])
        asked = [one.endpoint for one in emitted if isinstance(one, TellParent) and isinstance(one.message, Want)]
        assert asked == [f"{'abc'[racks.index('')]}:1"]


def test_holders_that_come_are_keepers() -> None:
    relays, emitted = made()
    chunk: Any = SimpleNamespace(key=KEY)
    entry: Any = SimpleNamespace(key=KEY, digest=ROOT_CODE + bytes(32), size_bytes=4 * PIECE_BYTES)
    relays.take([(chunk, entry, [HolderRef(NodeId("a"), Address(1))])])
    relays.holders_changed(KEY, [HolderRef(NodeId("b"), Address(2))])
    relays.nodes_lost(["a"])
    assert KEY in relays.coming
    assert TellParent("b:1", Want(1, KEY, 4, keeper=True)) in emitted


def test_who_moves_is_read_at_its_new_place_and_what_was_coming_comes_another_way() -> None:
    relays, emitted = made()
    chunk: Any = SimpleNamespace(key=KEY)
    entry: Any = SimpleNamespace(key=KEY, digest=ROOT_CODE + bytes(32), size_bytes=4 * PIECE_BYTES)
    relays.take([(chunk, entry, [HolderRef(NodeId("a"), Address(1))])])
    relays.listens("127.0.0.9:1")
    assert KEY not in relays.coming
    assert LeaveParent("a:1") in emitted
    relays.take([(chunk, entry, [HolderRef(NodeId("a"), Address(1))])])
    said = [one.message.endpoint for one in emitted if isinstance(one, TellParent) and isinstance(one.message, Hello)]
    assert said == ["127.0.0.1:1", "127.0.0.9:1"]


def test_what_no_relay_brings_is_read_from_those_who_hold_it_by_then() -> None:
    asked: list[Any] = []

    def handle_all(happened: list[Any], _now_ns: int) -> list[Any]:
        asked.extend(happened)
        return []

    reader: Any = SimpleNamespace(handle_all=handle_all, wake_ns=None)
    arrivals = Arrivals(node_of([]), lambda _parameters: reader, lambda _ended: None, lambda _name: None)
    arrivals.relays.is_way = True
    arrivals.relays.listens("127.0.0.1:1")
    chunk: Any = SimpleNamespace(key=KEY)
    entry: Any = SimpleNamespace(key=KEY, digest=ROOT_CODE + bytes(32), size_bytes=4 * PIECE_BYTES, served=False)
    inbound = arrivals.begin(chunk, entry, Tier.REMOTE_DRAM)
    arrivals.want([(inbound, (HolderRef(NodeId("a"), Address(1)),))])
    late = HolderRef(NodeId("b"), Address(2))
    arrivals.directory_changed({KEY: (late,)}, [HolderLost(NodeId("a"))])
    assert not any(isinstance(one, ChunkWanted) for one in asked), "the late one is its keeper"
    arrivals.directory_changed({}, [HolderLost(NodeId("b"))])
    assert [one.holders for one in asked if isinstance(one, ChunkWanted)] == [(late,)]
