"""What the figures mean, in words: which option pays, from where to where. The same rules for every trace.

An option *pays* against the one it is compared with when the mean time to first token falls by at least PAYS, and by
more than chance alone changes it (`Noise`), and the 99th percentile does not rise by as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvproto.units import format_bytes, format_rate
from planner.cells import cell_sizes
from planner.cluster.figures import ReplayFigures
from planner.cluster.options import Cluster, Sharing
from planner.plan import Noise, PlanFigures, SweepPoint
from planner.units import format_seconds

PAYS: Final = 0.02
AGAINST: Final = {
    Sharing.UNICAST: Sharing.NONE,
    Sharing.REPLICAS: Sharing.UNICAST,
    Sharing.RELAY: Sharing.UNICAST,
    Sharing.CAST: Sharing.UNICAST,
    Sharing.CAST_SWITCH: Sharing.CAST,
}
"""What each option has to beat."""


@dataclass(frozen=True, slots=True)
class Benefit:
    """An option against the one it has to beat; negative is worse. Per hour of the trace's time."""

    sharing: Sharing
    against: Sharing
    ttft_mean: float
    """Share by which the mean time to first token falls."""
    ttft_p99: float
    waited_s_per_hour: float
    """Waiting spared, all requests together."""
    engine_s_per_hour: float
    """Engine time spared."""
    core_cpu_s_per_hour: float
    """Controller's processor time spent more, as measured on the machine that planned."""
    noise: Noise

    @property
    def pays(self) -> bool:
        return self.ttft_mean >= max(PAYS, self.noise.ttft_mean) and self.ttft_p99 > -max(PAYS, self.noise.ttft_p99)

    @property
    def costs(self) -> bool:
        """It is worse than what it has to beat."""
        return self.ttft_mean <= -max(PAYS, self.noise.ttft_mean) or self.ttft_p99 <= -max(PAYS, self.noise.ttft_p99)

    @property
    def net_s_per_hour(self) -> float:
        """Engine seconds spared, less processor seconds spent (a second of one core for a second of a whole engine:
        that overstates the cost)."""
        return self.engine_s_per_hour - self.core_cpu_s_per_hour


def benefit(sharing: Sharing, figures: Mapping[Sharing, ReplayFigures], noise: Noise | None = None) -> Benefit:
    """Compare an option with the one before it."""
    against = AGAINST[sharing]
    new, old = figures[sharing], figures[against]
    hours = max(new.duration_s, 1.0) / 3600
    return Benefit(
        sharing,
        against,
        _fall(old.ttft_mean_s, new.ttft_mean_s),
        _fall(old.ttft_p99_s, new.ttft_p99_s),
        (old.ttft_mean_s - new.ttft_mean_s) * new.requests / hours,
        (old.prefill_s - new.prefill_s) / hours,
        (new.core_cpu_s - old.core_cpu_s) / hours,
        noise or Noise(),
    )


def _fall(old: float, new: float) -> float:
    return (old - new) / old if old > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Range:
    """Where on an axis an option pays."""

    axis: str
    sharing: Sharing
    labels: tuple[str, ...]
    """Of the points where it pays, in order."""
    tried: tuple[str, ...]

    def text(self) -> str:
        if not self.labels:
            return f"nowhere from {self.tried[0]} to {self.tried[-1]}"
        if self.labels == self.tried:
            return f"everywhere from {self.tried[0]} to {self.tried[-1]}"
        first, last = self.tried.index(self.labels[0]), self.tried.index(self.labels[-1])
        if self.tried[first : last + 1] != self.labels:
            return "at " + ", ".join(self.labels)
        if self.axis == "model":
            return "for " + ", ".join(self.labels)
        if last == len(self.tried) - 1:
            return f"from {self.labels[0]} on"
        if first == 0:
            return f"up to {self.labels[-1]}"
        return f"from {self.labels[0]} to {self.labels[-1]}" if first != last else f"at {self.labels[0]} only"


def ranges(points: Sequence[SweepPoint], noise: Noise | None = None) -> list[Range]:
    """Where each option pays, axis by axis."""
    found = []
    for axis in dict.fromkeys(point.axis for point in points):
        on_axis = [point for point in points if point.axis == axis]
        for sharing in on_axis[0].figures:
            if sharing in AGAINST:
                paying = tuple(point.label for point in on_axis if benefit(sharing, point.figures, noise).pays)
                found.append(Range(axis, sharing, paying, tuple(point.label for point in on_axis)))
    return found


_CASTING: Final = (Sharing.CAST, Sharing.CAST_SWITCH)
_CROWDED: Final = 0.5
"""Utilisation of the busiest uplink, in the 99th percentile of seconds, from which on sparing it is worth a word."""


_SAMPLE_MIN: Final = 500
_STILL_WARMING: Final = 1.25
"""Reuse in the last third of a sample against that in all of it: from here on, a longer one would say other things."""


