"""The gate: bring or recompute, and from where, by what was measured; and what its decisions cost."""

from __future__ import annotations

import pytest

from kvproto.tiers.gate import Choice, Gate, GateParameters, Offer, Verdict
from kvproto.value.costs import MEASUREMENTS_MAX, PRIORS, Measurement, Source, SourceCost, SourceCosts

MIB = 1 << 20
SECOND = 1_000_000_000
DRAM, DISK, REMOTE, SWITCH = Source.LOCAL_DRAM, Source.LOCAL_DISK, Source.REMOTE_DRAM, Source.SWITCH


def gate(disk: float = 1e9, remote: float = 1e9, switch: float = 1e9, overhead_s: float = 0.0) -> Gate:
    rates = {DISK: disk, REMOTE: remote, SWITCH: switch, Source.REMOTE_DISK: remote / 2, DRAM: 1e12}
    made = Gate(SourceCosts({**PRIORS, **{source: SourceCost(overhead_s, rate) for source, rate in rates.items()}}))
    for source in rates:
        made._measured_ns[source] = 0  # no probes before probe_after_ns
    return made


def offers(*sources: Source | tuple[Source, ...], size: int = 100 * 10**6) -> list[Offer]:
    return [Offer(size, one if isinstance(one, tuple) else (one,)) for one in sources]


def run(made: Gate, verdict: Verdict, seconds: float, now_ns: int = SECOND, **arrived: int) -> None:
    made.ended(made.started(verdict), {Source(name): size for name, size in arrived.items()}, seconds, now_ns)


def test_what_is_here_costs_nothing() -> None:
    verdict = gate().decide(offers(DRAM, DRAM), 0.0, 0)
    assert (verdict.choice, verdict.routes, verdict.expected_s) == (Choice.LOCAL, (DRAM, DRAM), 0.0)


def test_without_a_time_to_recompute_everything_is_brought() -> None:
    verdict = gate(remote=1.0).decide(offers(REMOTE, REMOTE), None, 0)
    assert (verdict.choice, verdict.routes) == (Choice.FETCH, (REMOTE, REMOTE))


@pytest.mark.parametrize(("recompute_s", "choice"), [(0.25, Choice.FETCH), (0.15, Choice.RECOMPUTE)])
def test_the_faster_way_is_taken(recompute_s: float, choice: Choice) -> None:
    verdict = gate(remote=1e9).decide(offers(REMOTE, REMOTE), recompute_s, 0)
    assert verdict.choice is choice
    assert verdict.expected_s == pytest.approx(min(0.2, recompute_s))


def test_what_nobody_offers_is_computed_anyway_and_decides_nothing() -> None:
    """0.1 s to bring one chunk, 0.08 s to compute it; that 0.72 s are to be computed behind it makes no difference."""
    verdict = gate(remote=1e9).decide(offers(REMOTE), 0.8, 0, absent=9)
    assert (verdict.choice, verdict.expected_s) == (Choice.RECOMPUTE, pytest.approx(0.08))
    assert gate(remote=1e9).decide(offers(REMOTE), 0.8, 0).choice is Choice.FETCH


def test_the_local_part_is_kept_when_the_rest_is_recomputed() -> None:
    verdict = gate().decide(offers(DRAM, REMOTE, DRAM), 0.001, 0)
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
    verdict = gate(disk=10e9, remote=0.1e9).decide(offers(DISK, DISK, REMOTE, REMOTE), 1.0, 0)
    assert (verdict.choice, verdict.routes) == (Choice.PART, (DISK, DISK))
    assert verdict.expected_s == pytest.approx(0.02 + 0.5)


def test_what_is_under_way_counts_until_it_ends() -> None:
    made = gate(remote=1e9)
    first = made.started(made.decide(offers(*[REMOTE] * 5), None, 0))
    assert made.under_way_bytes == 500 * 10**6
    assert made.decide(offers(REMOTE), 0.3, 0).choice is Choice.RECOMPUTE
    assert made.decide(offers(DISK), 0.3, 0).choice is Choice.DISK, "the disk is free"
    made.cancelled(first)
    assert made.under_way_bytes == 0
    assert made.decide(offers(REMOTE), 0.3, 0).choice is Choice.FETCH


