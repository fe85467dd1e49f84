"""Max-min fair shares: cases worked by hand, the defining property, and an oracle that raises rates in tiny steps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.network.fairness import Flow, share


def _unicast(*links: int, weight: float = 1.0) -> Flow:
    return Flow(links[:-1], {0: (links[-1],)}, weight)


def test_one_bottleneck_is_split_evenly() -> None:
    flows = [_unicast(0, 1), _unicast(0, 2), _unicast(0, 3)]
    share(flows, [9.0, 100.0, 100.0, 100.0])
    assert [flow.rate for flow in flows] == pytest.approx([3.0, 3.0, 3.0])


def test_who_is_limited_elsewhere_leaves_room() -> None:
    # Bertsekas and Gallager, Data Networks, section 6.5.2: fill together, freeze at the first full link.
    flows = [_unicast(0, 1), _unicast(0, 2), _unicast(0, 2)]
    share(flows, [12.0, 100.0, 4.0])
    assert [flow.rate for flow in flows] == pytest.approx([8.0, 2.0, 2.0])


def test_weights_divide_a_link() -> None:
    flows = [_unicast(0, 1, weight=1.0), _unicast(0, 2, weight=3.0)]
    share(flows, [8.0, 100.0, 100.0])
    assert [flow.rate for flow in flows] == pytest.approx([2.0, 6.0])


def test_a_cast_uses_the_uplink_once() -> None:
    cast = Flow((0,), {1: (1,), 2: (2,), 3: (3,)})
    share([cast], [10.0, 10.0, 10.0, 10.0])
    assert cast.rates == pytest.approx({1: 10.0, 2: 10.0, 3: 10.0})


def test_a_slow_receiver_slows_nobody() -> None:
    cast = Flow((0,), {1: (1,), 2: (2,)})
    share([cast], [10.0, 10.0, 5.0])
    assert cast.rates == pytest.approx({1: 10.0, 2: 5.0})
    assert cast.rate == pytest.approx(10.0)


def test_a_cast_and_a_read_share_the_uplink_by_flow_not_by_reader() -> None:
    cast, read = Flow((0,), {1: (1,), 2: (2,)}), Flow((0,), {3: (3,)})
    share([cast, read], [10.0, 10.0, 10.0, 10.0])
    assert (cast.rate, read.rate) == (pytest.approx(5.0), pytest.approx(5.0))


def test_a_receiver_needs_a_link() -> None:
    with pytest.raises(ValueError, match="receiver 4 has no link"):
        share([Flow((), {4: ()})], [1.0])


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Flow], list[float]]:
    links = draw(st.integers(2, 6))
    capacity = [float(draw(st.integers(1, 20))) for _ in range(links)]
    flows = []
    for _ in range(draw(st.integers(1, 6))):
        shared = draw(st.sets(st.integers(0, links - 1), max_size=2))
        receivers = {}
        for receiver in range(draw(st.integers(1, 4))):
            own = draw(st.sets(st.integers(0, links - 1), min_size=1, max_size=2)) - shared
            receivers[receiver] = tuple(sorted(own or set(range(links)) - shared))
        flows.append(Flow(tuple(sorted(shared)), receivers, float(draw(st.sampled_from([0.5, 1.0, 2.0])))))
    return flows, capacity


def _used(flows: list[Flow], link: int) -> float:
    shared = sum(flow.rate for flow in flows if link in flow.shared)
    return shared + sum(rate for flow in flows for r, rate in flow.rates.items() if link in flow.receivers[r])


@given(networks())
@settings(max_examples=200, deadline=None)
def test_everybody_has_a_full_link_where_nobody_has_more(case: tuple[list[Flow], list[float]]) -> None:
    """The property that defines the allocation (Rubenstein et al., lemma 1)."""
    flows, capacity = case
    share(flows, capacity)
    for link, limit in enumerate(capacity):
        assert _used(flows, link) <= limit * (1 + 1e-6)
    for flow in flows:
        for receiver, own in flow.receivers.items():
            mine = flow.rates[receiver] / flow.weight
            bottlenecks = []
            for link in (*flow.shared, *own):
                beside = [other.rate / other.weight for other in flows if link in other.shared]
                beside += [
                    rate / other.weight
                    for other in flows
                    for r, rate in other.rates.items()
                    if link in other.receivers[r]
                ]
                full = _used(flows, link) >= capacity[link] * (1 - 1e-6)
                bottlenecks.append(full and mine >= max(beside) * (1 - 1e-6))
            assert any(bottlenecks)


@given(networks())
@settings(max_examples=40, deadline=None)
def test_same_as_raising_all_in_tiny_steps(case: tuple[list[Flow], list[float]]) -> None:
    """A brute-force oracle: every receiver grows by a step unless that would overfill one of its links."""
    flows, capacity = case
    share(flows, capacity)
    step = 0.02
    rates = [dict.fromkeys(flow.receivers, 0.0) for flow in flows]
    growing = {(index, receiver) for index, flow in enumerate(flows) for receiver in flow.receivers}
    while growing:
        trial = [dict(each) for each in rates]
        for index, receiver in growing:
            trial[index][receiver] += step * flows[index].weight
        full = set()
        for link, limit in enumerate(capacity):
            used = sum(max(trial[i].values()) for i, flow in enumerate(flows) if link in flow.shared)
            used += sum(
                trial[i][r] for i, flow in enumerate(flows) for r in flow.receivers if link in flow.receivers[r]
            )
            if used > limit + 1e-9:
                full.add(link)
        stopped = {
            (index, receiver)
            for index, receiver in growing
            if full & {*flows[index].shared, *flows[index].receivers[receiver]}
        }
        for index, receiver in growing - stopped:
            rates[index][receiver] = trial[index][receiver]
        growing -= stopped
    for flow, found in zip(flows, rates, strict=True):
        assert flow.rates == pytest.approx(found, abs=step * 12)
