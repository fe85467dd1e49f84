"""The gate: bring or recompute, and from where, by what was measured; and what its decisions cost."""

from __future__ import annotations

import pytest

from kvpolicy.tiers.gate import Choice, Gate, GateParameters, Offer, Prefill, Verdict
from kvpolicy.tiers.holder_load import HolderLoad
from kvpolicy.value.costs import MEASUREMENTS_MAX, PRIORS, Measurement, SourceCost, SourceCosts, Tier

MIB = 1 << 20
SECOND = 1_000_000_000
DRAM, DISK, REMOTE, SWITCH = Tier.LOCAL_DRAM, Tier.LOCAL_DISK, Tier.REMOTE_DRAM, Tier.SWITCH


def fresh(disk: float = 1e9, remote: float = 1e9, switch: float = 1e9) -> Gate:
    """A gate that has measured nothing and believes in these rates."""
    rates = {DISK: disk, REMOTE: remote, SWITCH: switch, Tier.REMOTE_DISK: remote / 2, DRAM: 1e12}
    return Gate(SourceCosts({**PRIORS, **{source: SourceCost(0.0, rate) for source, rate in rates.items()}}))


def gate(disk: float = 1e9, remote: float = 1e9, switch: float = 1e9) -> Gate:
    """The same after one measurement of each source that found the rate as believed."""
    rates = {DISK: disk, REMOTE: remote, SWITCH: switch, Tier.REMOTE_DISK: remote / 2}
    made = fresh(disk, remote, switch)
    for source, rate in rates.items():
        made.measured(source, 10**7, 10**7 / rate, 0)  # no probes before probe_after_ns
    made.take_measurements()
    return made


def offers(*sources: Tier | tuple[Tier, ...], size: int = 100 * 10**6) -> list[Offer]:
    return [Offer(size, one if isinstance(one, tuple) else (one,)) for one in sources]


def run(
    made: Gate, verdict: Verdict, seconds: float, now_ns: int = SECOND, brought: int | None = None, **arrived: int
) -> None:
    came = {Tier(name): size for name, size in arrived.items()}
    count = len(verdict.routes) if brought is None else brought
    made.ended(made.started(verdict), came, seconds, now_ns, brought=count)


def computing(seconds: float | None) -> Prefill | None:
    return None if seconds is None else Prefill(seconds)


def test_what_is_here_costs_nothing() -> None:
    verdict = gate().decide(offers(DRAM, DRAM), computing(0.0), 0)
    assert (verdict.choice, verdict.routes, verdict.expected_s) == (Choice.LOCAL, (DRAM, DRAM), 0.0)


def test_without_a_time_to_recompute_everything_is_brought() -> None:
    verdict = gate(remote=1.0).decide(offers(REMOTE, REMOTE), None, 0)
    assert (verdict.choice, verdict.routes) == (Choice.FETCH, (REMOTE, REMOTE))


@pytest.mark.parametrize(("recompute_s", "choice"), [(0.25, Choice.FETCH), (0.15, Choice.RECOMPUTE)])
def test_the_faster_way_is_taken(recompute_s: float, choice: Choice) -> None:
    verdict = gate(remote=1e9).decide(offers(REMOTE, REMOTE), computing(recompute_s), 0)
    assert verdict.choice is choice
    assert verdict.expected_s == pytest.approx(min(0.2, recompute_s))


def test_what_nobody_offers_is_computed_anyway_and_decides_nothing() -> None:
    """0.1 s to bring one chunk, 0.08 s to compute it; that 0.72 s are to be computed behind it makes no difference."""
    verdict = gate(remote=1e9).decide(offers(REMOTE), computing(0.8), 0, absent=9)
    assert (verdict.choice, verdict.expected_s) == (Choice.RECOMPUTE, pytest.approx(0.08))
    assert gate(remote=1e9).decide(offers(REMOTE), computing(0.8), 0).choice is Choice.FETCH


def test_the_local_part_is_kept_when_the_rest_is_recomputed() -> None:
    verdict = gate().decide(offers(DRAM, REMOTE, DRAM), computing(0.001), 0)
    assert (verdict.choice, verdict.routes) == (Choice.RECOMPUTE, (DRAM,))


