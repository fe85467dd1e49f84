"""Claims and waits of an agent's core: who waits for what, what they get, and what frees them."""

from __future__ import annotations

import pytest

from hostagent.core import effects, events
from hostagent.core.claims import Freed
from hostagent.core.directory import ClaimedChunk, Delta, NodeClaims
from hostagent.core.events import EngineId
from hostagent.core.fetch import Fetch
from kvchunk.sources import ChunkSource
from kvclient.messages import Kind, Status, Where
from kvpolicy.tiers.cost_question import CostQuestion
from kvpolicy.tiers.prefill import Prefill
from tests.counted_keys import CountedKey, counted
from tests.digests import hashed
from tests.unit.hostagent.core_harness import ENGINE, MS, PAGE, Scene, entry, key

OTHER = EngineId(2)
NODE = 1
"""The node that computes, elsewhere."""


def scene(*, connected: bool = True, pool_pages: int = 64) -> Scene:
    made = Scene(pool_pages=pool_pages)
    if connected:
        made.say(events.Welcomed(7, 0, None, PAGE, None, 0, 1.0))
    made.directory()
    made.made.clear()
    return made


def claim(where: Scene, *numbers: int, eta_s: float = 0.1, engine: EngineId = OTHER) -> None:
    keys = tuple(key(number) for number in numbers)
    where.say(events.ClaimMade(engine, keys, PAGE, tuple(eta_s * (place + 1) for place in range(len(keys)))))


def news(where: Scene, *numbers: int, eta_s: float = 0.1, withdrawn: tuple[int, ...] = (), node: int = NODE) -> None:
    """What another node computes."""
    made = tuple(ClaimedChunk(key(number), PAGE, eta_s) for number in numbers)
    one = NodeClaims(node, made, tuple(key(number) for number in withdrawn))
    where.say(events.DirectoryChanged(Delta(where.core.directory.sequence + 1, claims=(one,))))


def ask(
    where: Scene, *numbers: int, compute_s: float = 1.0, behind: int = 0, expected_s: float = 0.0, deadline_s: float = 9
) -> int:
    where.request += 1
    keys = tuple(key(number) for number in numbers)
    prefill = Prefill(compute_s, behind=behind) if compute_s else None
    where.say(events.ChunksRequested(ENGINE, where.request, keys, deadline_s, prefill, expected_s))
    return where.request


def answers(where: Scene) -> list[tuple[Status, int]]:
    return [(one.status, len(one.chunks)) for one in where.take(effects.FetchAnswered)]


def there(where: Scene, *numbers: int) -> None:
    """The other node has put them."""
    where.directory(*(entry(number, NODE, pages=1) for number in numbers))


def deliver(where: Scene) -> None:
    """What is asked of the other node comes."""
    for _ in range(20):
        where.pass_ms(5)
        where.read()
        for asked in where.take(effects.ComputeDigest):
            where.say(events.DigestComputed(asked.chunk, hashed(int.from_bytes(asked.chunk.key, "big")), asked.use))


# ---------------------------------------------------------------------- at one node


def test_a_second_request_gets_what_the_first_engine_puts() -> None:
    one = scene()
    claim(one, 1, 2)
    ask(one, 1, 2)
    assert answers(one) == []
    assert one.core.waits.waiting_count == 1
    one.put(1)
    assert answers(one) == []
    one.put(2)
    assert answers(one) == [(Status.OK, 2)]
    assert one.core.waits.counts.chunks == 2
    assert one.core.claims.counts.kept == 2
    one.close()


def test_where_says_that_a_chunk_is_being_computed() -> None:
    one = scene()
    claim(one, 1)
    news(one, 2)
    one.say(events.KeysRequested(ENGINE, 5, Kind.CONTAINS, (key(1), key(2), key(3))))
    assert list(one.take(effects.KeysAnswered)[0].values) == [Where.COMPUTING, Where.COMPUTING, Where.NOWHERE]


