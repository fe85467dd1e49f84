"""Waiting for what somebody else computes: what the gate makes of a promise, and who is believed."""

from __future__ import annotations

import pytest

from kvpolicy.tiers.gate import Choice, Gate, GateParameters, Offer, Prefill
from kvpolicy.tiers.merging import DISTRUST_S_MAX, Trust, due_ns, spared_s
from kvpolicy.value import SourceCosts, Tier
from kvpolicy.value.costs import PRIORS, SourceCost

S = 1_000_000_000
MIB = 1 << 20
LINK = {**PRIORS, Tier.REMOTE_DRAM: SourceCost(0.001, 1e9)}
"""A chunk of 1 MiB takes about 2 ms."""


def gate(wait_max_s: float = 0.25) -> Gate:
    return Gate(SourceCosts(LINK), GateParameters(wait_max_s=wait_max_s))


def computing(*ready_s: float) -> list[Offer]:
    return [Offer(MIB, (Tier.REMOTE_DRAM,), ready_s=one) for one in ready_s]


def test_a_promise_that_is_sooner_than_computing_is_waited_for() -> None:
    verdict = gate().decide(computing(0.02, 0.04, 0.06), Prefill(0.3), 0)
    assert verdict.choice is Choice.WAIT
    assert len(verdict.routes) == 3
    assert verdict.expected_s == pytest.approx(0.062, abs=0.003)
    assert verdict.give_up_s == pytest.approx(0.3)


def test_a_promise_that_is_later_is_not() -> None:
    verdict = gate().decide(computing(0.4, 0.4, 0.4), Prefill(0.3), 0)
    assert verdict.choice is Choice.RECOMPUTE
    assert verdict.probe is None


def test_the_engines_own_queue_makes_waiting_free() -> None:
    verdict = gate().decide(computing(0.4, 0.4, 0.4), Prefill(0.3, queue_s=0.4), 0)
    assert verdict.choice is Choice.WAIT
    assert verdict.expected_s == pytest.approx(0.402, abs=0.003)


@pytest.mark.parametrize(("behind", "ready_s", "waits"), [(0, 0.31, False), (1, 0.31, True), (1, 0.7, False)])
def test_a_loaded_engine_waits_a_little_longer_to_spare_those_behind(behind: int, ready_s: float, waits: bool) -> None:
    verdict = gate().decide(computing(ready_s, ready_s), Prefill(0.3, behind=behind), 0)
    assert (verdict.choice is Choice.WAIT) == waits


def test_nobody_is_asked_to_wait_longer_than_the_bound() -> None:
    loaded = Prefill(0.3, behind=100)
    assert gate(0.25).decide(computing(0.54), loaded, 0).choice is Choice.WAIT
    verdict = gate(0.25).decide(computing(0.56), loaded, 0)
    assert verdict.choice is Choice.RECOMPUTE
    waiting = gate(0.25).decide(computing(0.54), loaded, 0)
    assert waiting.give_up_s == pytest.approx(0.55)
    assert gate(0.0).decide(computing(0.31), loaded, 0).choice is Choice.RECOMPUTE


def test_what_is_there_is_brought_while_the_rest_is_computed_elsewhere() -> None:
    offers = [Offer(MIB, (Tier.REMOTE_DRAM,)), *computing(0.05)]
    verdict = gate().decide(offers, Prefill(0.3), 0)
    assert verdict.choice is Choice.WAIT
    assert len(verdict.routes) == 2


def test_a_promise_of_the_same_node_costs_no_transfer() -> None:
    here = [Offer(MIB, (Tier.REMOTE_DRAM,), 0, ready_s=0.05)]
    verdict = gate().decide(here, Prefill(0.3), 0)
    assert verdict.expected_s == pytest.approx(0.05)
    assert not verdict.brought


class CountedCosts(SourceCosts):
    """Counts how often somebody asks."""

    def __init__(self) -> None:
        super().__init__(LINK)
        self.asked_count = 0

    def cost(self, source: Tier) -> SourceCost:
        self.asked_count += 1
        return super().cost(source)


def test_what_many_promises_cost_grows_with_their_number_only() -> None:
    asked = []
    for count in (512, 1024, 4096):
        costs = CountedCosts()
        promises = computing(*(0.1 + place / 1e4 for place in range(count)))
        assert Gate(costs).decide(promises, Prefill(600.0, behind=3), 0).choice is Choice.WAIT
        asked.append(costs.asked_count / count)
    assert asked[0] == pytest.approx(asked[1], rel=0.05) == pytest.approx(asked[2], rel=0.05)


def test_who_waited_is_judged_by_what_computing_would_have_taken() -> None:
    one = gate()
    verdict = one.decide(computing(0.02), Prefill(0.3), 0)
    assert one.waited(verdict, 1, 0.05) == pytest.approx(0.25)
    assert not one.counts.regret_s
    assert one.waited(verdict, 0, 0.1) == 0
    assert one.counts.regret_s[Choice.WAIT] == pytest.approx(0.1)


def test_a_promise_is_broken_when_its_time_and_a_slack_have_passed() -> None:
    assert due_ns(0, 0.0) == int(0.05 * S)
    assert due_ns(0, 1.0) == int(1.25 * S)
    assert spared_s(3, 0.02, 0.25) == pytest.approx(0.06)
    assert spared_s(0, 5.0, 0.25) == 0


def test_who_breaks_promises_is_not_believed_for_longer_each_time() -> None:
    trust = Trust()
    now_ns, expected_s = 0, 1.0
    for _ in range(10):
        assert trust.believes("n1", now_ns)
        trust.broken("n1", now_ns)
        trust.broken("n1", now_ns)  # several chunks of one moment count once
        assert not trust.believes("n1", now_ns + int(expected_s * S) - 1)
        now_ns += int(expected_s * S)
        expected_s = min(DISTRUST_S_MAX, 2 * expected_s)
    assert trust.believes("n2", now_ns)
    trust.broken("n1", now_ns)
    trust.kept("n1")
    assert trust.believes("n1", now_ns)
    trust.broken("n1", now_ns)
    assert trust.believes("n1", now_ns + S)
