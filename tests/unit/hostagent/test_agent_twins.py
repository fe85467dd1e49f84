"""Agents whose chunks cross the network in fewer bytes: every byte comes back, and whatever goes wrong ends well."""

from __future__ import annotations

from collections.abc import Sequence

from hostagent.core.forms import is_twin
from hostagent.pool.chunks import Chunk
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey
from kvchunk.kv_layout import KvTerms, parse_layout, with_terms
from kvclient.client import ChunkSource, Status
from kvcodec.forms import Form
from kvpolicy.tiers.form_costs import FormChoice, FormWork
from kvpolicy.value.costs import Tier
from kvproto.twins import twin_key
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key
from tests.unit.kvcodec.kv_content import kv_chunk

LAYOUT = parse_layout("bf16.l2.b2.p2.t16.h8.d64")
EXACT, LOSSY = (with_terms("m", KvTerms(LAYOUT, may_lose)) for may_lose in (False, True))
SIZE = LAYOUT.size_bytes
COUNT = 6


def put(made: Cluster, count: int = COUNT, label: str = EXACT) -> list[ChunkKey]:
    client = made.client(0)
    for number in range(count):
        parent = key(number - 1) if number % 8 else None
        client.put(key(number), parent, kv_chunk(LAYOUT, number), namespace=label)
    return [key(number) for number in range(count)]


def publish(made: Cluster, keys: Sequence[ChunkKey], form: Form = Form.PLANES) -> None:
    """Everybody learns of the chunks at the first agent, and of the twins that it has made of them."""
    core = made.agents[0].core
    twins = [twin_key(one, form) for one in keys]
    made.until(lambda: all(core.pool.find(twin) is not None for twin in twins))
    made.tell(chunks=tuple(made.entry(0, one) for one in (*keys, *twins)))


def twins_at(made: Cluster, index: int) -> int:
    return made.call(lambda: sum(map(is_twin, made.agents[index].core.pool.ready_chunks())))


def test_chunks_cross_the_network_in_fewer_bytes_and_come_back_byte_for_byte() -> None:
    with cluster(2, wire=FormChoice.LOSSLESS) as made:
        keys = put(made)
        publish(made, keys)
        sent = made.agents[0].transport.counters
        with made.client(1).fetch(keys, deadline_s=25) as got:
            assert (got.outcome, set(got.sources)) == (Status.OK, {ChunkSource.HOLDER})
            assert [bytes(view) for view in got.views] == [kv_chunk(LAYOUT, number) for number in range(COUNT)]
        made.until(lambda: sent.read_bytes_sent > 0.5 * COUNT * SIZE)  # the thread that sends tells later
        assert sent.read_bytes_sent < 0.8 * COUNT * SIZE
        assert made.agents[1].core.twins.decoded_count == COUNT
        made.until(lambda: all(agent.core.idle for agent in made.agents))


def test_what_one_reader_does_without_another_one_need_not() -> None:
    with cluster(1, wire=FormChoice.LOSSLESS) as made:
        made.add(wire=FormChoice.RAW)
        made.add(wire=FormChoice.LOSSLESS)
        keys = put(made)
        publish(made, keys)
        for index, twins in ((1, 0), (2, COUNT)):
            with made.client(index).fetch(keys, deadline_s=25) as got:
                assert [bytes(view) for view in got.views] == [kv_chunk(LAYOUT, number) for number in range(COUNT)]
            assert twins_at(made, index) == twins


