"""What routers are told: quotes as the gate reckons, questions within bounds."""

from __future__ import annotations

import json

import pytest

from kvchunk.ids import KvIdentity, prefix_keys
from kvpolicy.tiers.cost_question import (
    KEYS_MAX,
    KEYS_PER_S_MAX,
    Allowance,
    CostQuestion,
    InTime,
    Part,
    QuestionError,
    TooManyQuestionsError,
    from_json,
    from_query,
    quote,
    verdicts,
)
from kvpolicy.tiers.gate import Offer, Prefill
from kvpolicy.tiers.holder_load import HolderLoad
from kvpolicy.value.costs import PRIORS, SourceCost, SourceCosts, Tier

MB = 10**6
COSTS = SourceCosts({tier: SourceCost(0.0, 1e9) for tier in PRIORS})
LOCAL, REMOTE = Offer(100 * MB, (Tier.LOCAL_DRAM,)), Offer(100 * MB, (Tier.REMOTE_DRAM,))


def test_chunks_are_local_coming_remote_or_computed() -> None:
    coming = Offer(100 * MB, (Tier.REMOTE_DRAM,), coming_bytes=20 * MB)
    told = quote(COSTS, [LOCAL, LOCAL, coming, REMOTE], 1, Prefill(5.0), {Tier.REMOTE_DRAM: 20 * MB})
    assert told.parts == {
        "local": Part(2, 0),
        "disk": Part(),
        "cold": Part(),
        "coming": Part(1, 20 * MB),
        "switch": Part(),
        "remote": Part(1, 100 * MB),
        "computing": Part(),
        "compute": Part(1, 0),
    }
    assert told.fetch_s == pytest.approx(0.12)
    assert told.wait_s == pytest.approx(0.02)
    assert told.compute_s == pytest.approx(1.0)
    assert told.seconds == pytest.approx(1.12)


def test_what_somebody_computes_is_waited_for_where_that_is_quicker() -> None:
    promised = Offer(100 * MB, (Tier.REMOTE_DRAM,), ready_s=0.3)
    told = quote(COSTS, [LOCAL, promised], 0, Prefill(2.0), {})
    assert (told.parts["computing"], told.parts["compute"]) == (Part(1, 100 * MB), Part())
    assert told.seconds == pytest.approx(0.3 + 0.1)


def test_a_bound_is_met_or_missed_by_so_much_and_one_node_is_recommended() -> None:
    quotes = {
        "n1": quote(COSTS, [LOCAL] * 2, 0, Prefill(1.0, queue_s=0.7), {}),
        "n2": quote(COSTS, [REMOTE] * 2, 0, Prefill(1.0), {}),
        "n3": quote(COSTS, [], 2, Prefill(1.0), {}),
    }
    found = verdicts(quotes, 0.5)
    assert found.nodes["n1"] == InTime(False, pytest.approx(0.2))
    assert found.nodes["n2"] == InTime(True, 0.0)
    assert found.nodes["n3"] == InTime(False, pytest.approx(0.5))
    assert (found.send_to, found.refuse) == ("n2", "")
    late = verdicts(quotes, 0.1)
    assert (late.send_to, late.refuse) == (None, "no node in time: n2 would be 0.100 s late")
    unknown = verdicts({"n1": quote(COSTS, [], 2, None, {})}, 0.5)
    assert unknown.nodes["n1"] == InTime(None, None)
    assert (unknown.send_to, unknown.refuse.partition(":")[0]) == (None, "say recompute_s")
    assert verdicts({}, 0.5).refuse == "no node"


def test_a_bound_in_a_question() -> None:
    assert from_query({"keys": "00" * 16, "within_s": "0.5"}).within_s == 0.5
    assert from_json(json.dumps({"keys": ["00" * 16]}).encode()).within_s is None
    with pytest.raises(QuestionError, match="within_s: -1 is not a number of 0 or more"):
        from_json(json.dumps({"keys": ["00" * 16], "within_s": -1}).encode())


def test_what_is_quicker_to_compute_is_not_brought() -> None:
    busy = Offer(100 * MB, (Tier.REMOTE_DRAM,), holder_load=HolderLoad(2000 * MB, 9))
    told = quote(COSTS, [LOCAL, busy], 0, Prefill(0.4, queue_s=0.1), {})
    assert (told.parts["remote"], told.parts["compute"]) == (Part(), Part(1, 100 * MB))
    assert told.seconds == pytest.approx(0.1 + 0.2)


