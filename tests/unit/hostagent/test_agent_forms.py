"""Agents that store KV in fewer bytes: a restarted one and another one read it, rounded only where it is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hostagent.cold.cold_options import ColdConfig
from hostagent.disk.disk_options import DiskConfig
from kvchunk.kv_layout import KvTerms, parse_layout, with_terms
from kvclient.client import ChunkSource, Status
from kvcodec.forms import Form
from kvpolicy.tiers.form_costs import FormChoice, FormWork
from kvpolicy.value.costs import Tier
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key
from tests.unit.hostagent.test_agent_cold import POOL_BYTES, WAIT_S, until_on
from tests.unit.kvcodec.kv_content import kv_chunk, unpacked

pytest.importorskip("opendal", reason="no opendal here: pip install 'kvcast[cold]'")

LAYOUT = parse_layout("bf16.l2.b2.p2.t16.h2.d64")
EXACT, LOSSY = (with_terms("m", KvTerms(LAYOUT, may_lose)) for may_lose in (False, True))
SIZE = LAYOUT.size_bytes
CHUNKS = 96
"""One and a half times what the pool holds."""


@pytest.fixture
def fs(tmp_path: Path) -> ColdConfig:
    return ColdConfig("fs", {"root": str(tmp_path / "store")}, lookup_wait_s=WAIT_S, form=FormChoice.LOSSLESS)


@pytest.fixture
def made(fs: ColdConfig) -> Iterator[Cluster]:
    with cluster(1, cold=fs, pool_bytes=POOL_BYTES) as made:
        until_on(made, 0)
        yield made


def kv_written_behind(made: Cluster, label: str) -> list[int]:
    """Put more KV than the pool holds; the numbers of what has left the pool since."""
    client, core = made.client(0), made.agents[0].core
    room = POOL_BYTES // SIZE
    for number in range(CHUNKS):
        parent = key(number - 1) if number % 4 else None
        client.put(key(number), parent, kv_chunk(LAYOUT, number), namespace=label)
        if number >= room - 3:
            made.until(lambda: all(core.cold.knows(one) for one in core.pool.next_victims(8)))
    gone = [number for number in range(CHUNKS) if core.pool.find(key(number)) is None]
    assert gone
    return gone


def test_kv_takes_less_room_in_the_store_and_comes_back_byte_for_byte_elsewhere(made: Cluster, fs: ColdConfig) -> None:
    gone = kv_written_behind(made, EXACT)
    stats = made.client(0).stats()
    assert stats["cold_stored_bytes_total"] < 0.8 * stats["cold_written_bytes_total"]
    made.add(cold=fs, pool_bytes=POOL_BYTES)
    made.replace(0, cold=fs, pool_bytes=POOL_BYTES)
    for index in (0, 1):
        until_on(made, index)
        with made.client(index).fetch([key(number) for number in gone[:4]], deadline_s=25) as got:
            assert set(got.sources) == {ChunkSource.COLD}
            assert [bytes(view) for view in got.views] == [kv_chunk(LAYOUT, number) for number in gone[:4]]


def quick_forms(made: Cluster, index: int) -> None:
    """However busy this machine is at the moment: the store is slow, and forms are quick."""
    core = made.agents[index].core

    def learn() -> None:
        for _ in range(40):
            core.gate.measured(Tier.COLD, MIB, 10.0, 1)
            core.forms.costs.measured(FormWork(Form.PLANES, MIB, MIB * 7 // 10, 0.001, 0.001))
            core.forms.costs.measured(FormWork(Form.LOSSY, MIB, MIB // 4, 0.001, 0.001))

    made.call(learn)


def test_a_namespace_that_allows_it_is_rounded_and_all_nodes_get_the_same_bytes(made: Cluster, fs: ColdConfig) -> None:
    auto = replace(fs, form=FormChoice.AUTO)
    made.replace(0, cold=auto, pool_bytes=POOL_BYTES)
    until_on(made, 0)
    quick_forms(made, 0)
    gone = kv_written_behind(made, LOSSY)
    made.add(cold=auto, pool_bytes=POOL_BYTES)
    until_on(made, 1)
    found = []
    for index in (0, 1):
        with made.client(index).fetch([key(gone[0])], deadline_s=25) as got:
            assert (got.outcome, list(got.sources)) == (Status.OK, [ChunkSource.COLD])
            found.append(bytes(got.views[0]))
    assert found[0] == found[1] != kv_chunk(LAYOUT, gone[0])
    exact = unpacked(kv_chunk(LAYOUT, gone[0]), "bf16")
    assert np.sqrt(np.mean((unpacked(found[0], "bf16") - exact) ** 2)) < 0.2 * exact.std()


def test_kv_on_disk_takes_less_room_and_a_restarted_agent_reads_it(tmp_path: Path) -> None:
    disk = DiskConfig(str(tmp_path / "disk"), 4 * MIB, direct=False, promote=False, form=FormChoice.LOSSLESS)
    with cluster(1, disk=disk) as made:
        client = made.client(0)
        for number in range(8):
            client.put(key(number), key(number - 1) if number else None, kv_chunk(LAYOUT, number), namespace=EXACT)
        store = made.agents[0].store
        assert store is not None
        made.until(lambda: len(store.stored_chunks()) == 8)
        stats = client.stats()
        assert stats["disk_stored_bytes_total"] < 0.8 * stats["disk_written_bytes_total"]
        made.replace(0, disk=disk)
        with made.client(0).fetch([key(number) for number in range(8)], deadline_s=25) as got:
            assert set(got.sources) == {ChunkSource.DISK}
            assert [bytes(view) for view in got.views] == [kv_chunk(LAYOUT, number) for number in range(8)]