def learn(made: Cluster, index: int, rate: float, decode_s: float = 0.0006) -> None:
    """Whatever this machine is good for at the moment: a link of so many bytes a second, and a processor."""
    core = made.agents[index].core

    def taught() -> None:
        for _ in range(60):
            core.gate.measured(Tier.REMOTE_DRAM, MIB, MIB / rate, 1)
            core.forms.costs.measured(FormWork(Form.PLANES, MIB, MIB * 7 // 10, 0.002, decode_s))

    made.call(taught)


def test_by_itself_an_agent_encodes_nothing_that_nobody_reads_and_what_is_read_over_a_slow_link() -> None:
    with cluster(2, wire=FormChoice.AUTO) as made:
        for index in range(2):
            learn(made, index, 1e8 / 8)
        keys = put(made)
        made.tell(chunks=tuple(made.entry(0, one) for one in keys))
        assert made.agents[0].core.twins.making.lane.counts.offered == 0
        with made.client(1).fetch(keys[:1], deadline_s=25) as got:
            assert got.outcome is Status.OK
        publish(made, keys[:1])
        assert twins_at(made, 0) == 1


def test_on_a_quick_link_nothing_is_ever_encoded() -> None:
    with cluster(2, wire=FormChoice.AUTO) as made:
        for index in range(2):
            learn(made, index, 1e11 / 8)
        keys = put(made)
        made.tell(chunks=tuple(made.entry(0, one) for one in keys))
        with made.client(1).fetch(keys, deadline_s=25) as got:
            assert got.outcome is Status.OK
        made.until(lambda: all(agent.core.idle for agent in made.agents))
        assert made.agents[0].core.twins.making.lane.counts.offered == 0


def test_a_twin_that_is_none_is_found_out_and_the_chunk_comes_as_it_is() -> None:
    with cluster(2, wire=FormChoice.LOSSLESS) as made:
        keys = put(made)
        publish(made, keys)
        # The twin of the second chunk is that of the third: right bytes by its digest, another chunk.
        second, third = (twin_key(one, Form.PLANES) for one in keys[1:3])
        core, memory = made.agents[0].core, made.agents[0].memory

        def exchange() -> None:
            other = core.pool.find(third)
            assert other is not None
            content = bytes(memory.view(other.offset, other.size_bytes))
            core.pool.drop(second)
            forged = core.pool.reserve(second, keys[1], len(content), 2, EXACT)
            assert isinstance(forged, Chunk)
            memory.view(forged.offset, len(content))[:] = content
            core.pool.commit(forged, Hashed(other.digest, other.leaves))

        made.call(exchange)
        made.tell(chunks=(made.entry(0, second),))
        reader = made.agents[1].core
        with made.client(1).fetch(keys, deadline_s=25) as got:
            assert got.outcome is Status.OK
            assert [bytes(view) for view in got.views] == [kv_chunk(LAYOUT, number) for number in range(COUNT)]
        assert (reader.twins.wrong_count, reader.fetches.twins.decoded_count) == (1, COUNT - 1)
        assert reader.pool.find(second) is None


def test_damaged_bytes_of_a_twin_are_its_holders_fault_and_the_chunk_comes_as_it_is() -> None:
    with cluster(2, wire=FormChoice.LOSSLESS) as made:
        keys = put(made, 1)
        publish(made, keys)
        core, memory = made.agents[0].core, made.agents[0].memory
        twin = core.pool.find(twin_key(keys[0], Form.PLANES))
        assert twin is not None

        def damage() -> None:
            view = memory.view(twin.offset, twin.size_bytes)
            view[5000] ^= 1

        made.call(damage)
        with made.client(1).fetch(keys, deadline_s=25) as got:
            assert got.outcome is Status.OK
            assert bytes(got.views[0]) == kv_chunk(LAYOUT, 0)
        assert made.client(1).stats()["checksum_failures_total"] == 1


def test_a_twin_that_is_evicted_before_it_is_read_costs_a_question() -> None:
    with cluster(2, wire=FormChoice.LOSSLESS) as made:
        keys = put(made)
        publish(made, keys)
        made.call(lambda: [made.agents[0].core.pool.drop(twin_key(one, Form.PLANES)) for one in keys[::2]])
        with made.client(1).fetch(keys, deadline_s=25) as got:
            assert got.outcome is Status.OK
            assert [bytes(view) for view in got.views] == [kv_chunk(LAYOUT, number) for number in range(COUNT)]
        assert made.agents[1].core.twins.decoded_count == COUNT // 2
        made.until(lambda: all(agent.core.idle for agent in made.agents))


def test_twins_take_their_share_of_the_pool_and_leave_first() -> None:
    with cluster(1, wire=FormChoice.LOSSLESS, pool_bytes=16 * SIZE) as made:
        put(made, 24)
        core = made.agents[0].core
        made.until(lambda: not len(core.twins.making.lane) and not core.twins.making.lane.running_count)
        chunks = made.call(core.pool.ready_chunks)
        twins = [chunk for chunk in chunks if is_twin(chunk)]
        assert twins
        assert sum(twin.size_bytes for twin in twins) <= 4 * SIZE
        assert {twin.parent for twin in twins} <= {chunk.key for chunk in chunks}
        assert core.pool.find(core.pool.next_victims(1)[0]) in twins


def quick_lossy(made: Cluster, index: int) -> None:
    core = made.agents[index].core

    def taught() -> None:
        for _ in range(60):
            core.gate.measured(Tier.REMOTE_DRAM, MIB, 0.1, 1)
            core.forms.costs.measured(FormWork(Form.PLANES, MIB, MIB * 7 // 10, 0.001, 0.001))
            core.forms.costs.measured(FormWork(Form.LOSSY, MIB, MIB // 4, 0.001, 0.001))

    made.call(taught)


def test_only_a_namespace_that_allows_it_crosses_rounded() -> None:
    for label, form, exact in ((LOSSY, Form.LOSSY, False), (EXACT, Form.PLANES, True)):
        with cluster(3, wire=FormChoice.AUTO) as made:
            for index in range(3):
                quick_lossy(made, index)
            keys = put(made, 1, label)
            made.tell(chunks=(made.entry(0, keys[0]),))
            with made.client(1).fetch(keys, deadline_s=25) as got:
                assert bytes(got.views[0]) == kv_chunk(LAYOUT, 0)
            publish(made, keys, form)
            with made.client(2).fetch(keys, deadline_s=25) as got:
                assert got.outcome is Status.OK
                assert (bytes(got.views[0]) == kv_chunk(LAYOUT, 0)) is exact
            (twin,) = made.call(lambda: [one for one in made.agents[2].core.pool.ready_chunks() if is_twin(one)])
            assert twin.size_bytes < (0.4 if form is Form.LOSSY else 0.8) * SIZE
