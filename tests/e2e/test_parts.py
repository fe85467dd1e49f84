"""One of eight layers: an eighth of the chunks leaves their holder, counted on its link."""

from __future__ import annotations

import time

import pytest

from bmv2_testbed import client
from bmv2_testbed.bench.group import put_prefix
from bmv2_testbed.content import Prefix
from bmv2_testbed.spec import TestbedSpec
from kvchunk.kv_layout import parse_layout
from kvchunk.parts import ranges_of
from kvclient.client import AgentClient, ChunkSource, Status, Where

DEADLINE_S = 30.0
LAYOUT = parse_layout("bf16.l8.p2.t256.h2.d128")
PREFIX = Prefix(seed=23, size_bytes=2 * LAYOUT.size_bytes, chunk_bytes=LAYOUT.size_bytes)


@pytest.mark.root
def test_a_layer_moves_an_eighth_of_the_bytes() -> None:
    with client.running(TestbedSpec(hosts=2, pool_bytes=32 * 2**20, slots=256)) as testbed:
        put_prefix(testbed, PREFIX)
        keys = PREFIX.chunk_keys()
        with AgentClient(testbed.directory / "h1.sock") as agent:
            deadline_s = time.monotonic() + DEADLINE_S
            while agent.contains(keys) != [Where.REMOTE] * PREFIX.chunks:
                assert time.monotonic() < deadline_s, "the reader's directory has no such chunks"
            ranges = ranges_of(LAYOUT, layers=[3])
            before = testbed.counters()["h0"]
            with agent.fetch(keys, ranges=ranges, deadline_s=DEADLINE_S) as parts:
                assert (parts.outcome, set(parts.sources)) == (Status.OK, {ChunkSource.HOLDER})
                for views, content in zip(parts.views, PREFIX.contents(), strict=True):
                    assert views is not None
                    assert [bytes(view) for view in views] == [content[one.offset : one.end] for one in ranges]
            sent_bytes = testbed.counters()["h0"].since(before).tx_bytes
            assert PREFIX.size_bytes / 8 <= sent_bytes < 1.25 * PREFIX.size_bytes / 8
            assert agent.contains(keys) == [Where.REMOTE] * PREFIX.chunks, "nobody was told of a part"
