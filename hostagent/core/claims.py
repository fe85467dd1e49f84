"""What engines compute at this moment, on this node and on others: whether a chunk is worth waiting for. Pure.

An engine claims the chunks that it begins to compute, with the time when each will be there. The agent tells the
controller, which tells all agents. A claim ends when its chunk is there (kept), when it is withdrawn, when it is late,
and when its engine, its node or the controller goes away. Whoever waits for the chunk hears of it at once.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

from hostagent import limits
from hostagent.core import effects
from hostagent.core.directory import ClaimedChunk, NodeClaims
from hostagent.core.events import EngineId
from hostagent.core.node import Node
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.merging import NOTICE_S, SLACK_SHARE, Load, Trust, due_ns

_READY_S_MIN = 0.001
"""A claimed chunk is not there yet, whatever its claim says."""


class Freed(enum.Enum):
    """Why nobody waits for a chunk any more, as metrics name it."""

    WITHDRAWN = "withdrawn"
    """Its engine gave it up: preempted, aborted, no room."""
    LATE = "late"
    """It was not there in time."""
    GONE = "gone"
    """The engine or its node went away."""
    CONTROLLER = "controller"
    """The controller went away, and nobody would say that the chunk is there."""
    DEADLINE = "deadline"
    """The one who waits may wait no longer."""
    UNKNOWN = "unknown"
    """It was expected, and nobody began to compute it."""


@dataclass(frozen=True, slots=True, order=True)
class Claimer:
    """Who computes."""

    number: int
    """Of an engine of this node, or of another node."""
    here: bool

    @property
    def name(self) -> str:
        """For `Trust`."""
        return f"engine {self.number}" if self.here else f"node {self.number}"


@dataclass(frozen=True, slots=True)
class Computed:
    """A chunk that is being computed: the earliest promise that is believed."""

    size_bytes: int
    ready_s: float
    """From now on until it can be had here, or its cast can begin."""
    here: bool
    """By an engine of this node."""


@dataclass(slots=True)
class ClaimCounts:
    """Running totals, for metrics."""

    made: int = 0
    """Chunks that engines of this node claimed."""
    kept: int = 0
    refused: int = 0
    """Beyond the limit of an engine."""
    ended: Counter[Freed] = field(default_factory=Counter)
    """Claims of this node that were not kept."""


@dataclass(slots=True)
class _Claim:
    size_bytes: int
    eta_ns: int
    due_ns: int


class Claims:
    """Owns what engines compute, here and elsewhere, whom this node believes, and what the controller was told of it.
    Who waits for a chunk it does not know."""

    def __init__(self, node: Node, ended: Callable[[Sequence[ChunkKey], Freed], None]) -> None:
        """`ended(keys, why)`: one of those who compute them does so no more."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._ended = ended
        self._claims: dict[ChunkKey, dict[Claimer, _Claim]] = {}
        self._of: dict[Claimer, set[ChunkKey]] = {}
        self._due: list[tuple[int, ChunkKey, Claimer]] = []
        """Heap of when claims may turn out to be late; entries that are no longer true are skipped."""
        self._late_alarm = node.alarms.add(self._look_for_late)
        self._trust = Trust()
        self._told: dict[ChunkKey, int] = {}
        """Claims of this node that the controller knows, and for which time."""
        self._load = Load()
        """Of this node's engines, as far as they claim what they compute."""
        self._fabric = node.fabric
        self._node: int | None = None
        """This node's number at the controller."""
        self.counts = ClaimCounts()

    def __bool__(self) -> bool:
        return bool(self._claims)

    @property
    def claims_count(self) -> int:
        """Chunks that are being computed somewhere."""
        return len(self._claims)

    @property
    def behind(self) -> float:
        """How many requests wait behind another at this node, on average."""
        return self._load.behind(self._clock.now_ns)

    def find(self, key: ChunkKey) -> Computed | None:
        """Who is believed to have computed a chunk first; None: nobody computes it."""
        claims = self._claims.get(key)
        if claims is None:
            return None
        now_ns, best = self._clock.now_ns, None
        for claimer, claim in claims.items():
            if not self._trust.believes(claimer.name, now_ns):
                continue
            # Promises err with their length; and from elsewhere the news has to come first.
            ready_s = max(_READY_S_MIN, (claim.eta_ns - now_ns) / 1e9 * (1 + SLACK_SHARE / 5))
            ready_s += 0.0 if claimer.here else NOTICE_S
            if best is None or ready_s < best.ready_s:
                best = Computed(claim.size_bytes, ready_s, claimer.here)
        return best

    # ------------------------------------------------------------------ of this node

    def claim(self, engine: EngineId, keys: Sequence[ChunkKey], size_bytes: int, etas_s: Sequence[float]) -> None:
        """An engine computes these chunks; known ones get another time."""
        claimer = Claimer(engine, here=True)
        held = self._of.get(claimer, set())
        room = limits.CLAIMS_PER_ENGINE_MAX - len(held)
        taken = []
        for key, eta_s in zip(keys, etas_s, strict=True):
            if self._pool.find(key) is not None:
                continue
            if key not in held:
                if room <= 0:
                    self.counts.refused += 1
                    continue
                room -= 1
                self.counts.made += 1
            self._add(claimer, key, size_bytes, eta_s)
            taken.append(key)
        self._tell(taken)

    def disclaim(self, engine: EngineId, keys: Iterable[ChunkKey] | None, why: Freed = Freed.WITHDRAWN) -> None:
        """An engine does not compute these any more (None: all of its own)."""
        claimer = Claimer(engine, here=True)
        held = self._of.get(claimer, set())
        self._end(claimer, sorted(held) if keys is None else [key for key in dict.fromkeys(keys) if key in held], why)

    def engine_disconnected(self, engine: EngineId) -> None:
        """Its connection ended."""
        self.disclaim(engine, None, Freed.GONE)
        self._trust.forget(Claimer(engine, here=True).name)

    def chunk_put(self, key: ChunkKey) -> bool:
        """The chunk is in this node's pool. Returns whether others know of the claim: they should hear at once."""
        for claimer in list(self._claims.get(key, ())):
            if claimer.here:
                self._remove(claimer, key)
                self._trust.kept(claimer.name)
                self.counts.kept += 1
        return self._told.pop(key, None) is not None

    def put_failed(self, key: ChunkKey) -> None:
        """An engine did not put a chunk: the pool had it already, had no room, or the engine gave it up."""
        for claimer in [claimer for claimer in self._claims.get(key, ()) if claimer.here]:
            self._end(claimer, [key], Freed.WITHDRAWN)

    # ------------------------------------------------------------------ of the controller

    def welcomed(self, node: int) -> None:
        """The controller listens; it knows nothing of claims."""
        self._forget_elsewhere(Freed.CONTROLLER)
        self._node = node
        self._told.clear()
        self._tell([key for key, claims in self._claims.items() if any(claimer.here for claimer in claims)])

    def controller_lost(self) -> None:
        """Nobody would say what became of other nodes' claims."""
        self._told.clear()
        self._forget_elsewhere(Freed.CONTROLLER)

    def others_claims_changed(self, news: Iterable[NodeClaims]) -> None:
        """What other nodes compute."""
        for one in news:
            if one.node == self._node:
                continue
            claimer = Claimer(one.node, here=False)
            for chunk in one.made:
                self._add(claimer, chunk.key, chunk.size_bytes, chunk.eta_s)
            held = self._of.get(claimer, set())
            self._end(claimer, [key for key in one.withdrawn if key in held], Freed.WITHDRAWN)

    def kept_elsewhere(self, key: ChunkKey, nodes: Container[int]) -> None:
        """The directory names these nodes as holders now."""
        for claimer in [one for one in self._claims.get(key, ()) if not one.here and one.number in nodes]:
            self._remove(claimer, key)
            self._trust.kept(claimer.name)

    def nodes_lost(self, nodes: Iterable[int]) -> None:
        """They left the directory."""
        for node in nodes:
            claimer = Claimer(node, here=False)
            self._end(claimer, sorted(self._of.get(claimer, ())), Freed.GONE)
            self._trust.forget(claimer.name)

    def waited_in_vain(self, key: ChunkKey) -> None:
        """Somebody here has waited as long as it may: whoever promised the chunk is not believed for a while."""
        for claimer in self._claims.get(key, ()):
            self._trust.broken(claimer.name, self._clock.now_ns)

    def close(self) -> None:
        """Nothing is waited for any more."""
        self._late_alarm.due_ns = None

    # ------------------------------------------------------------------ inside

    def _add(self, claimer: Claimer, key: ChunkKey, size_bytes: int, eta_s: float) -> None:
        now_ns, eta_s = self._clock.now_ns, min(eta_s, limits.CLAIM_S_MAX)
        due = due_ns(now_ns, eta_s) + (0 if claimer.here else int(NOTICE_S * 1e9))
        self._claims.setdefault(key, {})[claimer] = _Claim(size_bytes, now_ns + int(eta_s * 1e9), due)
        self._of.setdefault(claimer, set()).add(key)
        if claimer.here:
            self._load.observe(True, now_ns)
        if len(self._due) > limits.CLAIMS_DUE_MAX:
            self._due = [
                (claim.due_ns, one, who) for one, claims in self._claims.items() for who, claim in claims.items()
            ]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (due, key, claimer))
        if self._late_alarm.due_ns is None or due < self._late_alarm.due_ns:
            self._late_alarm.set(due)

    def _remove(self, claimer: Claimer, key: ChunkKey) -> None:
        claims = self._claims[key]
        del claims[claimer]
        if not claims:
            del self._claims[key]
        held = self._of[claimer]
        held.discard(key)
        if not held:
            del self._of[claimer]
            if claimer.here:
                self._load.observe(any(one.here for one in self._of), self._clock.now_ns)

    def _end(self, claimer: Claimer, keys: Sequence[ChunkKey], why: Freed) -> None:
        """Claims that were not kept."""
        if not keys:
            return
        for key in keys:
            self._remove(claimer, key)
        if claimer.here:
            self.counts.ended[why] += len(keys)
            told = [key for key in keys if key in self._told and not self._computes_here(key)]
            for key in told:
                del self._told[key]
            if told and self._fabric.connected:
                self._emit(effects.ReportClaims((), tuple(told)))
        self._ended(keys, why)

    def _computes_here(self, key: ChunkKey) -> bool:
        return any(claimer.here for claimer in self._claims.get(key, ()))

    def _forget_elsewhere(self, why: Freed) -> None:
        for claimer in [one for one in self._of if not one.here]:
            self._end(claimer, sorted(self._of[claimer]), why)

    def _look_for_late(self) -> None:
        now_ns = self._clock.now_ns
        late: dict[Claimer, dict[ChunkKey, None]] = {}  # a claim that was told twice for one time is there twice
        while self._due and self._due[0][0] <= now_ns:
            due, key, claimer = heapq.heappop(self._due)
            claim = self._claims.get(key, {}).get(claimer)
            if claim is not None and claim.due_ns == due:
                late.setdefault(claimer, {})[key] = None
        for claimer, keys in late.items():
            self._trust.broken(claimer.name, now_ns)
            self._end(claimer, tuple(keys), Freed.LATE)
        if self._due:
            self._late_alarm.set(self._due[0][0])

    def _promise(self, key: ChunkKey) -> _Claim | None:
        """The earliest claim of this node's engines that is believed."""
        now_ns = self._clock.now_ns
        claims = [
            claim
            for claimer, claim in self._claims[key].items()
            if claimer.here and self._trust.believes(claimer.name, now_ns)
        ]
        return min(claims, key=lambda claim: claim.eta_ns, default=None)

    def _tell(self, keys: Sequence[ChunkKey]) -> None:
        """Tell the controller what it does not know yet, or knows with quite another time."""
        if not self._fabric.connected:
            return
        now_ns, made = self._clock.now_ns, []
        for key in keys:
            claim = self._promise(key)
            if claim is None:
                continue
            told_ns = self._told.get(key)
            tolerance_ns = max(limits.CLAIM_TOLD_S_MIN * 1e9, SLACK_SHARE / 2 * (claim.eta_ns - now_ns))
            if told_ns is None or abs(claim.eta_ns - told_ns) > tolerance_ns:
                self._told[key] = claim.eta_ns
                made.append(ClaimedChunk(key, claim.size_bytes, max(0.0, (claim.eta_ns - now_ns) / 1e9)))
        for start in range(0, len(made), limits.CLAIMS_BATCH_KEYS):
            self._emit(effects.ReportClaims(tuple(made[start : start + limits.CLAIMS_BATCH_KEYS]), ()))
