"""What engines compute at this moment, on this node and on others: whether a chunk is worth waiting for. Pure.

An engine claims the chunks that it begins to compute, with the time when each will be there. The agent tells the
controller, which tells all agents. A claim ends when its chunk is there (kept), when it is withdrawn, when it is late,
and when its engine, its node or the controller goes away. Whoever waits for the chunk hears of it at once.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from hostagent import limits
from hostagent.core import effects
from hostagent.core.clock import WINDOW, Work
from hostagent.core.directory import ClaimedChunk, NodeClaims
from hostagent.core.events import EngineId
from hostagent.core.node import Node
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.merging import NOTICE_S, SLACK_SHARE, Load, Trust, due_ns
from kvproto.claim_book import Claim, ClaimBook, ClaimBounds

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


class Claimer(NamedTuple):
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
    """Beyond what an engine may claim, or a chunk may be claimed."""
    ended: Counter[Freed] = field(default_factory=Counter)
    """Claims of this node that were not kept."""


class Claims:
    """Owns what engines compute, here and elsewhere, whom this node believes, and what the controller was told of it.
    Who waits for a chunk it does not know."""

    def __init__(self, node: Node, ended: Callable[[Sequence[ChunkKey], Freed], None]) -> None:
        """`ended(keys, why)`: one of those who compute them does so no more."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._windows = node.windows
        pool_bytes = node.options.pool_bytes
        self._bounds = ClaimBounds(
            limits.CLAIMS_PER_ENGINE_MAX, pool_bytes, limits.CLAIMS_HERE_SHARED, pool_bytes, limits.API_CONNECTIONS_MAX
        )
        self._ended = ended
        self._here: ClaimBook[Claimer] = ClaimBook()
        self._elsewhere: ClaimBook[Claimer] = ClaimBook()
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
        return bool(self._here.count or self._elsewhere.count)

    @property
    def claims_count(self) -> int:
        """Claims that stand, of engines here and of other nodes."""
        return self._here.count + self._elsewhere.count

    @property
    def behind(self) -> float:
        """How many requests wait behind another at this node, on average."""
        return self._load.behind(self._clock.now_ns)

    def find(self, key: ChunkKey) -> Computed | None:
        """Who is believed to have computed a chunk first; None: nobody computes it."""
        now_ns, best = self._clock.now_ns, None
        for claim in self._all_of(key):
            claimer = claim.claimer
            if not self._trust.believes(claimer.name, now_ns):
                continue
            # Promises err with their length; and from elsewhere the news has to come first.
            ready_s = max(_READY_S_MIN, (claim.eta_ns - now_ns) / 1e9 * (1 + SLACK_SHARE / 5))
            ready_s += 0.0 if claimer.here else NOTICE_S
            if best is None or ready_s < best.ready_s:
                best = Computed(claim.size_bytes, ready_s, claimer.here)
        return best

    # ------------------------------------------------------------------ of this node

    def claim(
        self, engine: EngineId, keys: Sequence[ChunkKey], size_bytes: int, etas_s: Sequence[float]
    ) -> list[ChunkKey]:
        """An engine computes these chunks; known ones get another time. Returns those that it may not claim: no chunk
        has this size, it or all engines together would claim more than the pool can have, or too many compute it."""
        claimer, here = Claimer(engine, here=True), self._here
        if not 0 < size_bytes <= limits.CHUNK_BYTES_MAX:
            self.counts.refused += len(keys)
            return list(keys)
        room = here.room(claimer, size_bytes, self._bounds)
        taken, refused = [], []
        for key, eta_s in zip(keys, etas_s, strict=True):
            if self._pool.find(key) is not None:
                continue
            if key not in here.held(claimer):
                if not room or here.is_crowded(key):
                    refused.append(key)
                    continue
                room -= 1
                self.counts.made += 1
            self._add(here, claimer, ClaimedChunk(key, size_bytes, eta_s))
            taken.append(key)
        self.counts.refused += len(refused)
        if taken:
            self._load.observe(True, self._clock.now_ns)
            self._set_alarm()
            self._tell(taken)
        return refused

    def disclaim(self, engine: EngineId, keys: Iterable[ChunkKey] | None, why: Freed = Freed.WITHDRAWN) -> None:
        """An engine does not compute these any more (None: all of its own)."""
        claimer = Claimer(engine, here=True)
        held = self._here.held(claimer)
        self._end(claimer, list(held) if keys is None else [key for key in dict.fromkeys(keys) if key in held], why)

    def engine_disconnected(self, engine: EngineId) -> None:
        """Its connection ended."""
        held = list(self._here.held(Claimer(engine, here=True)))
        self._windows.do(self._freed(engine, held), len(held))

    def _freed(self, engine: EngineId, keys: Sequence[ChunkKey]) -> Work:
        for first in range(0, len(keys), WINDOW):
            self.disclaim(engine, keys[first : first + WINDOW], Freed.GONE)
            yield
        self._trust.forget(Claimer(engine, here=True).name)

    def chunk_put(self, key: ChunkKey) -> bool:
        """The chunk is in this node's pool. Returns whether others know of the claim: they should hear at once."""
        for claim in self._here.by_key.get(key, ()):
            self._here.remove(claim)
            self._trust.kept(claim.claimer.name)
            self.counts.kept += 1
            self._note_load()
        return self._told.pop(key, None) is not None

    def put_failed(self, key: ChunkKey) -> None:
        """An engine did not put a chunk: the pool had it already, had no room, or the engine gave it up."""
        for claim in self._here.by_key.get(key, ()):
            self._end(claim.claimer, [key], Freed.WITHDRAWN)

    # ------------------------------------------------------------------ of the controller

    def welcomed(self, node: int) -> None:
        """The controller listens; it knows nothing of claims."""
        self._forget_elsewhere(Freed.CONTROLLER)
        self._node = node
        self._told.clear()
        self._tell(list(self._here.by_key))

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
                if not self._elsewhere.is_crowded(chunk.key):
                    self._add(self._elsewhere, claimer, chunk)
            held = self._elsewhere.held(claimer)
            self._end(claimer, [key for key in dict.fromkeys(one.withdrawn) if key in held], Freed.WITHDRAWN)
        self._set_alarm()

    def kept_elsewhere(self, key: ChunkKey, nodes: Container[int]) -> None:
        """The directory names these nodes as holders now."""
        for claim in self._elsewhere.by_key.get(key, ()):
            if claim.claimer.number in nodes:
                self._elsewhere.remove(claim)
                self._trust.kept(claim.claimer.name)

    def nodes_lost(self, nodes: Iterable[int]) -> None:
        """They left the directory."""
        for node in nodes:
            claimer = Claimer(node, here=False)
            self._end(claimer, list(self._elsewhere.held(claimer)), Freed.GONE)
            self._trust.forget(claimer.name)

    def waited_in_vain(self, key: ChunkKey) -> None:
        """Somebody here has waited as long as it may: whoever promised the chunk is not believed for a while."""
        for claim in self._all_of(key):
            self._trust.broken(claim.claimer.name, self._clock.now_ns)

    def close(self) -> None:
        """Nothing is waited for any more."""
        self._late_alarm.due_ns = None

    # ------------------------------------------------------------------ inside

    def _all_of(self, key: ChunkKey) -> Iterable[Claim[Claimer]]:
        return chain(self._here.by_key.get(key, ()), self._elsewhere.by_key.get(key, ()))

    def _add(self, book: ClaimBook[Claimer], claimer: Claimer, chunk: ClaimedChunk) -> None:
        now_ns, eta_s = self._clock.now_ns, min(chunk.eta_s, limits.CLAIM_S_MAX)
        due = due_ns(now_ns, eta_s) + (0 if claimer.here else int(NOTICE_S * 1e9))
        book.add(claimer, chunk.key, chunk.size_bytes, (now_ns + int(eta_s * 1e9), due), now_ns)

    def _set_alarm(self) -> None:
        times = [due for book in (self._here, self._elsewhere) if (due := book.late.next_ns) is not None]
        self._late_alarm.set(min(times, default=None))

    def _note_load(self) -> None:
        """Claims of this node's engines have ended."""
        if not self._here.count:
            self._load.observe(False, self._clock.now_ns)

    def _end(self, claimer: Claimer, keys: Sequence[ChunkKey], why: Freed) -> None:
        """Claims that were not kept."""
        if not keys:
            return
        book = self._here if claimer.here else self._elsewhere
        for key in keys:
            book.remove(book.held(claimer)[key])
        if claimer.here:
            self._note_load()
            self.counts.ended[why] += len(keys)
            told = [key for key in keys if key in self._told and key not in self._here.by_key]
            for key in told:
                del self._told[key]
            if told and self._fabric.connected:
                self._emit(effects.ReportClaims((), tuple(told)))
        self._ended(keys, why)

    def _forget_elsewhere(self, why: Freed) -> None:
        gone, self._elsewhere = self._elsewhere, ClaimBook()
        self._set_alarm()
        if gone.count:
            self._ended(list(gone.by_key), why)

    def _look_for_late(self) -> None:
        """Those that are late, some at a time: others have their turn in between."""
        now_ns = self._clock.now_ns
        for book in (self._here, self._elsewhere):
            late: dict[Claimer, list[ChunkKey]] = {}
            for claim in book.late.due(now_ns, limits.CLAIMS_LATE_AT_ONCE):
                late.setdefault(claim.claimer, []).append(claim.key)
            for claimer, keys in late.items():
                self._trust.broken(claimer.name, now_ns)
                self._end(claimer, keys, Freed.LATE)
        self._set_alarm()

    def _promise(self, key: ChunkKey) -> Claim[Claimer] | None:
        """The earliest claim of this node's engines that is believed."""
        now_ns = self._clock.now_ns
        claims = [claim for claim in self._here.by_key.get(key, ()) if self._trust.believes(claim.claimer.name, now_ns)]
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