def test_what_is_behind_the_claimed_chunks_is_computed_by_the_engine() -> None:
    one = scene()
    claim(one, 1)
    ask(one, 1, 2, 3)
    one.put(1)
    assert answers(one) == [(Status.NOT_FOUND, 1)]


def test_an_engine_that_gives_up_frees_those_who_wait() -> None:
    one = scene()
    claim(one, 1, 2, 3)
    ask(one, 1, 2, 3)
    one.put(1)
    one.say(events.ClaimWithdrawn(OTHER, (key(2),)))
    assert answers(one) == [(Status.ABANDONED, 1)]
    assert one.core.waits.counts.freed == {Freed.WITHDRAWN: 1}
    one.close()


@pytest.mark.parametrize("how", ["gone", "all", "aborted", "refused"])
def test_however_a_claim_ends_its_waiters_are_free_at_once(how: str) -> None:
    one = scene()
    claim(one, 1, engine=ENGINE if how == "aborted" else OTHER)
    ask(one, 1)
    match how:
        case "gone":
            one.say(events.EngineDisconnected(OTHER))
        case "all":
            one.say(events.ClaimWithdrawn(OTHER, None))
        case "aborted":
            one.say(events.ReserveRequested(ENGINE, 90, key(1), None, PAGE, None, ""))
            one.say(events.AbortRequested(ENGINE, one.take(effects.ReserveAnswered)[0].lease))
        case "refused":
            one.say(events.ReserveRequested(OTHER, 90, key(1), None, 999 * PAGE, None, ""))
    assert answers(one) == [(Status.ABANDONED, 0)]


def test_a_chunk_of_two_engines_is_waited_for_until_both_give_up() -> None:
    one = scene()
    claim(one, 1)
    claim(one, 1, engine=EngineId(3), eta_s=0.2)
    ask(one, 1)
    one.say(events.EngineDisconnected(OTHER))
    assert answers(one) == []
    one.say(events.EngineDisconnected(EngineId(3)))
    assert answers(one) == [(Status.ABANDONED, 0)]


def test_a_late_engine_frees_its_waiters_and_is_not_believed_for_a_while() -> None:
    one = scene()
    claim(one, 1, eta_s=0.1)
    ask(one, 1)
    one.pass_ms(149)
    assert answers(one) == []
    one.pass_ms(2)
    assert answers(one) == [(Status.ABANDONED, 0)]
    assert one.core.waits.counts.freed == {Freed.LATE: 1}
    one.take(effects.ReportClaims)
    claim(one, 2)
    ask(one, 2)
    assert answers(one) == [(Status.NOT_FOUND, 0)]
    assert one.take(effects.ReportClaims) == []
    one.pass_ms(1000)
    claim(one, 3)
    ask(one, 3)
    assert answers(one) == []


def test_a_promise_that_moves_beyond_the_bound_frees_at_once() -> None:
    one = scene()
    claim(one, 1, eta_s=0.1)
    ask(one, 1, compute_s=0.3)
    claim(one, 1, eta_s=0.2)
    assert answers(one) == []
    claim(one, 1, eta_s=5.0)
    assert answers(one) == [(Status.ABANDONED, 0)]


def test_nobody_waits_beyond_the_time_that_computing_would_take() -> None:
    one = scene()
    claim(one, 1, eta_s=0.1)
    ask(one, 1, compute_s=0.3)
    for _ in range(40):
        one.pass_ms(10)
        claim(one, 1, eta_s=0.001)  # always soon
    assert answers(one) == [(Status.GATE, 0)]
    assert one.core.waits.counts.waited_s == pytest.approx(0.3, abs=0.011)
    ask(one, 1)
    assert answers(one) == [(Status.NOT_FOUND, 0)], "who always says that it is soon is not believed again"


def test_a_wait_can_be_cancelled_with_what_it_holds() -> None:
    one = scene()
    claim(one, 1, 2)
    request = ask(one, 1, 2)
    one.put(1)
    one.say(events.CancelRequested(ENGINE, request))
    assert answers(one) == [(Status.CANCELLED, 0)]
    one.put(2)
    assert answers(one) == []
    one.close()


