"""What is concluded: the rule of what pays, ranges in words, sentences that admit when nothing is gained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.figures import Management, ReplayFigures
from planner.cluster.options import Cluster, Sharing
from planner.errors import PlanError
from planner.hardware import engine_of, find_model
from planner.plan import Noise, PlanFigures, PlanOptions, SweepPoint, TraceFacts, check, facts_of
from planner.traces import TimeUnit, Trace, TraceRequest
from planner.verdict import Range, benefit, conclusions, headline, ranges

CLUSTER = Cluster(engine_of(find_model("llama-3-8b")), switch_bytes=15 * 2**20)
HASHED = Trace([], "test", TimeUnit.MS, 512)
BASE = ReplayFigures(
    sharing=Sharing.NONE,
    requests=3600,
    duration_s=3600.0,
    tokens=1000,
    hits={"local": 0.3, "disk": 0.0, "holder": 0.0, "cast": 0.0, "switch": 0.0, "computed": 0.7},
    refused=0.0,
    ttft_mean_s=1.0,
    ttft_p50_s=0.5,
    ttft_p99_s=5.0,
    fetches=0,
    fetch_p50_s=0.0,
    fetch_p99_s=0.0,
    saved_s=0.0,
    regret_s=0.0,
    given_up=0,
    queue_mean_s=0.0,
    prefill_s=1000.0,
    engine_busy=0.5,
    uplink_bytes=0.0,
    uplink_mean=0.0,
    uplink_peak=0.0,
    uplink_p99=0.0,
    management=Management(0, 0, 0, 0, 0, {}),
    core_cpu_s=0.0,
)


def figures(mean_s: float, p99_s: float = 5.0) -> dict[Sharing, ReplayFigures]:
    pool = replace(BASE, sharing=Sharing.UNICAST, ttft_mean_s=mean_s, ttft_p99_s=p99_s, prefill_s=900.0, core_cpu_s=10)
    return {Sharing.NONE: BASE, Sharing.UNICAST: pool}


@pytest.mark.parametrize(
    ("mean_s", "p99_s", "pays"),
    [(0.97, 5.0, True), (0.99, 5.0, False), (1.2, 5.0, False), (0.9, 5.5, False), (0.9, 4.0, True)],
)
def test_what_pays(mean_s: float, p99_s: float, pays: bool) -> None:
    one = benefit(Sharing.UNICAST, figures(mean_s, p99_s))
    assert one.pays is pays
    assert one.waited_s_per_hour == pytest.approx((1 - mean_s) * 3600)
    assert one.engine_s_per_hour == pytest.approx(100)
    assert one.net_s_per_hour == pytest.approx(90)


@pytest.mark.parametrize(
    ("paying", "text"),
    [
        ("", "nowhere from 2 to 16"),
        ("2 4 8 16", "everywhere from 2 to 16"),
        ("8 16", "from 8 on"),
        ("2 4", "up to 4"),
        ("4 8", "from 4 to 8"),
        ("4", "at 4 only"),
        ("2 8", "at 2, 8"),
    ],
)
def test_ranges_in_words(paying: str, text: str) -> None:
    assert Range("nodes", Sharing.CAST, tuple(paying.split()), ("2", "4", "8", "16")).text() == text


def test_ranges_come_from_the_points() -> None:
    points = [SweepPoint("nodes", str(n), n, figures(1.0 - 0.01 * n)) for n in (1, 2, 4)]
    (found,) = ranges(points)
    assert (found.axis, found.sharing, found.labels) == ("nodes", Sharing.UNICAST, ("2", "4"))


def test_it_says_when_nothing_is_gained() -> None:
    facts = TraceFacts(3600, 3600.0, 1000.0, 10, 10, reusable=0.31, once=0.5)
    said = conclusions(PlanFigures(PlanOptions(CLUSTER, "t"), facts, figures(0.995)))
    assert "There is next to nothing left for a pool to gain." in said[0]
    assert said[1] == "Unicast against no pool: gains almost nothing (mean -0.5%, p99 -0.0%)."
    assert "does not hold one chunk" in said[-1]
    worse = conclusions(PlanFigures(PlanOptions(CLUSTER, "t"), facts, figures(1.3)))
    assert worse[1].startswith("Unicast against no pool: costs more than it brings (mean +30.0%")
    better = conclusions(PlanFigures(PlanOptions(CLUSTER, "t"), facts, figures(0.5)))
    assert better[1].startswith("Unicast against no pool: pays. Mean time to first token 1 s -> 500 ms (50% less)")


def test_facts_of_a_trace() -> None:
    trace = [TraceRequest(0, 1024, 1, (1, 2)), TraceRequest(1000, 1536, 1, (1, 2, 3)), TraceRequest(2000, 512, 1, (4,))]
    facts = facts_of(replace(HASHED, requests=trace), CLUSTER)
    assert (facts.requests, facts.duration_s, facts.chunks) == (3, 2.0, 4)
    assert facts.once == 0.5
    assert facts.reusable == pytest.approx(1024 / 3072)
    with pytest.raises(PlanError, match="no requests"):
        facts_of(replace(HASHED, requests=[]), CLUSTER)
    with pytest.raises(PlanError, match="1 nodes"):
        check(replace(CLUSTER, nodes=1))


def test_less_than_chance_changes_means_nothing() -> None:
    noise = Noise.of(BASE, [replace(BASE, ttft_mean_s=1.1), replace(BASE, ttft_mean_s=0.95, ttft_p99_s=5.5)])
    assert (noise.ttft_mean, noise.ttft_p99) == (pytest.approx(0.1), pytest.approx(0.1))
    assert not benefit(Sharing.UNICAST, figures(0.92), noise).pays
    assert benefit(Sharing.UNICAST, figures(0.88), noise).pays
    assert not benefit(Sharing.UNICAST, figures(1.05), noise).costs
    facts = TraceFacts(3600, 3600.0, 1000.0, 10, 10, reusable=0.5, once=0.5)
    said = conclusions(PlanFigures(PlanOptions(CLUSTER, "t"), facts, figures(0.92), noise=noise))
    assert "Unicast against no pool: gains almost nothing (mean -8.0%, p99 -0.0%)." in said
    assert "Chance alone changes the mean by up to 10.0% here; less than that means nothing." in said


def options(**mean_s: float) -> PlanFigures:
    """A plan of some options: mean seconds by name, 1 s without a pool; casts halve the busiest uplink's load."""
    replays = {Sharing.NONE: BASE}
    for name, seconds in mean_s.items():
        sharing = Sharing[name.upper()]
        crowded = 0.2 if sharing.name.startswith("CAST") else 0.85
        replays[sharing] = replace(BASE, sharing=sharing, ttft_mean_s=seconds, uplink_p99=crowded)
    trace = replace(HASHED, requests=[TraceRequest(at, 512, 1, (1,)) for at in range(1000)])
    return PlanFigures(PlanOptions(CLUSTER, "t"), facts_of(trace, CLUSTER), replays)