def headline(plan: PlanFigures) -> str:
    """The verdict in one sentence, and what makes it doubtful; none where the trace does not say what it would take."""
    if not plan.trace.hashed:
        return (
            "No verdict: this trace has no hashes of its prompts, so it does not say what they share, and a pool is"
            " there for what they share. The times below are those of the engines and their queues alone."
        )
    doubt = sample_doubt(plan)
    return f"{_verdict(plan)} {doubt}" if doubt else _verdict(plan)


def sample_doubt(plan: PlanFigures) -> str:
    """Why the sample is too short for its verdict, or nothing."""
    trace = plan.trace
    if trace.requests < _SAMPLE_MIN:
        return f"Do not rely on it: {trace.requests} requests are too few. Plan {_SAMPLE_MIN:,} at least."
    if trace.reusable_late > _STILL_WARMING * trace.reusable:
        return (
            f"The sample is too short to rely on it: its last third could reuse {trace.reusable_late:.0%} of its tokens"
            f" and all of it {trace.reusable:.0%}, and that still grows."
        )
    return ""


def _verdict(plan: PlanFigures) -> str:
    """No pool, any pool, or casts."""
    replays, least = plan.replays, max(PAYS, plan.noise.ttft_mean)
    none = replays[Sharing.NONE]
    mean_s = {one: figures.ttft_mean_s for one, figures in replays.items() if one is not Sharing.NONE}
    best = min((one for one in mean_s if _worth(one, Sharing.NONE, plan)), key=lambda one: mean_s[one], default=None)
    if best is None:
        return (
            "You need no pool: no option brings the first token noticeably sooner than each node's own cache does"
            f" ({format_seconds(none.ttft_mean_s)})."
        )
    plain = min((one for one in mean_s if one not in _CASTING), key=lambda one: mean_s[one])
    casting = min((one for one in mean_s if one in _CASTING), key=lambda one: mean_s[one], default=plain)
    if casting is not plain and _worth(casting, plain, plan):
        without = f"{format_seconds(mean_s[Sharing.UNICAST])} with a unicast pool"
        if plain is not Sharing.UNICAST and mean_s[plain] < (1 - least) * mean_s[Sharing.UNICAST]:
            without += f", {format_seconds(mean_s[plain])} with {plain.value}"
        return (
            f"Casts pay: {casting.value} brings the mean time to first token to {format_seconds(mean_s[casting])},"
            f" from {without} and {format_seconds(none.ttft_mean_s)} with none."
        )
    # The plainest option that is as good as the best of its kind, and the fall that it brings.
    unicast_is_best = not _worth(plain, Sharing.UNICAST, plan) and _worth(Sharing.UNICAST, Sharing.NONE, plan)
    enough = Sharing.UNICAST if unicast_is_best else plain
    what = "any unicast pool" if enough is Sharing.UNICAST else f"a pool with {enough.value}"
    fall = _fall(none.ttft_mean_s, mean_s[enough])
    return (
        f"You do not need kvcast: {what} will do, with {format_seconds(mean_s[enough])} to the first token instead of"
        f" {format_seconds(none.ttft_mean_s)} ({fall:.0%} less){_spared(plan, enough, casting)}."
    )


def _worth(one: Sharing, other: Sharing, plan: PlanFigures) -> bool:
    """Whether an option is noticeably better than another, by the rule of what pays."""
    if one is other:
        return False
    new, old = plan.replays[one], plan.replays[other]
    falls = _fall(old.ttft_mean_s, new.ttft_mean_s) >= max(PAYS, plan.noise.ttft_mean)
    return falls and _fall(old.ttft_p99_s, new.ttft_p99_s) > -max(PAYS, plan.noise.ttft_p99)


def _spared(plan: PlanFigures, enough: Sharing, casting: Sharing) -> str:
    """What casts do for the links where they do nothing for the time."""
    crowded, relieved = plan.replays[enough].uplink_p99, plan.replays[casting].uplink_p99
    if casting is enough or crowded < _CROWDED or relieved > crowded / 2:
        return ""
    return f"; casts would only empty the busiest uplink, {crowded:.0%} -> {relieved:.0%}"


def conclusions(plan: PlanFigures) -> list[str]:
    """Sentences for the top of the report."""
    if not plan.trace.hashed:
        return _burst(plan)
    said = [_alone(plan)]
    said += [_step(plan, sharing) for sharing in plan.replays if sharing in AGAINST]
    if plan.noise.ttft_mean > PAYS:
        said.append(
            f"Chance alone changes the mean by up to {plan.noise.ttft_mean:.1%} here; less than that means nothing."
        )
    said += _burst(plan)
    if plan.options.cluster.switch_bytes:
        said.append(_switch(plan))
    return said


def _alone(plan: PlanFigures) -> str:
    none = plan.replays[Sharing.NONE]
    share, limit = none.hits["local"] + none.hits["disk"], plan.trace.reusable
    caches = "Local caches and disks" if plan.options.cluster.local_disk_bytes else "Local caches"
    text = f"{caches} alone serve {share:.1%} of all tokens; one infinite cache for all nodes would serve {limit:.1%}."
    if limit - share < 0.02:
        text += " There is next to nothing left for a pool to gain."
    return text


