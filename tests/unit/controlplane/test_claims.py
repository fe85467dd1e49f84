"""Claims at the controller: passed on at once, over when kept, withdrawn or late, gone with their node."""

from __future__ import annotations

import gc
import random

import pytest

from controlplane.core.claims import ClaimRun, ClaimTable
from controlplane.core.events import HelloReceived, MessageReceived, StreamEnded
from controlplane.core.limits import CLAIM_KEYS_MAX, CLAIM_S_MAX, CLAIMS_PER_NODE_MAX
from kvpolicy.tiers.merging import due_ns
from kvproto.limits import CLAIMERS_PER_CHUNK_MAX
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import CHUNK, SECOND, Scene, key, record


def claim(*names: object, eta_ms: int = 100) -> rpc.Claims:
    keys = [key(name) for name in names]
    return rpc.Claims(made=[rpc.Claim(keys=keys, size_bytes=CHUNK, eta_ms=[eta_ms] * len(keys))])


def heard(scene: Scene, session: int) -> list[tuple[int, list[bytes], list[bytes]]]:
    """(node, keys claimed, keys withdrawn) of each piece of news that a node has got."""
    return [
        (one.node, [key for run in one.claims.made for key in run.keys], list(one.claims.withdrawn))
        for message in scene.sent[session]
        if message.WhichOneof("message") == "directory"
        for one in message.directory.claims
    ]


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    for number in (1, 2, 3):
        made.attach(number)
    return made


def test_a_claim_reaches_everybody_with_the_next_delta(scene: Scene) -> None:
    scene.say(1, claims=claim("a", "b", eta_ms=250))
    assert heard(scene, 2) == heard(scene, 3) == [(0, [key("a"), key("b")], [])]
    deltas = [m.directory for m in scene.sent[2] if m.WhichOneof("message") == "directory" and m.directory.claims]
    assert list(deltas[0].claims[0].claims.made[0].eta_ms) == [250, 250]
    assert scene.core.claims.claims_count == 2


def test_a_claim_that_is_kept_ends_without_a_word(scene: Scene) -> None:
    scene.say(1, claims=claim("a"))
    scene.announce(1, [record("a")])
    scene.wait(5)
    assert scene.core.claims.claims_count == 0
    assert heard(scene, 2) == [(0, [key("a")], [])]


def test_another_nodes_copy_does_not_keep_it(scene: Scene) -> None:
    scene.say(1, claims=claim("a"))
    scene.announce(2, [record("a")])
    assert scene.core.claims.claims_count == 1


def test_a_withdrawal_is_passed_on_and_one_of_nothing_is_not(scene: Scene) -> None:
    scene.say(1, claims=claim("a", "b"))
    scene.say(1, claims=rpc.Claims(withdrawn=[key("a"), key("z")]))
    scene.say(2, claims=rpc.Claims(withdrawn=[key("b")]))
    assert heard(scene, 3) == [(0, [key("a"), key("b")], []), (0, [], [key("a")])]


def test_a_late_claim_is_withdrawn_by_the_controller(scene: Scene) -> None:
    scene.say(1, claims=claim("a", eta_ms=1000))
    scene.wait(1.0)
    assert scene.core.claims.claims_count == 1
    scene.wait(1.0)
    assert heard(scene, 2)[-1] == (0, [], [key("a")])


def test_a_new_time_postpones_the_end(scene: Scene) -> None:
    scene.say(1, claims=claim("a", eta_ms=1000))
    scene.wait(1.0)
    scene.say(1, claims=claim("a", eta_ms=2000))
    scene.wait(1.5)
    assert scene.core.claims.claims_count == 1


@pytest.mark.parametrize("how", ["stream", "farewell", "silence", "again"])
def test_a_nodes_claims_go_with_it(scene: Scene, how: str) -> None:
    scene.say(1, claims=claim("a", eta_ms=60_000))
    match how:
        case "stream":
            scene.handle(StreamEnded(1))
            scene.advance()
        case "farewell":
            scene.say(1, leaving=rpc.Leaving())
        case "again":
            scene.handle(HelloReceived(11, rpc.Hello.FromString(_hello(1))))
            scene.advance()
        case "silence":
            for _ in range(8):
                scene.now += SECOND // 2
                scene.say(2, heartbeat=rpc.Heartbeat())
                scene.say(3, heartbeat=rpc.Heartbeat())
    assert heard(scene, 2)[-1] == (0, [], [key("a")])
    assert scene.core.claims.claims_count == 0


def _hello(number: int) -> bytes:
    from tests.unit.controlplane.helpers import hello

    return hello(number, incarnation=2).SerializeToString()


def test_withdrawn_and_claimed_again_between_two_deltas_stands() -> None:
    scene = Scene(publish_ns=SECOND)
    for number in (1, 2):
        scene.attach(number)
    scene.say(1, claims=claim("a", eta_ms=60_000))
    scene.wait(2.0)
    for said in (rpc.Claims(withdrawn=[key("a")]), claim("a", eta_ms=50_000)):
        scene.handle(MessageReceived(1, rpc.FromAgent(claims=said)))
    scene.wait(2.0)
    assert heard(scene, 2)[-1] == (0, [key("a")], [])