def test_chunks_on_their_way_are_not_asked_for_twice() -> None:
    made = gate(remote=1e9)
    made.started(made.decide(offers(*[REMOTE] * 5), None, 0))
    shared = [Offer(100 * 10**6, (REMOTE,), coming=True)] * 5
    verdict = made.decide(shared, 0.6, 0)
    assert (verdict.choice, verdict.brought) == (Choice.FETCH, ())
    assert verdict.expected_s == pytest.approx(0.5)
    assert made.decide(shared, 0.4, 0).choice is Choice.RECOMPUTE


def test_a_refused_source_is_probed_after_a_while_and_not_at_any_price() -> None:
    made = gate(remote=1e9)
    slow = offers(REMOTE)  # 0.1 s
    assert made.decide(slow, 0.05, 9 * SECOND).choice is Choice.RECOMPUTE
    verdict = made.decide(slow, 0.05, 10 * SECOND)
    assert (verdict.choice, verdict.routes) == (Choice.PROBE, (REMOTE,))
    run(made, verdict, 0.01, 10 * SECOND, remote=100 * 10**6)
    assert made.decide(slow, 0.05, 11 * SECOND).choice is Choice.FETCH, "the network had become faster"
    dear = gate(remote=1e9).decide(offers(REMOTE, size=300 * 10**6), 0.05, 99 * SECOND)
    assert dear.choice is Choice.RECOMPUTE


def test_a_probe_brings_one_chunk_and_what_is_local_before_it() -> None:
    verdict = gate().decide(offers(REMOTE, REMOTE, REMOTE), 0.2, 10 * SECOND)
    assert (verdict.choice, verdict.routes) == (Choice.PROBE, (REMOTE,))
    behind = gate().decide(offers(DRAM, (SWITCH,), REMOTE), 0.15, 10 * SECOND)
    assert (behind.choice, behind.routes) == (Choice.PROBE, (DRAM, SWITCH))
    coming = [*offers(DRAM), Offer(10**8, (REMOTE,), coming=True)]
    crowded = gate(remote=1e8)
    crowded.started(crowded.decide(offers(REMOTE), None, 0))
    assert crowded.decide(coming, 0.01, 99 * SECOND).choice is Choice.RECOMPUTE, "what comes anyway measures nothing"