def _step(plan: PlanFigures, sharing: Sharing) -> str:
    one = benefit(sharing, plan.replays, plan.noise)
    old, new = plan.replays[one.against], plan.replays[sharing]
    name, other = sharing.value.capitalize(), one.against.value
    if one.pays:
        return (
            f"{name} against {other}: pays. Mean time to first token {format_seconds(old.ttft_mean_s)} -> "
            f"{format_seconds(new.ttft_mean_s)} ({one.ttft_mean:.0%} less), p99 {format_seconds(old.ttft_p99_s)} -> "
            f"{format_seconds(new.ttft_p99_s)}."
        )
    if one.costs:
        said = "does not pay: the longest waits are longer" if one.ttft_mean > 0 else "costs more than it brings"
    else:
        said = "gains almost nothing"
    return f"{name} against {other}: {said} (mean {-one.ttft_mean:+.1%}, p99 {-one.ttft_p99:+.1%})."


def _burst(plan: PlanFigures) -> list[str]:
    worse = [burst for burst in plan.bursts if burst.unicast_s > burst.recompute_s]
    better = [burst for burst in plan.bursts if burst.cast_s < burst.recompute_s]
    if not plan.bursts:
        return []
    tokens = plan.bursts[0].tokens
    if len(worse) == len(plan.bursts):
        text = f"A prefix of {tokens} tokens is computed faster than one node fetches it over these links."
    elif worse:
        text = (
            f"From {worse[0].readers} nodes that ask at once for the same {tokens} tokens on, a unicast fetch takes "
            "longer than computing them"
        )
        text += "; a cast stays faster." if better and better[-1].readers >= worse[0].readers else "; so does a cast."
    else:
        text = (
            f"Fetching {tokens} tokens beats computing them up to the {plan.bursts[-1].readers} nodes at once tried, "
            "without casts too."
        )
    return [text]


def _switch(plan: PlanFigures) -> str:
    cluster: Cluster = plan.options.cluster
    room = cluster.switch_bytes // cluster.chunk_bytes
    if room == 0:
        return (
            f"A switch memory of {format_bytes(cluster.switch_bytes)} does not hold one chunk of "
            f"{format_bytes(cluster.chunk_bytes)}: the switch cache stays empty."
        )
    if Sharing.CAST_SWITCH in plan.replays:
        share = plan.replays[Sharing.CAST_SWITCH].hits["switch"]
        memory = format_bytes(cluster.switch_bytes)
        return f"A switch memory of {memory} holds {room} chunks and serves {share:.1%} of all tokens."
    return ""


def settings(plan: PlanFigures) -> list[tuple[str, str]]:
    """What was assumed, for the head of the report."""
    cluster, trace = plan.options.cluster, plan.trace
    engine = cluster.engine
    return [
        ("trace", f"{plan.options.trace_name}: {trace.requests} requests, {format_seconds(trace.duration_s)}"),
        ("prompts", f"{trace.tokens_mean:.0f} tokens on average; {trace.once:.0%} of chunks are used once"),
        ("arrivals", "as in the trace" if plan.options.speed == 1 else f"x{plan.options.speed:g}"),
        ("model", f"{engine.model.name}, {engine.model.bytes_per_token / 1024:.4g} KiB of KV a token"),
        (
            "footprint",
            f"{trace.chunks} chunks of {format_bytes(cluster.chunk_bytes)}: {format_bytes(trace.footprint_bytes)}",
        ),
        (
            "engine",
            f"{engine.accelerators} x {engine.accelerator}, {engine.prefill_tokens_per_s:,.0f} prefill tokens/s",
        ),
        ("break-even", f"fetching beats computing above {format_rate(engine.break_even_bit_s)}"),
        ("nodes", f"{cluster.nodes}, links of {format_rate(8 * cluster.link_rate)}, routing {cluster.routing.value}"),
        ("cells", _cells(cluster)),
        ("DRAM", f"{format_bytes(cluster.local_dram_bytes)} a node"),
        ("disk", _disk(cluster)),
        ("switch", format_bytes(cluster.switch_bytes) if cluster.switch_bytes else "no memory for chunks"),
    ]


def _cells(cluster: Cluster) -> str:
    sizes = cell_sizes(cluster.nodes)
    if len(sizes) == 1:
        return "one switch for all"
    how = "a session's requests go to one" if cluster.sessions_in_cells else "requests go to any"
    return f"{len(sizes)} of {sizes[-1]} to {sizes[0]} nodes, a switch and a controller each; {how}"


def _disk(cluster: Cluster) -> str:
    if not cluster.local_disk_bytes:
        return "none"
    return f"{format_bytes(cluster.local_disk_bytes)} a node, {cluster.disk_rate / 1e9:.3g} GB/s"