def test_each_chunk_takes_the_source_that_is_done_first_and_both_work_side_by_side() -> None:
    verdict = gate(disk=1e9, remote=1e9).decide(offers(*[(DISK, REMOTE)] * 10), None, 0)
    assert (verdict.routes.count(DISK), verdict.routes.count(REMOTE)) == (5, 5)
    assert verdict.expected_s == pytest.approx(0.5)
    slow_disk = gate(disk=1e8, remote=1e9).decide(offers(*[(DISK, REMOTE)] * 10), None, 0)
    assert slow_disk.routes.count(REMOTE) >= 9


def test_switch_or_holder_by_what_was_measured() -> None:
    """The switch serves a lone reader at half the holder's rate: the gate finds that out."""
    made = gate(remote=1e9, switch=1e9)
    both = offers((SWITCH, REMOTE))
    for _ in range(10):
        made.measured(SWITCH, 64 * MIB, 64 * MIB / 1.3e9, 0)
        made.measured(REMOTE, 64 * MIB, 64 * MIB / 2.6e9, 0)
    assert made.decide(both, None, 0).routes == (REMOTE,)
    for _ in range(10):
        made.measured(REMOTE, 64 * MIB, 64 * MIB / 0.4e9, 0)
    assert made.decide(both, None, 0).routes == (SWITCH,)


def test_a_leading_part_is_brought_where_only_that_pays() -> None:
    """The first half lies on a fast disk, the second with a slow peer; recomputing is in between."""
    verdict = gate(disk=10e9, remote=0.1e9).decide(offers(DISK, DISK, REMOTE, REMOTE), computing(1.0), 0)
    assert (verdict.choice, verdict.routes) == (Choice.PART, (DISK, DISK))
    assert verdict.expected_s == pytest.approx(0.02 + 0.5)


def test_what_is_left_of_other_transfers_comes_first() -> None:
    made = gate(remote=1e9)
    assert made.decide(offers(REMOTE), computing(0.3), 0, under_way={REMOTE: 5 * 10**8}).choice is Choice.RECOMPUTE
    assert made.decide(offers(REMOTE), computing(0.3), 0, under_way={REMOTE: 10**8}).choice is Choice.FETCH, (
        "most is here"
    )
    assert made.decide(offers(REMOTE), computing(0.3), 0, under_way={SWITCH: 5 * 10**8}).choice is Choice.RECOMPUTE
    assert made.decide(offers(DISK), computing(0.3), 0, under_way={REMOTE: 5 * 10**8}).choice is Choice.DISK, (
        "it is free"
    )


def test_chunks_on_their_way_cost_what_is_left_of_them() -> None:
    made = gate(remote=1e9)
    shared = [Offer(100 * 10**6, (REMOTE,), coming_bytes=100 * 10**6)] * 5
    under_way = {REMOTE: 5 * 10**8}
    verdict = made.decide(shared, computing(0.6), 0, under_way=under_way)
    assert (verdict.choice, verdict.brought) == (Choice.FETCH, ())
    assert verdict.expected_s == pytest.approx(0.5)
    assert made.decide(shared, computing(0.4), 0, under_way=under_way).choice is Choice.RECOMPUTE
    nearly = [Offer(100 * 10**6, (REMOTE,), coming_bytes=10**6)] * 5
    assert made.decide(nearly, computing(0.4), 0, under_way={REMOTE: 5 * 10**6}).expected_s == pytest.approx(0.005)


def test_what_a_holder_has_queued_delays_its_chunks_and_is_not_learned_as_a_slow_link() -> None:
    made = gate(remote=1e9)
    queued = [Offer(100 * 10**6, (REMOTE,), holder_load=HolderLoad(4 * 10**8, 4))]
    assert made.decide(queued, computing(0.3), 0).choice is Choice.RECOMPUTE
    verdict = made.decide(queued, computing(0.6), 0)
    assert verdict.expected_s == pytest.approx(0.5)
    run(made, verdict, 0.5, remote=100 * 10**6)
    assert made.costs.cost(REMOTE).rate_bytes_per_s == pytest.approx(1e9)


def test_the_engines_queue_is_time_for_the_fetch() -> None:
    """0.1 s to bring what takes 0.05 s to compute, but others are computed before it for 0.2 s."""
    made = gate(remote=1e9)
    verdict = made.decide(offers(REMOTE), Prefill(0.05, queue_s=0.2), 0)
    assert (verdict.choice, verdict.expected_s) == (Choice.FETCH, pytest.approx(0.2))
    run(made, verdict, 0.1, remote=100 * 10**6)
    assert made.counts.saved_s == pytest.approx(0.05)
    assert made.counts.regret_s == {}


