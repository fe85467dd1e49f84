"""The serving side of one node: pins across a change of the segment size, and chunks that lie on its disk."""

from __future__ import annotations

import pytest

from hostagent.core import effects, events
from hostagent.core.events import LoadOutcome
from hostagent.core.serving import WAITING_CONTROLS_MAX
from hostagent.pool.chunks import ChunkPool
from kvchunk.ids import ChunkKey
from kvproto.events import SegmentsSent
from kvproto.ids import Address
from kvproto.wire.control import Op
from tests.unit.hostagent.core_harness import PAGE, Scene, key

READER = 7


def holder() -> Scene:
    """With one chunk of 16 pages."""
    scene = Scene()
    scene.put(1, 16 * PAGE)
    return scene


def use_segment_bytes(scene: Scene, segment_bytes: int) -> None:
    scene.say(events.Welcomed(1, 0, None, segment_bytes, None, 0, 0.0))


def cast_count(scene: Scene) -> int:
    return sum(cast.count for cast in scene.take(effects.CastSegments))


def test_reports_for_the_old_holder_end_its_pin_only() -> None:
    scene = holder()
    pins = scene.core.pool
    scene.ask(Op.GET, 1, 16, 10, READER)
    assert cast_count(scene) == 10
    scene.say(SegmentsSent(key(1), 4))
    use_segment_bytes(scene, 2 * PAGE)
    assert pins.pins_count == 1, "six segments of the old size are still on their way"
    scene.ask(Op.GET, 1, 8, 8, READER)
    assert pins.pins_count == 2
    scene.say(SegmentsSent(key(1), 7))
    assert pins.pins_count == 1, "six were the old ones, one is new"
    scene.say(SegmentsSent(key(1), 7))
    assert pins.pins_count == 0
    scene.close()


def test_everything_is_given_back_at_the_end() -> None:
    scene = holder()
    scene.ask(Op.GET, 1, 16, 10, READER)
    use_segment_bytes(scene, 2 * PAGE)
    use_segment_bytes(scene, PAGE)
    scene.ask(Op.GET, 1, 16, 3, READER)
    assert scene.core.pool.pins_count == 2
    scene.close()


def test_what_was_asked_is_counted() -> None:
    scene = holder()
    scene.ask(Op.GET, 1, 16, 10, READER)
    scene.ask(Op.GET, 1, 16, 10, READER)
    scene.ask(Op.GET, 1, 15, 1, READER)
    counts = scene.core.serving.counts
    assert counts.segments_queued + counts.answered_already == 20
    assert counts.naks == 1, "of another size"
    scene.close()


def test_what_nobody_answers_is_counted() -> None:
    scene = holder()
    scene.ask(Op.LEAVE, 1, 16, 0, READER)
    assert scene.take(effects.DatagramsDropped) == [effects.DatagramsDropped("control_leave_ignored")]


def on_disk() -> Scene:
    scene = Scene(disk_pages=64)
    assert scene.disk is not None
    scene.disk.store(1, 2 * PAGE)
    return scene


def test_questions_wait_for_the_disk_and_are_answered_then() -> None:
    scene = on_disk()
    for source in (5, 6, 5):
        scene.ask(Op.JOIN, 1, 2, 2, source)
    scene.ask(Op.JOIN, 2, 2, 2, 7)
    assert scene.said() == [(Op.NAK, Address(7))], "what is nowhere is refused at once"
    assert scene.load() == [key(1)], "asked of the disk once"
    scene.pass_ms(1)
    assert scene.said() == [(Op.NOTICE, Address(5)), (Op.NOTICE, Address(6))]
    assert scene.core.idle
    scene.close()


def test_questions_are_refused_when_the_disk_did_not_deliver() -> None:
    scene = on_disk()
    scene.ask(Op.GET, 1, 2, 2, 5)
    assert scene.disk is not None
    scene.disk.pool.drop(key(1))
    scene.load(LoadOutcome.DAMAGED)
    scene.pass_ms(1)
    assert scene.said() == [(Op.NAK, Address(5))]
    scene.close()


def test_questions_that_wait_are_bounded() -> None:
    scene = on_disk()
    for source in range(WAITING_CONTROLS_MAX + 10):
        scene.ask(Op.JOIN, 1, 2, 2, source + 1)
    assert len(scene.take(effects.DatagramsDropped)) == 10
    scene.load()
    scene.close()


def test_a_peers_load_keeps_the_chunk_until_the_peer_had_its_turn() -> None:
    scene = on_disk()
    scene.say(events.PeerLoadRequested(key(1)))
    scene.load()
    scene.pass_ms(1)
    (ended,) = scene.take(effects.PeerLoadEnded)
    assert ended.chunk is not None
    assert ended.chunk.pins == 1
    scene.say(events.PeerReadEnded(ended.chunk))
    assert ended.chunk.pins == 0
    scene.say(events.PeerLoadRequested(key(9)))
    assert scene.take(effects.PeerLoadEnded) == [effects.PeerLoadEnded(key(9), None)]
    scene.close()


def test_a_reader_that_stripes_a_chunk_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[ChunkKey] = []
    monkeypatch.setattr(ChunkPool, "touch", lambda _, keys: touched.extend(keys))
    scene = holder()
    lent = [scene.core.lend(key(1), scene.now_ns) for _ in range(3)]
    assert not touched
    scene.say(events.PeersRead((key(1),)))
    assert touched == [key(1)]
    for chunk in lent:
        assert chunk is not None
        scene.say(events.PeerReadEnded(chunk))
    scene.close()