def test_without_a_time_to_compute_only_the_fetch_is_known() -> None:
    told = quote(COSTS, [REMOTE], 1, None, {})
    assert (told.seconds, told.compute_s, told.fetch_s) == (None, None, pytest.approx(0.1))
    whole = quote(COSTS, [REMOTE], 0, None, {})
    assert (whole.seconds, whole.compute_s) == (pytest.approx(0.1), 0.0)


def test_nobody_has_anything() -> None:
    told = quote(COSTS, [], 3, Prefill(0.6, 0.5), {})
    assert (told.seconds, told.parts["compute"]) == (pytest.approx(0.6), Part(3, 0))


def test_late_chunks_cost_more_to_compute() -> None:
    """Attention only: the last of four equal chunks is 7 sixteenths."""
    assert quote(COSTS, [LOCAL] * 3, 1, Prefill(1.6, 1.0), {}).compute_s == pytest.approx(0.7)


def test_a_question_in_json_and_in_a_query() -> None:
    keys = ["00" * 16, "ab" * 16]
    asked = {"keys": keys, "recompute_s": 0.5, "queue_s": {"n1": 0.2}, "nodes": ["n1"]}
    question = from_json(json.dumps(asked).encode())
    assert [key.hex() for key in question.keys] == keys
    assert question.prefill("n1") == Prefill(0.5, queue_s=0.2)
    assert question.prefill("n2") == Prefill(0.5)
    assert from_query({"keys": ",".join(keys), "recompute_s": "0.5", "nodes": "n1,n2"}) == CostQuestion(
        question.keys, 0.5, nodes=("n1", "n2")
    )


def test_a_router_may_send_tokens_instead() -> None:
    namespace = KvIdentity("m", chunk_tokens=4)
    asked = {"namespace": namespace.digest().hex(), "chunk_tokens": 4, "tokens": list(range(11))}
    assert list(from_json(json.dumps(asked).encode()).keys) == prefix_keys(namespace, range(11))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "no JSON object"),
        ("{}", "give either keys, or tokens"),
        ('{"keys": []}', "0 chunks: 1 to 2048"),
        ('{"keys": "x"}', "keys: not a list"),
        ('{"keys": ["xy"]}', "keys: 'xy' is not 32 hex digits"),
        ('{"keys": [5]}', "keys: '5' is not 32 hex digits"),
        (json.dumps({"keys": ["00" * 16] * 2}), "the same chunk twice"),
        (json.dumps({"keys": [f"{one:032x}" for one in range(KEYS_MAX + 1)]}), "2049 chunks"),
        (json.dumps({"keys": ["00" * 16], "recompute_s": -1}), "recompute_s: -1 is not"),
        (json.dumps({"keys": ["00" * 16], "recompute_s": True}), "recompute_s: True is not"),
        ('{"keys": ["%s"], "recompute_s": NaN}' % ("00" * 16), "recompute_s: nan is not"),
        (json.dumps({"keys": ["00" * 16], "attention_share": 2}), "attention_share: 2.0 is above 1"),
        (json.dumps({"keys": ["00" * 16], "queue_s": {"n": "x"}}), "queue_s of n: 'x' is not"),
        (json.dumps({"keys": ["00" * 16], "nodes": "n1"}), "nodes: not a list"),
        (json.dumps({"keys": ["00" * 16], "colour": 1}), "unknown: 'colour'"),
        (json.dumps({"tokens": [1], "namespace": "ab", "chunk_tokens": 1}), "namespace: 'ab' is not 64 hex digits"),
        (json.dumps({"tokens": [1], "namespace": "ab" * 32}), "chunk_tokens: None"),
        (json.dumps({"tokens": [-1], "namespace": "ab" * 32, "chunk_tokens": 1}), "tokens: not a list of numbers"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_questions_that_make_no_sense(body: str, said: str) -> None:
    with pytest.raises(QuestionError) as caught:
        from_json(body.encode())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("query", "said"), [({"keys": "00"}, "is not 32"), ({"recompute_s": "x"}, "is not a number")])
def test_queries_that_make_no_sense(query: dict[str, str], said: str) -> None:
    with pytest.raises(QuestionError, match=said):
        from_query(query)


def test_so_many_chunks_are_weighed_in_a_second() -> None:
    allowance = Allowance()
    now_ns = 10**9
    allowance.take(KEYS_PER_S_MAX // 4, now_ns)
    for _ in range(10):
        with pytest.raises(TooManyQuestionsError) as refused:
            allowance.take(KEYS_MAX, now_ns)
        assert refused.value.after_s == pytest.approx(KEYS_MAX / KEYS_PER_S_MAX, rel=0.01)
        now_ns += int(refused.value.after_s * 1e9) + 10
        allowance.take(KEYS_MAX, now_ns)
    allowance.take(10**9, now_ns + 10**9)
