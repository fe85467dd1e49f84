"""What a soak came to: counted from the lines of its engines and the notes of who disturbed them. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from tests.soak.load import DEADLINE_S, HUNG_S, LATE_S

_HONEST_PROCESSES = frozenset({"agent", "engine", "controller", "switch"})
SPEED_MIN = 0.9
"""Share of their speed that attackers leave to honest hosts."""
_AWAY = frozenset({"killed", "frozen", "restarted"})
FDS_SPARE = 48
"""Descriptors that an idle daemon may have more than at the start: connections to peers stay open."""


@dataclass(frozen=True, slots=True)
class Note:
    """One trouble that took place, on the monotonic clock."""

    name: str
    kind: str
    host: int
    began_s: float
    ended_s: float
    recovered_s: float
    """When all daemons were attached and programmed again."""

    def excuses(self, daemon: str, began_s: float, ended_s: float) -> bool:
        """Whether a daemon's silence in that time was this trouble's doing: it was dead or frozen."""
        kind, _, what = self.kind.partition(" ")
        who = f"agent{self.host}" if kind == "agent" else kind
        return who == daemon and what in _AWAY and began_s <= self.recovered_s and ended_s >= self.began_s


@dataclass(frozen=True, slots=True)
class Size:
    """Of a process."""

    pid: int
    rss_bytes: int
    fds: int


@dataclass(frozen=True, slots=True)
class TurnTaken:
    """One turn, with and without attackers."""

    attacked: bool
    began_s: float
    ended_s: float
    chunks: int = 0
    """Of fetches that were complete in it."""
    sent: tuple[str, ...] = ()
    """What attackers sent."""
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    """What processes used meanwhile, by kind."""

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.ended_s - self.began_s


@dataclass(slots=True)
class Report:
    """`bad` is what a soak is run for: anything in it fails it."""

    fetches: int = 0
    complete: int = 0
    chunks: int = 0
    wrong: int = 0
    late: int = 0
    hung: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    puts: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    away: int = 0
    """Times that an engine found no agent: it was killed or frozen."""
    leases: Counter[str] = field(default_factory=Counter)
    """That were held for seconds: by who gave them (the agent, or nobody: local) and how they ended, kept or lost."""
    lost_with_others_bytes: int = 0
    """Chunks under leases that were lost, and said so, whose bytes were others by then."""
    forks: Counter[str] = field(default_factory=Counter)
    untold: Counter[str] = field(default_factory=Counter)
    """What children tried with their parents' clients and were not told of the remedy."""
    probes: int = 0
    unanswered: Counter[str] = field(default_factory=Counter)
    """Pages of daemons that lived and did not answer."""
    silent: dict[str, dict[str, int]] = field(default_factory=dict)
    """Connections of those who say nothing, by port: opened, and ended by the daemon."""
    shown: list[str] = field(default_factory=list)
    """What was wrong with what operators see."""
    troubles: Counter[str] = field(default_factory=Counter)
    leaked: list[str] = field(default_factory=list)
    turns: list[TurnTaken] = field(default_factory=list)
    """With and without attackers, as they were."""
    rss_growth_bytes: dict[str, int] = field(default_factory=dict)
    """By process that lived from the first look to the last."""
    recovery_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By kind of trouble, from its end until a fetch of each honest host was complete again."""
    fetch_s: list[float] = field(default_factory=list)
    """Of complete ones."""

    @property
    def bad(self) -> bool:
        """Whether something came to light that may not be."""
        found = self.wrong or self.hung or self.leaked or self.untold or self.unanswered or self.shown
        return bool(found) or self.is_slow

    def chunks_per_s(self, *, attacked: bool) -> float | None:
        """What honest hosts together fetched whole in the turns with or without attackers; None: there were none."""
        return _chunks_per_s(self.turns, attacked)

    @property
    def speed_under_attack(self) -> float | None:
        """Share of their speed without attackers that honest fetches keep, of all turns together."""
        return _share(self.turns)

    @property
    def speed_error(self) -> float | None:
        """Standard error of that share, by leaving out one pair of turns after the other (the jackknife). None: there
        are too few."""
        count = len(self.turns) // 2
        others = [_share(self.turns[: 2 * pair] + self.turns[2 * pair + 2 :]) for pair in range(count)]
        shares = [one for one in others if one is not None]
        if len(shares) < 2:
            return None
        middle = sum(shares) / len(shares)
        return math.sqrt((count - 1) / count * sum((one - middle) ** 2 for one in shares))

    @property
    def is_slow(self) -> bool:
        """Whether attackers surely took more than they may: chance alone is no reason."""
        share, error = self.speed_under_attack, self.speed_error
        return share is not None and error is not None and share + 2 * error < SPEED_MIN

    @property
    def work_under_attack(self) -> float | None:
        """The same for each second of CPU that daemons and engines used: where a machine is full, speed says what else
        ran on it, too."""
        per_cpu_s = []
        for attacked in (True, False):
            some = [turn for turn in self.turns if turn.attacked is attacked]
            used_s = sum(used for turn in some for name, used in turn.cpu_s.items() if name in _HONEST_PROCESSES)
            per_cpu_s.append(sum(turn.chunks for turn in some) / used_s if used_s else 0.0)
        return per_cpu_s[0] / per_cpu_s[1] if all(per_cpu_s) else None

    @property
    def cpu_under_attack(self) -> dict[str, float]:
        """CPU seconds a second in turns with attackers, less those beside harmless frames, by kind of process."""
        shares: dict[bool, dict[str, float]] = {}
        for attacked in (True, False):
            some = [turn for turn in self.turns if turn.attacked is attacked]
            seconds = sum(turn.seconds for turn in some) or 1.0
            names = {name for turn in some for name in turn.cpu_s}
            shares[attacked] = {name: sum(turn.cpu_s.get(name, 0.0) for turn in some) / seconds for name in names}
        names = shares[True].keys() & shares[False].keys()
        return {name: round(shares[True][name] - shares[False][name], 3) for name in sorted(names)}

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        return {
            "fetches": self.fetches,
            "complete": self.complete,
            "chunks_compared": self.chunks,
            "wrong": self.wrong,
            "late": self.late,
            "hung": self.hung,
            "leaked": self.leaked,
            "speed_under_attack": self.speed_under_attack,
            "speed_error": self.speed_error,
            "work_under_attack": self.work_under_attack,
            "turns": [[turn.attacked, round(turn.seconds, 2), turn.chunks] for turn in self.turns],
            "turns_sent": [list(turn.sent) for turn in self.turns],
            "turns_cpu_s": [{name: round(used, 2) for name, used in turn.cpu_s.items()} for turn in self.turns],
            "cpu_under_attack": self.cpu_under_attack,
            "outcomes": dict(self.outcomes),
            "puts": self.puts,
            "refused": dict(self.refused),
            "agent_away": self.away,
            "leases": dict(self.leases),
            "lost_with_others_bytes": self.lost_with_others_bytes,
            "forks": dict(self.forks),
            "untold": dict(self.untold),
            "probes": self.probes,
            "unanswered": dict(self.unanswered),
            "silent": self.silent,
            "shown": self.shown,
            "fetch_median_s": round(median(self.fetch_s), 4) if self.fetch_s else None,
            "troubles": dict(self.troubles),
            "recovery_s": {kind: [round(one, 2) for one in times] for kind, times in self.recovery_s.items()},
            "rss_growth_bytes": self.rss_growth_bytes,
        }


def _chunks_per_s(turns: Sequence[TurnTaken], attacked: bool) -> float | None:
    some = [turn for turn in turns if turn.attacked is attacked]
    seconds = sum(turn.seconds for turn in some)
    return sum(turn.chunks for turn in some) / seconds if seconds else None


def _share(turns: Sequence[TurnTaken]) -> float | None:
    attacked, quiet = (_chunks_per_s(turns, attacked) for attacked in (True, False))
    return attacked / quiet if attacked is not None and quiet else None


def made(lines: Iterable[Mapping[str, Any]], notes: Sequence[Note], ended_s: float) -> Report:
    """The report of engines' lines; `ended_s`: when nobody waited any more."""
    report = Report()
    under_way: dict[tuple[int, str], float] = {}
    complete_s: dict[int, list[float]] = defaultdict(list)
    for line in lines:
        who, what = (line["host"], line["who"]), line["what"]
        if what == "begun":
            under_way[who] = line["at_s"]
        elif what in ("fetched", "lost"):
            under_way.pop(who, None)
            _count_fetch(report, line, notes, complete_s)
        else:
            _count(report, line, notes)
    for began_s in under_way.values():
        report.hung += ended_s - began_s > DEADLINE_S + HUNG_S
    for note in notes:
        report.troubles[note.name] += 1
        after = [next((one for one in times if one >= note.ended_s), None) for times in complete_s.values()]
        if after and None not in after:
            report.recovery_s[note.kind].append(max(one for one in after if one is not None) - note.ended_s)
    return report


