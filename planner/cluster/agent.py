"""One node: the shell of an agent's core, without memory, sockets and loop; and the engine's queue."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hostagent import limits
from hostagent.controller import convert
from hostagent.core import effects, events
from hostagent.core.core import AgentCore
from hostagent.core.events import ControllerEvent, EngineId, LeaseId, LoadOutcome, SaveOutcome
from hostagent.core.node import Knowledge
from hostagent.core.options import CoreOptions
from hostagent.core.work import FillWork, Task
from hostagent.limits import API_DEADLINE_S_MAX
from hostagent.pool.chunks import Chunk
from hostagent.tree import NOT_HASHED, Hashed
from kvchunk.ids import ChunkKey, Digest
from kvchunk.sources import ChunkSource
from kvclient.messages import Kind, Status, Where
from kvpolicy.tiers.gate import priors
from kvpolicy.tiers.holder_load import HolderLoad
from kvpolicy.tiers.prefill import Prefill
from kvpolicy.value.costs import PRIORS, SourceCost, Tier
from kvproto import events as protocol
from kvproto.commands import SendControl
from kvproto.ids import Address
from kvproto.integrity import Integrity, digest_of
from kvproto.rpc import control_pb2 as rpc
from planner.cluster.clock import Timer, VirtualClock
from planner.cluster.controller import data_ip
from planner.cluster.disk import VirtualDisk
from planner.cluster.fetch_simulation import FlowReader, node_name
from planner.cluster.options import Cluster, Scenario, Sharing
from planner.cluster.served import Served


class Bring(Protocol):
    """See `FetchSimulation.bring`."""

    def __call__(self, reader: Agent, asked: Sequence[protocol.ChunkWanted], /, *, background: bool) -> None: ...


Abandon = Callable[["Agent", Sequence[ChunkKey]], None]
"""See `FetchSimulation.abandon`."""
Fill = Callable[["Agent", Task, FillWork, Callable[[effects.ReportTaskEnd], None]], None]
"""See `Background.fill`."""


class _Waiting(NamedTuple):
    """A request whose input is at hand; they are compared by the first two."""

    arrived_s: float
    number: int
    expected_s: float
    begin: Callable[[], float]
    done: Callable[[], None]


class Engine:
    """Prefills one request after the other: of those whose input is at hand the one that arrived first."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._queue: list[_Waiting] = []
        self._busy = False
        self._free_at_s = 0.0
        self._expected_s = 0.0
        self._number = 0
        self.busy_s = 0.0

    @property
    def waiting(self) -> int:
        """Requests in the queue or at work."""
        return len(self._queue) + self._busy

    @property
    def backlog_s(self) -> float:
        """Until all that is here will be done, as expected."""
        return max(0.0, self._free_at_s - self._clock.now_s) + self._expected_s

    def submit(self, arrived_s: float, expected_s: float, begin: Callable[[], float], done: Callable[[], None]) -> None:
        """A request's input is at hand. `begin` is called when its turn comes and says how long it takes, about
        `expected_s`; then `done`."""
        self._number += 1
        heapq.heappush(self._queue, _Waiting(arrived_s, self._number, expected_s, begin, done))
        self._expected_s += expected_s
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._busy:
            _, _, expected_s, begin, done = heapq.heappop(self._queue)
            self._expected_s = self._expected_s - expected_s if self._queue else 0.0
            takes_s = begin()
            self.busy_s += takes_s
            self._free_at_s = self._clock.now_s + takes_s
            self._clock.call_later(takes_s, self._done, done)

    def _done(self, done: Callable[[], None]) -> None:
        done()
        self._next()


_ENGINE: Final = EngineId(1)
_DEADLINE_S: Final = API_DEADLINE_S_MAX
_NOTHING: Final[npt.NDArray[np.uint32]] = np.empty(0, np.uint32)
_STORING: Final = frozenset({Status.OK, Status.EXISTS, Status.FILLING})
"""Answers to a reservation after which the engine goes on with the next chunk."""
Answer = effects.FetchAnswered