def test_an_engine_that_dies_while_it_waits_leaves_nothing() -> None:
    one = scene()
    claim(one, 1, 2)
    ask(one, 1, 2)
    one.put(1)
    one.close()
    assert one.core.waits.waiting_count == 0


def test_a_quiet_engine_does_not_wait_for_what_is_later_than_its_own_computing() -> None:
    one = scene()
    claim(one, 1, eta_s=0.2)
    ask(one, 1, compute_s=0.1)
    assert answers(one) == [(Status.GATE, 0)]
    ask(one, 1, compute_s=0.15, behind=3)
    assert answers(one) == []


def test_an_engine_claims_no_more_than_it_may() -> None:
    one = scene(pool_pages=20_000)
    keys = tuple(key(number) for number in range(9000))
    one.say(events.ClaimMade(OTHER, keys, PAGE, (1.0,) * len(keys), 7))
    assert one.core.claims.claims_count == 8192
    assert one.core.claims.counts.refused == 9000 - 8192
    (answer,) = one.take(effects.KeysAnswered)
    assert (answer.request, answer.kind, answer.values) == (7, Kind.CLAIM, b"\1" * 8192 + b"\0" * (9000 - 8192))
    one.say(events.ClaimMade(EngineId(3), keys[-10:], PAGE, (1.0,) * 10))
    assert one.take(effects.KeysAnswered) == [], "others have their share"
    assert one.core.claims.claims_count == 8202


def test_engines_claim_no_more_than_the_pool_can_have() -> None:
    one = scene(pool_pages=512)
    claim(one, *range(600))
    assert one.core.claims.claims_count == 512
    claim(one, 1, 2, 3, engine=EngineId(3))
    assert one.core.claims.claims_count == 514, "another engine has its even share all the same"
    one.say(events.ClaimMade(EngineId(4), (key(700),), 513 * PAGE, (1.0,)))
    one.say(events.ClaimMade(EngineId(4), (key(700),), 0, (1.0,)))
    assert [answer.values for answer in one.take(effects.KeysAnswered)][-2:] == [b"\0", b"\0"]
    one.say(events.EngineDisconnected(OTHER))
    one.pass_ms(0)
    claim(one, 7)
    assert one.core.claims.claims_count == 3


def test_very_many_late_claims_end_some_at_a_time() -> None:
    one = scene()
    made = tuple(ClaimedChunk(key(number), PAGE, 0.1) for number in range(10_000))
    one.say(events.DirectoryChanged(Delta(one.core.directory.sequence + 1, claims=(NodeClaims(NODE, made),))))
    one.now_ns += 1_000 * MS
    left = []
    while one.core.claims:
        one.say(events.TimerFired())
        left.append(one.core.claims.claims_count)
    assert left == [10_000 - 4096, 10_000 - 2 * 4096, 0]


def test_claims_of_others_go_with_the_controller_and_come_again() -> None:
    one = scene()
    claim(one, 1)
    news(one, 2, 3)
    ask(one, 2)
    one.say(events.ControllerLost())
    assert answers(one) == [(Status.ABANDONED, 0)]
    assert one.core.claims.claims_count == 1
    one.pass_ms(5_000)
    assert one.core.claims.claims_count == 0


# ---------------------------------------------------------------------- across nodes


def test_a_claim_withdrawn_twice_in_one_message_ends_once() -> None:
    where = scene()
    claim(where, 1, 2)
    where.say(events.ClaimWithdrawn(OTHER, (key(1), key(2), key(2), key(1))))
    assert where.core.claims.claims_count == 0
    assert where.core.claims.counts.made == 2
    where.close()