def _count(report: Report, line: Mapping[str, Any], notes: Sequence[Note]) -> None:
    """Whatever is no fetch."""
    match line["what"]:
        case "put":
            report.puts += 1
        case "refused":
            report.refused[line["reason"]] += 1
        case "away":
            report.away += 1
        case "leased":
            report.leases[f"{line['way']} {'lost' if line['lost'] else 'kept'}"] += 1
            if line["lost"]:
                report.lost_with_others_bytes += line["wrong"]
            else:
                report.wrong += line["wrong"]
                report.chunks += line["chunks"]
        case "forked":
            report.forks[line["how"]] += 1
            report.untold.update(f"{line['how']}: {name}" for name in line["untold"])
        case "probed":
            report.probes += 1
            excused = any(note.excuses(line["daemon"], line["began_s"], line["at_s"]) for note in notes)
            if not (line["answered"] or excused):
                report.unanswered[f"{line['daemon']} /{line['page']}"] += 1
        case other:
            raise ValueError(f"no such line: {other}")


def _count_fetch(
    report: Report, line: Mapping[str, Any], notes: Sequence[Note], complete_s: dict[int, list[float]]
) -> None:
    host, began_s, took_s = line["host"], line["began_s"], line["took_s"]
    excused = any(note.excuses(f"agent{host}", began_s, began_s + took_s) for note in notes)
    report.fetches += 1
    if line["what"] == "lost":
        report.outcomes["AGENT_LOST"] += 1
        report.hung += not excused
        return
    report.outcomes[line["outcome"]] += 1
    report.chunks += line["chunks"]
    report.wrong += line["wrong"]
    report.late += took_s > DEADLINE_S + LATE_S and not excused
    if line["outcome"] == "OK":
        report.complete += 1
        report.fetch_s.append(took_s)
        complete_s[host].append(began_s + took_s)


