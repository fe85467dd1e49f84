"""Parts of chunks between agents: only the pieces asked for cross the link, and none reaches an engine unproven."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from hostagent.tree import LEAF_BYTES, PIECE_BYTES, hashed
from kvchunk.kv_layout import parse_layout
from kvchunk.parts import ranges_of
from kvclient import messages
from kvclient.attach import attach
from kvclient.client import ByteRange, ChunkSource, Status, Where
from kvclient.messages import Kind
from kvproto.integrity import Integrity
from tests.unit.hostagent.agent_harness import Cluster, cluster, key

LAYOUT = parse_layout("bf16.l8.p2.t256.h2.d128")
SIZE_BYTES = LAYOUT.size_bytes
"""2 MiB: eight layers of 256 KiB."""
LEAVES_BYTES = SIZE_BYTES // PIECE_BYTES * LEAF_BYTES


@pytest.fixture
def pair() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


@pytest.fixture
def trio() -> Iterator[Cluster]:
    with cluster(3) as made:
        yield made


def body(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE_BYTES)


def hold(made: Cluster, number: int, *holders: int) -> None:
    """A chunk at these nodes, known to all."""
    for holder in holders:
        made.client(holder).put(key(number), None, body(number))
    made.publish(number, *holders)


def expected(number: int, ranges: list[ByteRange]) -> list[bytes]:
    return [body(number)[one.offset : one.end] for one in ranges]


def received(made: Cluster, index: int) -> int:
    return made.agents[index].transport.counters.read_bytes_received


def spoil(made: Cluster, index: int, number: int, offset: int) -> None:
    """The holder's bytes are others than it said."""
    chunk = made.agents[index].core.pool.find(key(number))
    assert chunk is not None
    view = made.agents[index].memory.view(chunk.offset, chunk.size_bytes)
    view[offset] ^= 1


@pytest.mark.parametrize("layers", [[5], [0, 3, 4], [7]], ids=["by the loop", "by the thread", "the last"])
def test_some_layers_come_without_the_others(pair: Cluster, layers: list[int]) -> None:
    hold(pair, 1, 0)
    ranges = ranges_of(LAYOUT, layers=layers)
    with pair.client(1).fetch([key(1)], ranges=ranges, deadline_s=10) as parts:
        assert (parts.count, parts.outcome, parts.sources) == (1, Status.OK, [ChunkSource.HOLDER])
        assert parts.views[0] is not None
        assert [bytes(view) for view in parts.views[0]] == expected(1, ranges)
        assert received(pair, 1) == len(layers) * SIZE_BYTES // 8 + LEAVES_BYTES
        assert pair.agents[1].core.pool.pins_count == 1
    pair.until(lambda: pair.agents[1].core.pool.pins_count == 0)
    usage = pair.agents[1].core.pool.usage()
    assert usage.free_bytes == usage.size_bytes, "what came is nobody's chunk, and its memory is free again"


def test_tokens_are_rounded_to_pieces_and_nothing_partial_is_a_chunk(pair: Cluster) -> None:
    hold(pair, 1, 0)
    client = pair.client(1)
    ranges = ranges_of(LAYOUT, tokens=range(10, 20))
    assert len(ranges) == 16, "K and V of eight layers"
    with client.fetch([key(1)], ranges=ranges, deadline_s=10) as parts:
        assert parts.views[0] is not None
        assert [bytes(view) for view in parts.views[0]] == expected(1, ranges)
        assert received(pair, 1) == 16 * PIECE_BYTES + LEAVES_BYTES
        assert pair.agents[1].core.pool.find(key(1)) is None
        assert pair.agents[1].core.pool.take_changes() == ([], [])
        assert client.contains([key(1)]) == [Where.REMOTE]
        assert client.fetch_local([key(1)]) is None
        with client.fetch([key(1)], deadline_s=10) as whole:
            assert bytes(whole.views[0]) == body(1), "the chunk itself comes beside it"


def test_several_chunks_here_there_and_nowhere(pair: Cluster) -> None:
    hold(pair, 1, 0)
    hold(pair, 2, 1)
    ranges = ranges_of(LAYOUT, layers=[2])
    client = pair.client(1)
    with client.fetch([key(9), key(2), key(1)], ranges=ranges, deadline_s=10) as parts:
        assert (parts.count, parts.outcome) == (2, Status.NOT_FOUND)
        assert parts.sources == [None, ChunkSource.LOCAL, ChunkSource.HOLDER]
        found = [views and [bytes(view) for view in views] for views in parts.views]
        assert found == [None, expected(2, ranges), expected(1, ranges)]
    with client.fetch([key(2)], ranges=ranges, deadline_s=10) as here:
        assert here.sources == [ChunkSource.LOCAL]
        assert here.views[0] is not None
        assert bytes(here.views[0][0]) == expected(2, ranges)[0]


