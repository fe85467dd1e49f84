"""The cache of chunks in the switch: admission, filling, serving, eviction. Pure.

Owns the slots and the state of every chunk in the switch, and says through `SwitchProgrammer` what kv_cache should
hold. Gives agents fills and recoveries as tasks; the core says how they ended.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.core.cluster import Cluster
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.last_copies import LastCopyReplication
from controlplane.core.limits import CANDIDATES_MAX
from controlplane.core.spill import plan_recovery
from controlplane.core.switch.chunk_states import ChunkEvent, ChunkState, step
from controlplane.core.switch.entries import FillingEntry, Identity, ServingEntry, SwitchContents
from controlplane.core.switch.programmer import Refused, SwitchProgrammer
from controlplane.core.switch.slots import SlotAllocator, SlotRange
from controlplane.core.switch.target import SwitchFacts
from controlplane.core.switch_cache.admissions import Admissions, MakeRoom, Source, Start, segments_of
from controlplane.core.switch_cache.fill_price import FillPrice
from controlplane.core.tasks import FillFor, RecoveryOf
from kvproto.probes import PROBE_NAMESPACE
from kvproto.rpc import control_pb2 as rpc

_RECONSIDER_NS = 100_000_000
"""Without news, candidates are looked at again after this time."""

_FILLER_WORKS = frozenset({ChunkState.PLACING, ChunkState.FILLING})
_WAIT_FOR_SWITCH = frozenset({ChunkState.PLACING, ChunkState.PUBLISHING, ChunkState.CLEARING})


@dataclass(slots=True)
class CachedChunk:
    """A chunk on its way into, in, or on its way out of the switch."""

    key: ChunkKey
    slots: SlotRange
    state: ChunkState
    source: Source | None
    """Who fills or filled it; None for a chunk found in the switch at start."""
    since_ns: int
    readers: int = 0
    """Nodes that waited for it when it was admitted."""
    refilled_ns: int | None = None
    """When it began to be filled in again, because segments were lost."""


class SwitchCache:
    """Decides what is in the switch."""

    def __init__(self, cluster: Cluster, programmer: SwitchProgrammer, last_copies: LastCopyReplication) -> None:
        """`last_copies`: knows which pools could take the last copy of a chunk."""
        self._cluster = cluster
        self._directory = cluster.directory
        self._programmer = programmer
        self._rules = cluster.options.rules
        self._last_copies = last_copies
        self._facts: SwitchFacts | None = None
        self.slots = SlotAllocator(0)
        self.chunks: dict[ChunkKey, CachedChunk] = {}
        self._counts: Counter[ChunkState] = Counter()
        """Chunks by state."""
        self._adopted: set[ChunkKey] = set()
        """Found in the switch at start, and no agent has announced them since."""
        self._awaiting_switch: set[ChunkKey] = set()
        """Chunks whose state waits for the switch to take an entry."""
        self._decisions: Counter[str] = Counter()
        self._problems: OrderedDict[ChunkKey, str] = OrderedDict()
        """Why the last fill of a chunk failed; the oldest first."""
        self.price = FillPrice(cluster.values, free=not self._rules.price_fills)
        self._admissions = Admissions(cluster, self.price)
        self._candidates = self._admissions.candidates
        self.residents = self._admissions.residents
        self._adopted_all = False
        self._reconsider = True
        """Something changed that could let a candidate in."""
        self._reconsidered_ns = 0

    # -- reading

    @property
    def decisions(self) -> Counter[str]:
        """Number of decisions and events, by name."""
        return self._decisions + self._admissions.refusals

    def state(self, key: ChunkKey) -> ChunkState:
        """Where the chunk is on its way through the switch."""
        chunk = self.chunks.get(key)
        return ChunkState.ABSENT if chunk is None else chunk.state

    def count(self, *states: ChunkState) -> int:
        """Chunks in any of these states."""
        return sum(self._counts[state] for state in states)

    def problem(self, key: ChunkKey) -> str:
        """Why a chunk that should be in the switch is not served; empty: nothing speaks against it."""
        if self.state(key) in (ChunkState.SERVING, ChunkState.RECOVERING):
            return ""
        return self._admissions.refusal(key) or self._problems.get(key, "")

    def fill_problem(self, key: ChunkKey) -> str:
        """Why the last fill of a chunk failed; empty: it did not."""
        return self._problems.get(key, "")

    # -- the switch

    def switch_up(self, facts: SwitchFacts) -> None:
        """A session with a switch of these sizes began."""
        if self._facts is not None and facts != self._facts:
            self.lose_everything()
        if facts != self._facts:
            self._facts = facts
            self.slots = SlotAllocator(facts.slots)
            self._admissions.use(self.slots, facts.segment_bytes, casts_fills=facts.casts_fills)

    def switch_read(self, actual: SwitchContents, trusted: bool) -> None:
        """What the switch was found to hold. `trusted`: its fabric parameters are ours, so it has not restarted and
        what it serves was filled under the same rules."""
        if not trusted:
            self.lose_everything()
            self._adopted_all = True
            return
        if not self._adopted_all:
            self._adopt(actual)
            self._adopted_all = True
            return
        for chunk in list(self.chunks.values()):
            found = actual.get(("kv_cache", chunk.key))
            if chunk.state in (ChunkState.SERVING, ChunkState.RECOVERING):
                if not isinstance(found, ServingEntry):
                    self._lose(chunk)
            elif chunk.state in (ChunkState.FILLING, ChunkState.PUBLISHING) and found is None:
                self._lose(chunk)

    def updates_refused(self, problems: Iterable[Refused]) -> None:
        """Updates that the switch did not take."""
        for problem in problems:
            entry = problem.update.entry
            chunk = self.chunks.get(entry.key) if isinstance(entry, FillingEntry | ServingEntry) else None
            if chunk is not None:
                self._decisions["switch_refused"] += 1
                self._move(chunk, ChunkEvent.REFUSED)

    def lose_everything(self) -> None:
        """The switch restarted: tables and slots are empty."""
        for chunk in list(self.chunks.values()):
            self._lose(chunk)
        self._candidates.give_up_claims()

    # -- what speaks for a chunk

    def heat_reported(self, key: ChunkKey, readers: int) -> None:
        """The switch saw `readers` members wait for this chunk, or many GETs of it."""
        if key not in self._directory:
            self._decisions["heat_for_unknown_chunk"] += 1
            return
        if key in self.chunks or (self._is_probe(key) and not self._admissions.is_pinned(key)):
            return
        self._reconsider = True
        self._candidates.seen(key, readers, self._cluster.now_ns)

    def _is_probe(self, key: ChunkKey) -> bool:
        """Chunks of examinations come in when the examination says so, however many nodes read them."""
        chunk = self._directory.get(key)
        return chunk is not None and chunk.facts.namespace == PROBE_NAMESPACE

    def pin(self, keys: Iterable[ChunkKey]) -> None:
        """Bring these in and keep them."""
        for key in keys:
            self._admissions.pin(key)
            if key in self._directory:
                self.heat_reported(key, 0)

    def unpin(self, keys: Iterable[ChunkKey]) -> None:
        """These may go again."""
        for key in keys:
            self._admissions.unpin(key)
            self._problems.pop(key, None)

    def pin_exactly(self, keys: frozenset[ChunkKey]) -> None:
        """These are all that is pinned into the switch."""
        self.unpin(self._admissions.pinned - keys)
        self.pin(keys - self._admissions.pinned)

    def holder_load_changed(self) -> None:
        """A holder said what it has queued: a fill may pay that rides on its casts."""
        self._reconsider |= self._admissions.casts_fills and self._candidates.has_aside

    def sources_changed(self) -> None:
        """A node attached: it may fill what others have no time for."""
        self._reconsider = True
        self._candidates.wake_all()

    # -- what became of work

    def filled(self, key: ChunkKey) -> None:
        """Every segment is acknowledged."""
        chunk = self.chunks.get(key)
        if chunk is not None and chunk.state is ChunkState.FILLING:
            self._admissions.filled(key)
            self._move(chunk, ChunkEvent.FILLED)

    def fill_failed(self, key: ChunkKey, reason: str = "") -> None:
        """The filler gave up; `reason`: one line for a person."""
        chunk = self.chunks.get(key)
        if chunk is not None and chunk.state is ChunkState.FILLING:
            self._problems[key] = reason
            while len(self._problems) > CANDIDATES_MAX:
                del self._problems[next(iter(self._problems))]
            self._decisions["fill_aborted"] += 1
            if chunk.source is not None:
                self._admissions.fill_failed(key, chunk.source.node)
            self._move(chunk, ChunkEvent.FILL_FAILED)

    def recovered(self, key: ChunkKey) -> None:
        """A host has the chunk now."""
        chunk = self.chunks.get(key)
        if chunk is not None and chunk.state is ChunkState.RECOVERING:
            self._decisions["recovered"] += 1
            self._move(chunk, ChunkEvent.RECOVERED)

    def recovery_failed(self, key: ChunkKey) -> None:
        """No host got the chunk."""
        chunk = self.chunks.get(key)
        if chunk is not None and chunk.state is ChunkState.RECOVERING:
            self._decisions["recovery_failed"] += 1
            self._move(chunk, ChunkEvent.RECOVERY_FAILED)

    def port_lost(self, node: NodeIndex) -> None:
        """A node's port is no longer its own: its fills cannot go on."""
        for chunk in list(self.chunks.values()):
            filling = chunk.state in (ChunkState.PLACING, ChunkState.FILLING)
            if filling and chunk.source is not None and chunk.source.node == node:
                self._cancel_fill(chunk.key)
                self._move(chunk, ChunkEvent.FILL_FAILED)

    def evict(self, key: ChunkKey, save: bool = True) -> bool:
        """Take a chunk out; if it is the last copy and worth it, an agent saves it first, unless `save` is False.

        Returns False if it is not in the switch.
        """
        chunk = self.chunks.get(key)
        if chunk is None:
            return False
        if chunk.state is ChunkState.CLEARING:
            return True
        if chunk.state in (ChunkState.PLACING, ChunkState.FILLING):
            self._cancel_fill(key)
        recovery = self._plan_recovery(chunk) if save and chunk.state is ChunkState.SERVING else None
        self._decisions["evicted"] += 1
        if recovery is not None:
            work = rpc.Task(fetch=rpc.Fetch(keys=[key], reason=rpc.Fetch.SPILL))
            self._cluster.tasks.add(recovery, RecoveryOf(key), work)
            self._move(chunk, ChunkEvent.EVICT_LAST)
        else:
            self._move(chunk, ChunkEvent.EVICT)
        return True

    def drop_bad(self, key: ChunkKey) -> bool:
        """The switch's copy does not match its digest: stop serving it, save nothing."""
        chunk = self.chunks.get(key)
        if chunk is None or chunk.state is not ChunkState.SERVING:
            return False
        self._decisions["bad_copy_in_switch"] += 1
        self._move(chunk, ChunkEvent.EVICT)
        return True

    def segment_lost(self, key: ChunkKey) -> None:
        """A segment of a chunk that the switch serves is gone: have a holder fill in what is missing."""
        chunk = self.chunks.get(key)
        if chunk is None or chunk.state is not ChunkState.SERVING:
            return
        source = self._admissions.choose_source(key, even_if_busy=True)
        again = chunk.refilled_ns is not None and self._cluster.now_ns - chunk.refilled_ns < self._rules.refill_ns
        if source is None or again:
            self._decisions["lost_again" if again else "lost_for_good"] += 1
            self._move(chunk, ChunkEvent.EVICT)
            return
        self._decisions["refilled"] += 1
        chunk.source, chunk.refilled_ns = source, self._cluster.now_ns
        self._move(chunk, ChunkEvent.SEGMENT_LOST)

    # -- going on

    def advance(self) -> None:
        """See what the switch has taken since; give up stale evidence; admit what can be admitted."""
        now_ns = self._cluster.now_ns
        self._observe(now_ns)
        overdue = now_ns - self._reconsidered_ns >= _RECONSIDER_NS
        if overdue:
            self._expire(now_ns)
        if (overdue or self._reconsider) and self._facts is not None and self._programmer.synchronised:
            self._reconsider, self._reconsidered_ns = False, now_ns
            self._admit(now_ns)

    def _observe(self, now_ns: int) -> None:
        for key in sorted(self._awaiting_switch):
            chunk = self.chunks[key]
            identity: Identity = ("kv_cache", key)
            match chunk.state:
                case ChunkState.PLACING | ChunkState.PUBLISHING:
                    if self._programmer.has(self._entry(chunk)):
                        self._move(chunk, ChunkEvent.WRITTEN)
                        chunk.since_ns = now_ns
                case ChunkState.CLEARING:
                    if self._programmer.lacks(identity):
                        self._move(chunk, ChunkEvent.WRITTEN)

    def _expire(self, now_ns: int) -> None:
        for key in self._admissions.pinned:
            if key not in self.chunks and key not in self._candidates and key in self._directory:
                self.heat_reported(key, 0)
        for key in self._candidates.outdated(now_ns - self._rules.candidate_ns):
            if not self._admissions.is_pinned(key) or key not in self._directory:
                self._candidates.drop(key)
        for key in sorted(self._adopted):
            chunk = self.chunks[key]
            if chunk.state is ChunkState.SERVING:
                self._check_adopted(chunk, now_ns)
        self.residents.look_round(now_ns)

    def _check_adopted(self, chunk: CachedChunk, now_ns: int) -> None:
        known = self._directory.get(chunk.key)
        if known is None:
            if now_ns - chunk.since_ns > self._rules.adopt_ns:
                self._decisions["adoption_given_up"] += 1
                self._move(chunk, ChunkEvent.EVICT)
            return
        self._adopted.discard(chunk.key)
        if self._segments(known.facts.size_bytes) != chunk.slots.count:
            self._decisions["adoption_given_up"] += 1
            self._move(chunk, ChunkEvent.EVICT)
        else:
            self._decisions["adopted"] += 1
            self._directory.set_served(chunk.key, True)

    # -- admission

    def _admit(self, now_ns: int) -> None:
        if self._fills_at_work >= self._rules.fills_at_once:
            return
        self._admissions.begin(now_ns)
        while self._fills_at_work < self._rules.fills_at_once:
            match entry := self._admissions.next(self.chunks):
                case None:
                    return
                case MakeRoom(displaced=displaced):
                    for key in displaced:
                        self.evict(key)
                case Start():
                    self._start(entry, now_ns)

    @property
    def _fills_at_work(self) -> int:
        return self.count(ChunkState.PLACING, ChunkState.FILLING, ChunkState.PUBLISHING)

    def _start(self, start: Start, now_ns: int) -> None:
        self._candidates.drop(start.key)
        if not self.slots.reserve(start.slots):
            return
        chunk = CachedChunk(start.key, start.slots, ChunkState.ABSENT, start.source, now_ns, start.readers)
        self.chunks[start.key] = chunk
        self._decisions["admitted"] += 1
        self._move(chunk, ChunkEvent.ADMIT)

    # -- inside

    def _adopt(self, actual: SwitchContents) -> None:
        """Take over what the switch serves. A key names its content, a slot knows whose it is, and `serving` is
        written only after every segment was acknowledged: chunks found under our own fabric parameters are right."""
        for entry in actual.values():
            if not isinstance(entry, ServingEntry) or entry.key in self.chunks:
                continue
            slots = SlotRange(entry.base_slot, entry.segments)
            if slots.end > self.slots.capacity or not self.slots.reserve(slots):
                self._decisions["adoption_given_up"] += 1
                continue
            chunk = CachedChunk(entry.key, slots, ChunkState.SERVING, None, self._cluster.now_ns)
            self.chunks[entry.key] = chunk
            # Agents may have come before the switch, and with them a reason to bring in what is in already.
            self._candidates.drop(entry.key)
            self._adopted.add(entry.key)
            self._counts[chunk.state] += 1
            self.residents.put(chunk.key, slots, serving=True)
            self._cluster.observer.moved(chunk.key, slots, chunk.state, None, "")
            self._programmer.want(entry)

    def _plan_recovery(self, chunk: CachedChunk) -> NodeIndex | None:
        known = self._directory.get(chunk.key)
        if known is None or known.holders or not self._rules.spill:
            return None
        rooted = self._directory.is_rooted(chunk.key)
        value = self._cluster.values.value(chunk.key, known.facts.size_bytes, rooted, self._cluster.now_ns)
        # A host does not take packets that carry its own address: who filled the chunk cannot get it back.
        hosts = self._last_copies.hosts(chunk.source.node if chunk.source else None, known.facts.namespace)
        return plan_recovery(known.facts.size_bytes, value, self._admissions.is_kept(chunk.key), hosts)

    def _move(self, chunk: CachedChunk, event: ChunkEvent) -> None:
        before, chunk.state = chunk.state, step(chunk.state, event)
        self._reconsider = True
        self._count(chunk, before)
        self._cluster.observer.moved(chunk.key, chunk.slots, chunk.state, event, self._problems.get(chunk.key, ""))
        if chunk.state in _WAIT_FOR_SWITCH:
            self._awaiting_switch.add(chunk.key)
        else:
            self._awaiting_switch.discard(chunk.key)
        match chunk.state:
            case ChunkState.PLACING | ChunkState.PUBLISHING:
                self._programmer.want(self._entry(chunk))
                if before is ChunkState.SERVING:
                    self._directory.set_served(chunk.key, False)
            case ChunkState.FILLING:
                self._give_fill(chunk)
            case ChunkState.SERVING:
                self._decisions["serving"] += 1
                self._problems.pop(chunk.key, None)
                self._directory.set_served(chunk.key, True)
            case ChunkState.CLEARING:
                self._programmer.want_not(("kv_cache", chunk.key))
                self._directory.set_served(chunk.key, False)
            case ChunkState.ABSENT:
                self._programmer.want_not(("kv_cache", chunk.key))
                self.slots.free(chunk.slots)
                del self.chunks[chunk.key]
                self._adopted.discard(chunk.key)
                self.residents.remove(chunk.key)
                if before is not ChunkState.CLEARING:
                    self._directory.set_served(chunk.key, False)

    def _give_fill(self, chunk: CachedChunk) -> None:
        if chunk.source is None:
            raise AssertionError("a chunk is filled by somebody")
        fill = rpc.Fill(
            key=chunk.key,
            segments=chunk.slots.count,
            # The switch casts FILLs that say so: what readers ask for at the same time need not leave twice.
            cast_too=self._admissions.casts_fills,
            readers=chunk.readers,
        )
        timeout_ms = self._cluster.options.fill_timeout_ms
        self._cluster.tasks.add(chunk.source.node, FillFor(chunk.key), rpc.Task(fill=fill), timeout_ms)

    def _cancel_fill(self, key: ChunkKey) -> None:
        for task in self._cluster.tasks.with_purpose(FillFor(key)):
            self._cluster.tasks.cancel(task)

    def _count(self, chunk: CachedChunk, before: ChunkState) -> None:
        """Keep account of a chunk that was in another state."""
        if before is not ChunkState.ABSENT:
            self._counts[before] -= 1
        if chunk.state is not ChunkState.ABSENT:
            self._counts[chunk.state] += 1
            self.residents.put(chunk.key, chunk.slots, serving=chunk.state is ChunkState.SERVING)
        works, worked = chunk.state in _FILLER_WORKS, before in _FILLER_WORKS
        if chunk.source is not None and works != worked:
            (self._admissions.fill_began if works else self._admissions.fill_ended)(chunk.source.node)

    def _lose(self, chunk: CachedChunk) -> None:
        if chunk.state in (ChunkState.PLACING, ChunkState.FILLING):
            self._cancel_fill(chunk.key)
        self._decisions["lost"] += 1
        again = self._admissions.is_pinned(chunk.key)
        self._move(chunk, ChunkEvent.LOST)
        if again or chunk.key in self._directory:
            # It was worth a place; let it come in again without waiting for new evidence.
            self._candidates.seen(chunk.key, 2, self._cluster.now_ns)

    def _entry(self, chunk: CachedChunk) -> FillingEntry | ServingEntry:
        if chunk.state in (ChunkState.PLACING, ChunkState.FILLING):
            if chunk.source is None:
                raise AssertionError("a chunk is filled by somebody")
            return FillingEntry(chunk.key, chunk.slots.base, chunk.slots.count, chunk.source.port)
        return ServingEntry(chunk.key, chunk.slots.base, chunk.slots.count)

    def _segments(self, size_bytes: int) -> int:
        if self._facts is None:
            raise AssertionError("segments have no size without a switch")
        return segments_of(size_bytes, self._facts.segment_bytes)