def test_probes_that_find_nothing_new_become_rare_and_news_bring_them_back() -> None:
    made = gate(remote=1e9)
    probes = []
    now_ns = 10 * SECOND
    while now_ns < 400 * SECOND:
        verdict = made.decide(offers(REMOTE), 0.05, now_ns)
        if verdict.choice is Choice.PROBE:
            probes.append(now_ns // SECOND)
            run(made, verdict, 0.1, now_ns, remote=100 * 10**6)
        now_ns += SECOND
    assert probes == [10, 30, 70, 150, 230, 310, 390]
    verdict = made.decide(offers(REMOTE), 0.05, 470 * SECOND)
    run(made, verdict, 0.001, 470 * SECOND, remote=100 * 10**6)
    for _ in range(20):
        made.measured(REMOTE, 100 * 10**6, 0.1, 471 * SECOND)
    assert made.decide(offers(REMOTE), 0.05, 480 * SECOND).choice is Choice.RECOMPUTE
    assert made.decide(offers(REMOTE), 0.05, 481 * SECOND).choice is Choice.PROBE, "as soon as at first"


def test_a_probe_that_never_ends_is_not_followed_by_others() -> None:
    made = gate(remote=1e9)
    ticket = made.started(made.decide(offers(REMOTE), 0.05, 10 * SECOND))
    made.cancelled(ticket)
    assert made.decide(offers(REMOTE), 0.05, 19 * SECOND).choice is Choice.RECOMPUTE
    assert made.decide(offers(REMOTE), 0.05, 20 * SECOND).choice is Choice.PROBE


def test_crowded_fetches_do_not_pass_for_a_slow_network() -> None:
    made = gate(remote=1e9)
    one = made.started(made.decide(offers(REMOTE), None, 0))
    two = made.started(made.decide(offers(REMOTE), None, 0))
    made.ended(one, {REMOTE: 100 * 10**6}, 0.2, SECOND)
    made.ended(two, {REMOTE: 100 * 10**6}, 0.2, SECOND)
    assert made.costs.cost(REMOTE).rate_bytes_per_s == 1e9
    run(made, made.decide(offers(REMOTE), None, 0), 0.2, remote=100 * 10**6)
    assert made.costs.cost(REMOTE).rate_bytes_per_s == pytest.approx(0.5e9)


def test_mixed_fetches_teach_nothing() -> None:
    made = gate()
    run(made, made.decide(offers(DISK, REMOTE), None, 0), 5.0, disk=100 * 10**6, remote=100 * 10**6)
    assert made.costs.cost(REMOTE).rate_bytes_per_s == made.costs.cost(DISK).rate_bytes_per_s == 1e9


def test_regret_of_bringing_is_what_recomputing_would_have_saved() -> None:
    made = gate(remote=1e9)
    verdict = made.decide(offers(REMOTE), 0.25, 0)
    run(made, verdict, 0.1, remote=100 * 10**6)
    assert made.counts.saved_s == pytest.approx(0.15)
    assert made.counts.regret_s == {}
    run(made, verdict, 0.4, remote=100 * 10**6)
    assert made.counts.regret_s == {Choice.FETCH: pytest.approx(0.15)}


def test_what_did_not_arrive_is_recomputed_on_top() -> None:
    made = gate(remote=1e9)
    run(made, made.decide(offers(REMOTE, REMOTE), 0.4, 0), 0.3, remote=100 * 10**6)
    assert made.counts.regret_s == {Choice.FETCH: pytest.approx(0.3 + 0.2 - 0.4)}


def test_regret_of_a_route_is_what_the_other_source_would_have_taken() -> None:
    made = gate(disk=2e9, remote=1e9)
    verdict = made.decide(offers((DISK, REMOTE)), None, 0)
    assert verdict.choice is Choice.DISK
    run(made, verdict, 0.35, disk=100 * 10**6)
    assert made.counts.regret_s == {Choice.DISK: pytest.approx(0.25)}


def test_regret_of_refusing_shows_with_the_next_measurement() -> None:
    made = gate(remote=1e9)
    assert made.decide(offers(REMOTE, REMOTE), 0.15, 0).choice is Choice.RECOMPUTE
    made.measured(DISK, 10**8, 0.1, SECOND)
    assert made.counts.regret_s == {}, "says nothing of the network"
    made.measured(REMOTE, 2 * 10**8, 0.05, SECOND)
    assert made.counts.regret_s == {Choice.RECOMPUTE: pytest.approx(0.1)}
    made.measured(REMOTE, 2 * 10**8, 0.05, SECOND)
    assert made.counts.regret_s == {Choice.RECOMPUTE: pytest.approx(0.1)}, "told once"


def test_old_refusals_are_not_judged_by_a_new_network() -> None:
    made = Gate(gate(remote=1e9).costs, GateParameters(regret_ns=SECOND))
    made._measured_ns[REMOTE] = 0
    made.decide(offers(REMOTE), 0.05, 0)
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
        made.decide(wanted, recompute_s, 0)
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
    verdict = made.decide(offers(REMOTE, REMOTE), 0.5, 0)
    run(made, verdict, 0.3, remote=2 * 10**8)
    assert made.take_measurements() == [
        Measurement(Source.RECOMPUTE, 2 * 10**8, 0.5),
        Measurement(REMOTE, 2 * 10**8, 0.3),
    ]
    assert made.take_measurements() == []
    assert made.costs.cost_s(Source.RECOMPUTE, 2 * 10**8) == pytest.approx(0.5)
    for _ in range(MEASUREMENTS_MAX + 1):
        made.measured(REMOTE, 10**8, 0.1, SECOND)
    assert len(made.take_measurements()) == MEASUREMENTS_MAX