def test_a_holder_that_gives_other_bytes_is_found_out_and_the_next_one_asked(trio: Cluster) -> None:
    hold(trio, 1, 0, 1)
    spoil(trio, 0, 1, 2 * SIZE_BYTES // 8 + 7)
    ranges = ranges_of(LAYOUT, layers=[2])
    with trio.client(2).fetch([key(1)], ranges=ranges, deadline_s=10) as parts:
        assert parts.views[0] is not None
        assert bytes(parts.views[0][0]) == expected(1, ranges)[0]
    assert received(trio, 2) == 2 * (SIZE_BYTES // 8 + LEAVES_BYTES)
    assert trio.client(2).stats()["checksum_failures_total"] == 1


def test_a_holder_that_lies_about_leaves_and_bytes_alike_is_found_out(trio: Cluster) -> None:
    hold(trio, 1, 0, 1)
    spoil(trio, 0, 1, 0)
    chunk = trio.agents[0].core.pool.find(key(1))
    assert chunk is not None
    chunk.leaves = hashed(trio.agents[0].memory.view(chunk.offset, chunk.size_bytes), Integrity.BLAKE3).leaves
    with trio.client(2).fetch([key(1)], ranges=[ByteRange(0, 1)], deadline_s=10) as parts:
        assert parts.views[0] is not None
        assert bytes(parts.views[0][0]) == body(1)[:1]
    assert trio.client(2).stats()["checksum_failures_total"] == 1


def test_nothing_comes_where_only_a_liar_holds_it(pair: Cluster) -> None:
    hold(pair, 1, 0)
    spoil(pair, 0, 1, 0)
    with pair.client(1).fetch([key(1)], ranges=[ByteRange(0, 1)], deadline_s=10) as parts:
        assert (parts.count, parts.outcome, parts.views) == (0, Status.UNAVAILABLE, [None])
    pair.until(lambda: pair.agents[1].core.pool.pins_count == 0)


def test_a_holder_without_leaves_gives_the_whole_chunk(pair: Cluster) -> None:
    hold(pair, 1, 0)
    chunk = pair.agents[0].core.pool.find(key(1))
    assert chunk is not None
    chunk.leaves = b""
    ranges = ranges_of(LAYOUT, layers=[2])
    with pair.client(1).fetch([key(1)], ranges=ranges, deadline_s=10) as parts:
        assert parts.views[0] is not None
        assert bytes(parts.views[0][0]) == expected(1, ranges)[0]
    assert pair.agents[1].core.pool.find(key(1)) is not None
    assert received(pair, 1) >= SIZE_BYTES


def test_bad_ranges_are_refused_by_name(pair: Cluster) -> None:
    hold(pair, 1, 0)
    client = pair.client(1)
    for index in (0, 1):
        with pytest.raises(ValueError, match=f"ends at byte {SIZE_BYTES + 1}, chunk 0 of those asked for has"):
            pair.client(index).fetch([key(1)], ranges=[ByteRange(SIZE_BYTES, 1)], deadline_s=10)
    for ranges in ([], [ByteRange(0, 0)], [ByteRange(8, 8), ByteRange(0, 8)], [ByteRange(0, 8), ByteRange(4, 8)]):
        with pytest.raises(ValueError, match="range"):
            client.fetch([key(1)], ranges=ranges, deadline_s=10)
    with pytest.raises(ValueError, match="keys names a chunk twice"):
        client.fetch([key(1), key(1)], ranges=[ByteRange(0, 1)], deadline_s=10)
    with pytest.raises(ValueError, match="at most 4096 of a chunk"):
        client.fetch([key(1)], ranges=[ByteRange(2 * at, 1) for at in range(4097)], deadline_s=10)
    overlap = messages.pack_fetch_parts([key(1)], [ByteRange(0, 8), ByteRange(4, 8)], 1.0)
    attached = attach(pair.agents[1].config.api_socket)
    attached.close_files()
    with attached.sock as conversation:
        conversation.sendall(messages.pack(Kind.FETCH_PARTS, 1, overlap, count=1))
        (answer,) = messages.FrameReader().feed(conversation.recv(4096))
    assert answer.status == Status.MALFORMED, "the agent does not trust clients to look"
    assert client.contains([key(1)]) == [Where.REMOTE], "the connection goes on"


def test_an_engine_that_goes_leaves_nothing(pair: Cluster) -> None:
    hold(pair, 1, 0)
    client = pair.client(1)
    parts = client.fetch([key(1)], ranges=[ByteRange(0, 1)], deadline_s=10)
    assert parts.count == 1
    client.close()
    pair.until(lambda: pair.agents[1].core.pool.pins_count == 0)
    usage = pair.agents[1].core.pool.usage()
    assert usage.free_bytes == usage.size_bytes