def take_turns(report: Report, turns: Iterable[TurnTaken], lines: Iterable[Mapping[str, Any]]) -> None:
    """Count what was fetched in each turn."""
    done = [(line["at_s"], line["chunks"]) for line in lines if line["what"] == "fetched" and line["outcome"] == "OK"]
    for turn in turns:
        chunks = sum(count for at_s, count in done if turn.began_s <= at_s < turn.ended_s)
        report.turns.append(replace(turn, chunks=chunks))


def cpu_by_kind(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What processes that were there at both times used in between: agent0 to agent5 together are `agent`."""
    used: dict[str, float] = defaultdict(float)
    for name in before.keys() & after.keys():
        used[name.rstrip("0123456789")] += after[name] - before[name]
    return dict(used)


def take_leftovers(report: Report, found: Iterable[str]) -> None:
    """What `tests.leftovers` found when all was calm: leaks. Interest by a LEAVE that was lost is none of them: the
    switch's TTL frees it, and what is in use after that is renewed by somebody."""
    report.leaked.extend(found)


def compare_sizes(report: Report, before: Mapping[str, Size], after: Mapping[str, Size]) -> None:
    """What grew in the processes that lived all along; too many descriptors are a leak in any of them."""
    usual: dict[str, int] = defaultdict(int)
    for name, size in before.items():
        usual[name.rstrip("0123456789")] = max(usual[name.rstrip("0123456789")], size.fds)
    for name, now in after.items():
        then = before.get(name)
        if then is not None and then.pid == now.pid:
            report.rss_growth_bytes[name] = now.rss_bytes - then.rss_bytes
        if now.fds > usual[name.rstrip("0123456789")] + FDS_SPARE:
            report.leaked.append(f"{name}: {now.fds} descriptors, {usual[name.rstrip('0123456789')]} at the start")