def test_claims_are_told_to_the_controller_and_puts_of_them_announced_at_once() -> None:
    one = scene()
    claim(one, 1, 2)
    (report,) = one.take(effects.ReportClaims)
    assert [chunk.key for chunk in report.made] == [key(1), key(2)]
    assert [round(chunk.eta_s, 3) for chunk in report.made] == [0.1, 0.2]
    one.put(1)
    one.pass_ms(0)
    (announced,) = one.take(effects.Announce)
    assert [chunk.key for chunk in announced.added] == [key(1)]
    one.put(9)
    one.pass_ms(0)
    assert one.take(effects.Announce) == []
    one.say(events.ClaimWithdrawn(OTHER, None))
    assert [list(one.withdrawn) for one in one.take(effects.ReportClaims)] == [[key(2)]]


def test_a_new_time_is_told_only_where_it_differs_much() -> None:
    one = scene()
    claim(one, 1, eta_s=1.0)
    one.take(effects.ReportClaims)
    claim(one, 1, eta_s=1.05)
    assert one.take(effects.ReportClaims) == []
    claim(one, 1, eta_s=1.5)
    assert len(one.take(effects.ReportClaims)) == 1


def test_a_controller_that_comes_hears_of_all_claims() -> None:
    one = scene(connected=False)
    claim(one, 1)
    assert one.take(effects.ReportClaims) == []
    one.say(events.Welcomed(7, 0, None, PAGE, None, 0, 1.0))
    assert [chunk.key for chunk in one.take(effects.ReportClaims)[0].made] == [key(1)]


def test_chunks_computed_elsewhere_come_one_by_one() -> None:
    one = scene()
    news(one, 1, 2)
    ask(one, 1, 2)
    there(one, 1)
    deliver(one)
    assert answers(one) == []
    assert one.core.pool.find(key(1)) is not None
    there(one, 2)
    deliver(one)
    (answer,) = one.take(effects.FetchAnswered)
    assert answer.status is Status.OK
    assert [chunk.source for chunk in answer.chunks] == [ChunkSource.HOLDER] * 2
    assert not one.core.claims
    one.close()


def test_a_claim_and_its_chunk_in_one_message() -> None:
    one = scene()
    claims = (NodeClaims(NODE, (ClaimedChunk(key(1), PAGE, 0.1),)),)
    sequence = one.core.directory.sequence + 1
    one.say(events.DirectoryChanged(Delta(sequence, chunks=(entry(1, NODE, pages=1),), claims=claims)))
    assert not one.core.claims


def test_own_claims_come_back_from_the_controller_and_mean_nothing() -> None:
    one = scene()
    news(one, 1, node=0)
    assert not one.core.claims


@pytest.mark.parametrize(
    ("how", "why"),
    [("withdrawn", Freed.WITHDRAWN), ("node", Freed.GONE), ("controller", Freed.CONTROLLER), ("late", Freed.LATE)],
)
def test_what_ends_another_nodes_claim_frees_those_who_wait(how: str, why: Freed) -> None:
    one = scene()
    news(one, 1, 2)
    ask(one, 1, 2)
    there(one, 1)
    deliver(one)
    match how:
        case "withdrawn":
            news(one, withdrawn=(2,))
        case "node":
            one.say(events.DirectoryChanged(Delta(one.core.directory.sequence + 1, nodes_gone=(NODE,))))
        case "controller":
            one.say(events.ControllerLost())
        case "late":
            one.pass_ms(200)
    assert answers(one) == [(Status.ABANDONED, 1)]
    assert one.core.waits.counts.freed == {why: 1}
    one.close()


@pytest.mark.parametrize("from_here", [True, False])
def test_a_claim_told_twice_for_one_time_is_late_once(from_here: bool) -> None:
    """As when the news of two moments come together, and the time has passed in both."""
    one = scene()
    if from_here:
        one.say(events.ClaimMade(OTHER, (key(1), key(1)), PAGE, (0.1, 0.1)))
    else:
        news(one, 1, 1)
    one.pass_ms(5_000)
    assert one.core.claims.claims_count == 0
    one.close()