def test_late_chunks_are_worth_more_where_attention_counts() -> None:
    linear, attention = Prefill(1.0).left_s([1.0] * 4, 0), Prefill(1.0, 1.0).left_s([1.0] * 4, 0)
    assert linear == pytest.approx((1.0, 0.75, 0.5, 0.25, 0.0))
    assert attention == pytest.approx((1.0, 15 / 16, 12 / 16, 7 / 16, 0.0))
    assert Prefill(1.0, 1.0).left_s([1.0] * 2, 2) == pytest.approx((1.0, 7 / 12, 0.0))
    half = Prefill(1.0, 1.0).of_leading(2, 4, 0)
    assert (half.compute_s, half.attention_share) == (pytest.approx(4 / 16), 1.0)
    mixed = Prefill(1.0, 0.5)
    assert mixed.of_leading(2, 4, 0).left_s([1.0] * 2, 0)[:2] == pytest.approx(
        tuple(left_s - mixed.left_s([1.0] * 4, 0)[2] for left_s in mixed.left_s([1.0] * 4, 0)[:2])
    ), "the same chunks cost the same, however they are asked for"


@pytest.mark.parametrize("wrong", [{"compute_s": -1.0}, {"compute_s": 1.0, "attention_share": 1.1}])
def test_no_such_prefill(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no such prefill"):
        Prefill(**wrong)


def test_a_fetch_is_given_up_when_computing_would_have_been_done() -> None:
    made = gate(disk=10e9, remote=0.1e9)
    part = made.decide(offers(DISK, DISK, REMOTE, REMOTE), Prefill(1.0, queue_s=0.1), 0)
    assert part.give_up_s == pytest.approx(0.1 + 0.5)
    assert made.decide(offers(DISK), None, 0).give_up_s is None


# ---------------------------------------------------------------- an agent that has measured nothing

GBIT = 1e9 / 8
LLAMA_8B_CHUNK = 32 * MIB
"""256 tokens of 128 KiB."""


def cold(link_bytes_per_s: float) -> Gate:
    """As an agent starts: all it knows is the rate of its link."""
    over_link = SourceCost(20e-6, link_bytes_per_s)
    return Gate(SourceCosts({**PRIORS, REMOTE: over_link, SWITCH: over_link, Tier.REMOTE_DISK: over_link}))


@pytest.mark.parametrize(
    ("node", "link_gbit", "tokens_per_s", "chunk_bytes", "brings"),
    [
        ("Llama-3-8B on one H100", 100, 30_000, LLAMA_8B_CHUNK, True),
        ("Llama-3-8B on one H100", 1, 30_000, LLAMA_8B_CHUNK, False),
        ("Llama-3-70B on eight H100", 400, 15_000, 80 * MIB, True),
        ("Llama-3-8B on an A10", 25, 4_000, LLAMA_8B_CHUNK, True),
    ],
)
def test_the_first_request_is_decided_right(
    node: str, link_gbit: int, tokens_per_s: int, chunk_bytes: int, brings: bool
) -> None:
    chunks = 16
    verdict = cold(link_gbit * GBIT).decide(
        offers(*[REMOTE] * chunks, size=chunk_bytes), Prefill(256 * chunks / tokens_per_s), 0
    )
    assert (verdict.choice is Choice.FETCH) is brings, node


# ---------------------------------------------------------------- probes


def test_a_refused_source_is_probed_beside_the_request() -> None:
    made = gate(remote=1e9)
    slow = offers(DRAM, REMOTE, REMOTE, size=10**7)
    assert made.decide(slow, computing(0.005), 9 * SECOND).probe is None, "it was measured a moment ago"
    verdict = made.decide(slow, computing(0.005), 10 * SECOND)
    assert (verdict.choice, verdict.routes) == (Choice.RECOMPUTE, (DRAM,)), "the request does not wait for it"
    assert verdict.probe is not None
    assert (verdict.probe.place, verdict.probe.source, verdict.probe.size_bytes) == (1, REMOTE, 10**7)
    assert made.decide(slow, computing(0.005), 11 * SECOND).probe is None, "one at a time"
    assert verdict.probe.worth_s == pytest.approx(0.0025)
    made.probed(verdict.probe, 0.001, 11 * SECOND)
    again = made.decide(slow, computing(0.005), 12 * SECOND)
    assert again.probe is not None, "one good probe is followed by others at once"
    made.probed(again.probe, 0.001, 12 * SECOND)
    made.probed(again.probe, 0.001, 12 * SECOND)
    made.probed(again.probe, 0.001, 12 * SECOND)
    assert made.decide(slow, computing(0.005), 13 * SECOND).choice is Choice.FETCH, "the network had become faster"


def test_a_source_that_nobody_has_measured_is_probed_at_the_first_refusal() -> None:
    verdict = cold(GBIT).decide(offers(REMOTE, size=LLAMA_8B_CHUNK), computing(0.01), 0)
    assert verdict.choice is Choice.RECOMPUTE
    assert verdict.probe is not None


def test_probes_take_a_hundredth_of_a_slow_link_at_most() -> None:
    """32 MiB take 0.27 s of 1 Gbit/s: one such probe in 27 s is affordable."""
    made, taken = cold(GBIT), 0.0
    for second in range(600):
        verdict = made.decide(offers(REMOTE, size=LLAMA_8B_CHUNK), computing(0.01), second * SECOND)
        if verdict.probe is not None:
            taken += LLAMA_8B_CHUNK / GBIT
            made.probed(verdict.probe, 0.009, second * SECOND, alone=True)
            for _ in range(30):
                made.measured(REMOTE, LLAMA_8B_CHUNK, LLAMA_8B_CHUNK / GBIT, second * SECOND)
    assert 0.005 * 600 < taken < 0.0101 * 600 + 0.3


def test_what_comes_anyway_is_no_probe() -> None:
    coming = [*offers(DRAM), Offer(10**8, (REMOTE,), coming_bytes=10**8)]
    assert gate(remote=1e8).decide(coming, computing(0.01), 99 * SECOND).probe is None


def test_probes_that_find_nothing_new_become_rare_and_news_bring_them_back() -> None:
    made = gate(remote=1e9)
    probes = []
    for second in range(10, 400):
        verdict = made.decide(offers(REMOTE, size=10**7), computing(0.005), second * SECOND)
        if verdict.probe is not None:
            probes.append(second)
            made.probed(verdict.probe, 0.01, second * SECOND)
    assert probes == [10, 30, 70, 150, 230, 310, 390]
    verdict = made.decide(offers(REMOTE, size=10**7), computing(0.005), 470 * SECOND)
    assert verdict.probe is not None
    made.probed(verdict.probe, 0.001, 470 * SECOND)
    for _ in range(20):
        made.measured(REMOTE, 10**7, 0.01, 471 * SECOND)
    assert made.decide(offers(REMOTE, size=10**7), computing(0.005), 473 * SECOND).probe is not None


def test_a_probe_that_never_came_makes_the_next_one_rarer() -> None:
    made = gate(remote=1e9)
    verdict = made.decide(offers(REMOTE, size=10**7), computing(0.005), 10 * SECOND)
    assert verdict.probe is not None
    made.probed(verdict.probe, None, 11 * SECOND)
    assert made.decide(offers(REMOTE, size=10**7), computing(0.005), 29 * SECOND).probe is None
    assert made.decide(offers(REMOTE, size=10**7), computing(0.005), 30 * SECOND).probe is not None


# ---------------------------------------------------------------- learning and regret


def test_crowded_fetches_do_not_pass_for_a_slow_network() -> None:
    made = fresh(remote=1e9)
    one = made.started(made.decide(offers(REMOTE), None, 0))
    two = made.started(made.decide(offers(REMOTE), None, 0))
    made.ended(one, {REMOTE: 100 * 10**6}, 0.2, SECOND, brought=1)
    made.ended(two, {REMOTE: 100 * 10**6}, 0.2, SECOND, brought=1)
    assert made.costs.cost(REMOTE).rate_bytes_per_s == 1e9
    run(made, made.decide(offers(REMOTE), None, 0), 0.2, remote=100 * 10**6)
    assert made.costs.cost(REMOTE).rate_bytes_per_s == pytest.approx(0.5e9)


def test_mixed_fetches_teach_nothing() -> None:
    made = gate()
    run(made, made.decide(offers(DISK, REMOTE), None, 0), 5.0, disk=100 * 10**6, remote=100 * 10**6)
    assert made.costs.cost(REMOTE).rate_bytes_per_s == made.costs.cost(DISK).rate_bytes_per_s == 1e9


def test_regret_of_bringing_is_what_recomputing_would_have_saved() -> None:
    made = gate(remote=1e9)
    verdict = made.decide(offers(REMOTE), computing(0.25), 0)
    run(made, verdict, 0.1, remote=100 * 10**6)
    assert made.counts.saved_s == pytest.approx(0.15)
    assert made.counts.regret_s == {}
    run(made, verdict, 0.4, remote=100 * 10**6)
    assert made.counts.regret_s == {Choice.FETCH: pytest.approx(0.15)}


def test_what_did_not_arrive_is_recomputed_on_top() -> None:
    made = gate(remote=1e9)
    run(made, made.decide(offers(REMOTE, REMOTE), computing(0.4), 0), 0.3, brought=1, remote=100 * 10**6)
    assert made.counts.regret_s == {Choice.FETCH: pytest.approx(0.3 + 0.2 - 0.4)}


def test_regret_of_a_route_is_what_the_other_source_would_have_taken() -> None:
    made = gate(disk=2e9, remote=1e9)
    verdict = made.decide(offers((DISK, REMOTE)), None, 0)
    assert verdict.choice is Choice.DISK
    run(made, verdict, 0.35, disk=100 * 10**6)
    assert made.counts.regret_s == {Choice.DISK: pytest.approx(0.25)}


def test_regret_of_refusing_shows_with_the_next_measurement() -> None:
    made = fresh(remote=1e9)
    assert made.decide(offers(REMOTE, REMOTE), computing(0.15), 0).choice is Choice.RECOMPUTE
    made.measured(DISK, 10**8, 0.1, SECOND)
    assert made.counts.regret_s == {}, "says nothing of the network"
    made.measured(REMOTE, 2 * 10**8, 0.05, SECOND)
    assert made.counts.regret_s == {Choice.RECOMPUTE: pytest.approx(0.1)}
    made.measured(REMOTE, 2 * 10**8, 0.05, SECOND)
    assert made.counts.regret_s == {Choice.RECOMPUTE: pytest.approx(0.1)}, "told once"


def test_refusing_what_would_have_come_too_late_is_not_regretted() -> None:
    """A holder with a long queue, and a chunk that somebody still computes: a quick network would not have helped."""
    for late in (
        Offer(10**8, (REMOTE,), holder_load=HolderLoad(10**9, 4)),
        Offer(10**8, (REMOTE,), ready_s=0.3),
    ):
        made = fresh(remote=1e9)
        assert made.decide([late], computing(0.15), 0).choice is Choice.RECOMPUTE
        made.measured(REMOTE, 2 * 10**8, 0.05, SECOND)
        assert made.counts.regret_s == {}


def test_old_refusals_are_not_judged_by_a_new_network() -> None:
    made = Gate(gate(remote=1e9).costs, GateParameters(regret_ns=SECOND))
    made.decide(offers(REMOTE), computing(0.05), 0)
    made.measured(REMOTE, 10**8, 0.001, 2 * SECOND)
    assert made.counts.regret_s == {}


def test_decisions_are_counted() -> None:
    made = gate()
    for wanted, recompute_s in (
        (offers(DRAM), None),
        (offers(DISK), None),
        (offers(REMOTE), 0.0),
        (offers(SWITCH), 9.0),
    ):
        made.decide(wanted, computing(recompute_s), 0)
    made.decide(offers(DISK, REMOTE), None, 0)
    assert dict(made.counts.decisions) == {
        Choice.LOCAL: 1,
        Choice.DISK: 1,
        Choice.RECOMPUTE: 1,
        Choice.SWITCH: 1,
        Choice.MIXED: 1,
    }


def test_what_is_measured_is_handed_on_once() -> None:
    made = gate()
    verdict = made.decide(offers(REMOTE, REMOTE), computing(0.5), 0)
    run(made, verdict, 0.3, remote=2 * 10**8)
    assert made.take_measurements() == [
        Measurement(Tier.RECOMPUTE, 2 * 10**8, 0.5),
        Measurement(REMOTE, 2 * 10**8, 0.3),
    ]
    assert made.take_measurements() == []
    assert made.costs.cost_s(Tier.RECOMPUTE, 2 * 10**8) == pytest.approx(0.5)
    for _ in range(MEASUREMENTS_MAX + 1):
        made.measured(REMOTE, 10**8, 0.1, SECOND)
    assert len(made.take_measurements()) == MEASUREMENTS_MAX