class Surroundings(NamedTuple):
    """What an agent asks of the cluster around it."""

    send: Callable[[rpc.FromAgent], None]
    """The stream to the controller."""
    bring: Bring
    """Brings what the reader asks for."""
    abandon: Abandon
    """Brings it no longer."""
    left_bytes: Callable[[ChunkKey], float | None]
    """See `FlowReader`."""
    fill: Fill
    """Fills the switch."""
    to_switch: Callable[[SendControl], None]
    """Takes what the node says to the switch by itself."""


class Agent:
    """A node: the shell of an agent's core on a virtual clock, and its engine."""

    def __init__(self, node: int, clock: VirtualClock, scenario: Scenario, around: Surroundings) -> None:
        cluster, sharing = scenario.cluster, scenario.sharing
        self.node = node
        self.chunk_bytes = cluster.chunk_bytes
        self.engine = Engine(clock)
        self._clock = clock
        self._around = around
        self._keeps_private = sharing in (Sharing.UNICAST, Sharing.REPLICAS) and not scenario.copies_serve
        self._private: set[ChunkKey] = set()
        """Copies that the directory must not know of."""
        self._request = 0
        self._answers: dict[int, Callable[[Answer], None]] = {}
        self._reserved: effects.ReserveAnswered | None = None
        self._places = b""
        self._peer_loads: dict[ChunkKey, deque[Callable[[Chunk | None], None]]] = {}
        self._timer: Timer | None = None
        self._timer_ns: int | None = None
        knowledge = Knowledge(node_name(node), _priors(cluster))
        self.disk: VirtualDisk | None = None
        if cluster.local_disk_bytes:
            index = knowledge.disk_pool(_aligned(cluster.local_disk_bytes))
            self.disk = VirtualDisk(clock, index, cluster.disk_rate)
        self.reader = FlowReader(around.left_bytes, cluster.segment_bytes)
        options = CoreOptions(
            _aligned(cluster.local_dram_bytes), cluster.segment_bytes, merge_wait_max_s=scenario.wait_max_s
        )
        self.served = Served(casts=sharing in (Sharing.CAST, Sharing.CAST_SWITCH))
        self.core = AgentCore(options, knowledge, self.disk, lambda _: self.reader, self.served)
        self._carriers = self._carriers_by_effect()
        self.handle(events.Started(0))

    # -- the loop

    def handle(self, event: events.Event) -> None:
        """Receive, decide, transmit, as `hostagent.agent.Agent` does."""
        made = self.core.handle(event, self._clock.now_ns)
        asked, dropped = self.reader.take_asked(), self.reader.take_dropped()
        for effect in made:
            carry_out = self._carriers.get(type(effect))
            if carry_out is None:
                raise AssertionError(f"nothing in a replay leads to {effect}")
            carry_out(effect)
        if dropped:
            self._around.abandon(self, dropped)
        if asked:
            self._around.bring(self, asked, background=not isinstance(event, events.ChunksRequested))
        self._arm_if_changed()

    def _arm_if_changed(self) -> None:
        due_ns = self.core.next_timeout_ns()
        if due_ns != self._timer_ns:
            self._arm(due_ns)

    def _arm(self, due_ns: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        # One nanosecond more: seconds are rounded, and too early is not yet due.
        self._timer = None if due_ns is None else self._clock.call_at((due_ns + 1) / 1e9, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer, self._timer_ns = None, None
        self.handle(events.TimerFired())

    def _carriers_by_effect(self) -> Mapping[type, Callable[[Any], None]]:
        def nothing(_: effects.Effect) -> None:
            """Memory and counters are not simulated."""

        def reserved(effect: effects.ReserveAnswered) -> None:
            self._reserved = effect

        def answered(effect: effects.KeysAnswered) -> None:
            self._places = effect.values

        return {
            effects.ReserveAnswered: reserved,
            effects.CommitAnswered: nothing,
            effects.FetchAnswered: lambda effect: self._answers.pop(effect.request)(effect),
            effects.KeysAnswered: answered,
            effects.ForgetCasts: nothing,
            effects.PeerLoadEnded: self._peer_load_ended,
            effects.ComputeDigest: self._compute_digest,
            effects.LoadChunk: self._load,
            effects.SaveChunk: self._save,
            effects.ForgetStored: self._forget_stored,
            effects.Announce: self._announce,
            effects.ReportUsage: self._report,
            effects.ReportClaims: self._report,
            effects.ReportInterests: self._report,
            effects.ReportTaskProgress: self._report,
            effects.ReportTaskEnd: self._report,
            effects.ReportLoad: self._report,
            SendControl: self._around.to_switch,
            effects.BeatHeart: lambda effect: self._around.send(convert.heartbeat_of(effect)),
            effects.FetchEnded: nothing,
            effects.ReservationEnded: nothing,
        }

    # -- memory and disk

    def find(self, key: ChunkKey) -> Chunk | None:
        """The chunk, if it is in the pool."""
        return self.core.pool.find(key)

    def is_coming(self, key: ChunkKey) -> bool:
        """Whether the pool has room for it that is being filled from elsewhere."""
        return self.reader.missing(key) is not None

    def leading(self, keys: Sequence[ChunkKey]) -> int:
        """How many leading chunks of a prompt are in the pool."""
        return next((count for count, key in enumerate(keys) if self.find(key) is None), len(keys))

    def _compute_digest(self, effect: effects.ComputeDigest) -> None:
        """The network model has counted the time that it takes."""
        self.handle(events.DigestComputed(effect.chunk, Hashed(_digest_of(effect.chunk.key)), effect.use))

    def _load(self, effect: effects.LoadChunk) -> None:
        def loaded(stored: Chunk | None) -> None:
            outcome = LoadOutcome.ABSENT if stored is None else LoadOutcome.DONE
            self.handle(events.LoadEnded(effect.into, outcome, NOT_HASHED if stored is None else Hashed(stored.digest)))

        self._disk_of(effect).load(effect.into.key, loaded)

    def _save(self, effect: effects.SaveChunk) -> None:
        def saved(done: bool) -> None:
            self.handle(events.SaveEnded(effect.chunk, SaveOutcome.STORED if done else SaveOutcome.REFUSED))

        self._disk_of(effect).save(effect.chunk, saved)

    def _forget_stored(self, effect: effects.ForgetStored) -> None:
        self._disk_of(effect).pool.drop(effect.key, force=True)

    def _disk_of(self, effect: effects.Effect) -> VirtualDisk:
        if self.disk is None:
            raise AssertionError(f"a node without a disk cannot carry out {effect}")
        return self.disk

    # -- the engine

    def ask(
        self,
        keys: tuple[ChunkKey, ...],
        recompute_s: float,
        then: Callable[[Answer], None],
        *,
        queue_s: float = 0.0,
        behind: int = 0,
    ) -> None:
        """The engine wants chunks: `then` takes the leading ones that arrived, now or later; give back the lease.

        `queue_s`: seconds until the engine is free for them; `behind`: requests that wait for it then."""
        self._request += 1
        self._answers[self._request] = then
        prefill = Prefill(recompute_s, queue_s=queue_s, behind=behind)
        self.handle(events.ChunksRequested(_ENGINE, self._request, keys, _DEADLINE_S, prefill))

    def claim(self, keys: Sequence[ChunkKey], etas_s: Sequence[float]) -> None:
        """The engine computes these chunks, and puts each so many seconds from now."""
        self.handle(events.ClaimMade(_ENGINE, tuple(keys), self.chunk_bytes, tuple(etas_s)))

    def known(self, keys: tuple[ChunkKey, ...]) -> int:
        """How many leading ones of these the pool could deliver, as far as this node knows."""
        self.handle(events.KeysRequested(_ENGINE, 0, Kind.CONTAINS, keys))
        return next((count for count, where in enumerate(self._places) if where == Where.NOWHERE), len(keys))

    def release(self, lease: LeaseId) -> None:
        """The engine is done with what a fetch gave it."""
        self.handle(events.LeaseReleased(_ENGINE, lease))

    def store(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Keep what the engine computed, in prefix order, as far as there is room; returns chunks new here."""
        stored = []
        for place, key in enumerate(keys):
            if self.find(key) is not None:
                continue
            status = self.put(keys, place)
            if status is Status.OK:
                self._private.discard(key)
                stored.append(key)
            elif status not in _STORING:
                break
        return stored

    def put(self, keys: Sequence[ChunkKey], place: int) -> Status:
        """Reserve, write, commit one chunk of a prompt, all of it at this moment."""
        parent = keys[place - 1] if place else None
        self.handle(events.ReserveRequested(_ENGINE, 0, keys[place], parent, self.chunk_bytes, place, ""))
        reserved = self._reserved
        if reserved is None:
            raise AssertionError("a reservation is answered at once")
        if reserved.status is Status.OK:
            self.handle(events.CommitRequested(_ENGINE, 0, reserved.lease))
        return reserved.status

    # -- peers

    def lend(self, key: ChunkKey) -> Chunk | None:
        """A peer reads a chunk; it stays until `give_back`. None: it is not in the pool."""
        lent = self.core.lend(key, self._clock.now_ns)
        self._arm_if_changed()
        return lent

    def give_back(self, chunk: Chunk) -> None:
        """The peer has it."""
        self.handle(events.PeerReadEnded(chunk))

    def load_for_peer(self, key: ChunkKey, then: Callable[[Chunk | None], None]) -> bool:
        """A peer wants a chunk from the disk: `then` takes it, lent, or None. False: it is not there."""
        if not self.core.can_load_for_peer(key):
            return False
        self._peer_loads.setdefault(key, deque()).append(then)
        self.handle(events.PeerLoadRequested(key))
        return True

    def _peer_load_ended(self, effect: effects.PeerLoadEnded) -> None:
        waiting = self._peer_loads[effect.key]
        then = waiting.popleft()
        if not waiting:
            del self._peer_loads[effect.key]
        then(effect.chunk)

    def chunk_arrived(self, key: ChunkKey, source: ChunkSource | None, holder: int | None) -> None:
        """What the reader asked for is here; None for the source: no node has it any more."""
        if self._keeps_private and source is not None:
            self._private.add(key)
        self.reader.chunk_arrived(key, source)
        from_switch = int(source is ChunkSource.SWITCH)
        address = Address(0) if holder is None else Address(int.from_bytes(data_ip(holder), "big"))
        self.handle(protocol.SegmentsReceived(key, _NOTHING, address, from_switch))

    def load_reported(self, holder: int, load: HolderLoad) -> None:
        """A holder says with its answer what it has queued for others."""
        self.handle(events.HolderTold(node_name(holder), load))

    # -- the controller

    def controller_event(self, event: ControllerEvent) -> None:
        """A message of the controller has arrived."""
        if isinstance(event, events.TaskGiven) and isinstance(event.task.work, FillWork):
            self._around.fill(self, event.task, event.task.work, self._report)
        else:
            self.handle(event)

    def _announce(self, effect: effects.Announce) -> None:
        if self._private and effect.added:
            public = [chunk for chunk in effect.added if chunk.key not in self._private]
            if not public and not effect.removed:
                return
            effect = replace(effect, added=public)
        self._report(effect)

    def _report(self, effect: convert.ControllerEffect) -> None:
        self._around.send(convert.message_of(effect))


def _aligned(size_bytes: int) -> int:
    align = limits.EXTENT_ALIGN_BYTES
    return max(align, size_bytes // align * align)


def _priors(cluster: Cluster) -> dict[Tier, SourceCost]:
    """Before the first fetch the gate believes in the link, as the daemon's does, and in the device."""
    network = priors(cluster.link_rate * 8)
    disk = SourceCost(PRIORS[Tier.LOCAL_DISK].overhead_s, cluster.disk_rate)
    remote_rate = min(cluster.link_rate, cluster.disk_rate)
    remote_disk = SourceCost(PRIORS[Tier.REMOTE_DISK].overhead_s, remote_rate)
    return {**network, Tier.LOCAL_DISK: disk, Tier.REMOTE_DISK: remote_disk}


def _digest_of(key: ChunkKey) -> Digest:
    """Of bytes that do not exist."""
    return digest_of(Integrity.BLAKE3, key + key)