@pytest.mark.parametrize(
    ("mean_s", "said"),
    [
        ({"unicast": 0.99, "cast": 0.985}, "You need no pool: no option brings"),
        ({"unicast": 1.4, "cast": 1.3}, "You need no pool: no option brings"),
        (
            {"unicast": 0.6, "replicas": 0.595, "cast": 0.595},
            "You do not need kvcast: any unicast pool will do, with 600 ms to the first token instead of 1 s (40% ",
        ),
        (
            {"unicast": 0.8, "replicas": 0.6, "cast": 0.6},
            "You do not need kvcast: a pool with replicas will do, with 600 ms to the first token instead of 1 s",
        ),
        (
            {"unicast": 0.8, "relay": 0.7, "cast": 0.5, "cast_switch": 0.45},
            "Casts pay: casts+switch brings the mean time to first token to 450 ms, from 800 ms with a unicast",
        ),
        (
            {"unicast": 1.5, "cast": 0.5},
            "Casts pay: casts brings the mean time to first token to 500 ms, from 1.5 s with a unicast pool and 1 s",
        ),
    ],
)
def test_the_verdict_is_one_sentence(mean_s: dict[str, float], said: str) -> None:
    verdict = headline(options(**mean_s))
    assert verdict.startswith(said)
    assert verdict.count(". ") == 0
    assert verdict.endswith(".")


def test_the_verdict_names_the_links_that_casts_would_spare() -> None:
    assert headline(options(unicast=0.6, cast=0.6)).endswith("; casts would only empty the busiest uplink, 85% -> 20%.")


def test_no_verdict_on_sharing_without_hashes() -> None:
    plan = options(unicast=0.5, cast=0.4)
    plan = replace(plan, trace=replace(plan.trace, hashed=False))
    assert headline(plan).startswith("No verdict: this trace has no hashes of its prompts")
    assert not any("pay" in line or "nothing left" in line for line in conclusions(plan))


@pytest.mark.parametrize(
    ("requests", "all_of_it", "last_third", "doubt"),
    [
        (499, 0.3, 0.3, " Do not rely on it: 499 requests are too few. Plan 500 at least."),
        (500, 0.3, 0.4, " The sample is too short to rely on it: its last third could reuse 40% of its tokens and all"),
        (500, 0.3, 0.37, ""),
    ],
)
def test_a_sample_that_is_too_short_says_so(requests: int, all_of_it: float, last_third: float, doubt: str) -> None:
    plan = options(unicast=0.99, cast=0.985)
    plan = replace(plan, trace=replace(plan.trace, requests=requests, reusable=all_of_it, reusable_late=last_third))
    verdict = headline(plan)
    assert verdict.startswith("You need no pool")
    assert doubt in verdict and ("rely" in verdict) == bool(doubt)