def test_a_node_cannot_claim_without_end(scene: Scene) -> None:
    for batch in range(4):
        scene.say(1, claims=claim(*((batch, at) for at in range(5000)), eta_ms=60_000))
    assert scene.core.claims.claims_count <= CLAIMS_PER_NODE_MAX
    assert scene.core.claims.refused_count == 5000
    assert 1 not in scene.closed


@pytest.mark.parametrize(
    "claims",
    [
        rpc.Claims(made=[rpc.Claim(keys=[key("a")], size_bytes=CHUNK)]),
        rpc.Claims(made=[rpc.Claim(keys=[key("a")], eta_ms=[1])]),
        rpc.Claims(made=[rpc.Claim(keys=[b"short"], size_bytes=CHUNK, eta_ms=[1])]),
        rpc.Claims(withdrawn=[b"short"]),
        rpc.Claims(withdrawn=[key(at) for at in range(CLAIM_KEYS_MAX + 1)]),
    ],
)
def test_malformed_claims_are_refused_and_the_stream_goes_on(scene: Scene, claims: rpc.Claims) -> None:
    scene.say(1, claims=claims)
    assert scene.core.claims.claims_count == 0
    (told,) = scene.refusals(1)
    assert told.count == 1
    scene.say(1, claims=claim("b"))
    assert scene.core.claims.claims_count == 1
    assert 1 not in scene.closed


@pytest.mark.parametrize("seed", range(30))
def test_a_table_of_claims_agrees_with_a_plain_dictionary(seed: int) -> None:
    rng, table, now_ns = random.Random(seed), ClaimTable(), 0
    names = [key(at) for at in range(120)]
    stand: dict[tuple[int, bytes], int] = {}
    heard: set[tuple[int, bytes]] = set()
    for _ in range(150):
        node, some = rng.randrange(4), rng.sample(names, rng.randrange(1, 100))
        match rng.randrange(6):
            case 0 | 1:
                eta_ms = [rng.choice((10, 500, 90_000, 10_000_000)) for _ in some]
                table.add(node, ClaimRun(tuple(some), CHUNK, tuple(eta_ms)), 1 << 40, now_ns)
                for one, ms in zip(some, eta_ms, strict=True):
                    stand[node, one] = due_ns(now_ns, min(CLAIM_S_MAX, ms / 1000))
            case 2:
                table.withdraw(node, some)
                stand = {one: due for one, due in stand.items() if one[0] != node or one[1] not in some}
            case 3:
                table.chunk_announced(node, some[0])
                stand.pop((node, some[0]), None)
                heard.discard((node, some[0]))
            case 4 if rng.random() < 0.2:
                table.node_left(node)
                stand = {one: due for one, due in stand.items() if one[0] != node}
            case _:
                now_ns += rng.choice((1, 10**8, 10**11))
                # What is due is late with the next moment at the latest, 1/4096 of its time later.
                for _ in range(50):
                    table.expire(now_ns)
                late = {one for one, due in stand.items() if due + max(1 << 20, 10**12 >> 10) < now_ns}
                there = {(each, one) for each in range(4) for one in table.of(each)}
                assert not late & there
                assert all(stand[one] <= now_ns for one in stand.keys() - there)
                stand = {one: due for one, due in stand.items() if one in there}
        assert {(each, one) for each in range(4) for one in table.of(each)} == stand.keys()
        assert table.claims_count == len(stand)
        for news in table.take_news():
            heard |= {(news.node, one) for run in news.claims.made for one in run.keys}
            heard -= {(news.node, one) for one in news.claims.withdrawn}
        assert heard == stand.keys()
    for node in range(4):
        table.node_left(node)
    assert table.claims_count == 0
    table.add(0, ClaimRun((names[0],), CHUNK, (1,)), 2 * CHUNK, now_ns)


def test_so_many_compute_a_chunk_and_no_more() -> None:
    table = ClaimTable()
    for node in range(CLAIMERS_PER_CHUNK_MAX + 1):
        table.add(node, ClaimRun((key("a"), key(node)), CHUNK, (1000, 1000)), 1 << 40, 0)
    assert [key("a") in table.of(node) for node in (0, CLAIMERS_PER_CHUNK_MAX)] == [True, False]
    table.withdraw(0, [key("a")])
    table.add(CLAIMERS_PER_CHUNK_MAX, ClaimRun((key("a"),), CHUNK, (1000,)), 1 << 40, 0)
    assert key("a") in table.of(CLAIMERS_PER_CHUNK_MAX)


def test_the_garbage_collector_visits_no_claim() -> None:
    table, keys = ClaimTable(), tuple(key(at) for at in range(2000))
    before = len(gc.get_objects())
    table.add(0, ClaimRun(keys, CHUNK, tuple(range(2000))), 1 << 40, 0)
    table.take_news()
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert not gc.is_tracked(table.of(0))