def test_a_nodes_claims_are_not_believed_after_it_was_late() -> None:
    one = scene()
    news(one, 1)
    one.pass_ms(500)
    news(one, 2)
    ask(one, 2)
    assert answers(one) == [(Status.NOT_FOUND, 0)]
    there(one, 2)
    news(one, 3)
    ask(one, 3)
    assert answers(one) == [], "it has kept a promise since"


def test_a_copy_that_another_node_puts_serves_as_well() -> None:
    one = scene()
    news(one, 1)
    ask(one, 1)
    one.directory(entry(1, 2, pages=1))
    deliver(one)
    assert answers(one) == [(Status.OK, 1)]


def test_what_an_engine_here_writes_is_not_fetched_beside_it() -> None:
    one = scene()
    news(one, 1)
    ask(one, 1)
    one.say(events.ReserveRequested(OTHER, 90, key(1), None, PAGE, None, ""))
    lease = one.take(effects.ReserveAnswered)[0].lease
    there(one, 1)
    assert answers(one) == []
    one.say(events.CommitRequested(OTHER, 91, lease))
    one.compute(1)
    assert answers(one) == [(Status.OK, 1)]


# ---------------------------------------------------------------------- expected chunks


def test_chunks_that_are_expected_are_waited_for_before_anybody_claims_them() -> None:
    one = scene()
    ask(one, 1, 2, compute_s=0, expected_s=1.0)
    one.pass_ms(100)
    assert answers(one) == []
    news(one, 1, 2)
    there(one, 1, 2)
    deliver(one)
    assert answers(one) == [(Status.OK, 2)]


def test_expected_chunks_that_nobody_computes_are_a_miss_in_time() -> None:
    one = scene()
    ask(one, 1, compute_s=0, expected_s=0.5)
    one.pass_ms(499)
    assert answers(one) == []
    one.pass_ms(2)
    assert answers(one) == [(Status.ABANDONED, 0)]
    assert one.core.waits.counts.freed == {Freed.UNKNOWN: 1}


def test_without_a_claim_nothing_is_waited_for() -> None:
    one = scene()
    ask(one, 1, compute_s=0)
    assert answers(one) == [(Status.NOT_FOUND, 0)]
    assert one.core.waits.counts.begun == 0


def test_those_who_wait_for_other_chunks_cost_a_chunk_nothing() -> None:
    compared = []
    for count in (4, 100):
        where = scene(pool_pages=256)
        for number in range(count):
            where.request += 1
            keys = (counted(number), counted(number + 1000))
            where.say(events.ChunksRequested(ENGINE, where.request, keys, 9, None, 5.0))
        assert where.core.waits.waiting_count == count
        before = CountedKey.compared_count
        where.put(count - 1)
        compared.append(CountedKey.compared_count - before)
        assert where.core.waits.waiting_count == count
        where.close()
    assert compared[0] == compared[1] > 0


def test_who_begins_to_wait_is_not_compared_with_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    where = scene(pool_pages=256)
    looked_at: list[object] = []
    look_ns = Fetch.look_ns

    def counted_look_ns(fetch: Fetch, now_ns: int) -> int:
        looked_at.append(fetch)
        return look_ns(fetch, now_ns)

    monkeypatch.setattr(Fetch, "look_ns", counted_look_ns)
    for number in range(100):
        ask(where, number, compute_s=0, expected_s=5.0)
        where.say(events.CancelRequested(ENGINE, ask(where, number + 1000, compute_s=0, expected_s=5.0)))
    assert len(looked_at) == 200
    where.close()


def test_a_router_hears_of_what_is_being_computed() -> None:
    one = scene()
    claim(one, 1, 2)
    asked = CostQuestion((key(1), key(2), key(3)), recompute_s=300.0)
    told = one.core.quote(asked, one.now_ns)
    assert {name: part.chunks for name, part in told.parts.items() if part.chunks} == {"computing": 2, "compute": 1}
    assert told.seconds is not None
    assert 100.0 < told.seconds < 200.0
