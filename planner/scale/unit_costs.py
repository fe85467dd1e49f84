"""What one message, one record, one chunk costs: measured on the real classes with a sample of chunks.

Bytes are exact. Times and memory are of this machine and of Python; they are linear in the number of chunks (hash
tables), which a second measurement at half the sample shows.
"""

from __future__ import annotations

import gc
import resource
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from controlplane.core.core import Core
from controlplane.core.effects import Effect, SendTo
from controlplane.core.events import HelloReceived, MessageReceived, TimerFired
from controlplane.core.ids import ChunkKey
from controlplane.core.limits import ANNOUNCE_RECORDS_MAX
from hostagent import limits
from hostagent.controller.convert import delta_of
from hostagent.controller.refusals import Refusals
from hostagent.core.directory import DirectoryReplica
from hostagent.core.events import ControllerEvent
from kvchunk.ids import ROOT_KEY
from kvproto.chunk_columns import pack
from kvproto.integrity import Integrity, digest_of
from kvproto.rpc import control_pb2 as rpc
from planner.cluster.clock import VirtualClock
from planner.cluster.controller import VirtualController, hello_of
from planner.cluster.requests import key_of
from planner.errors import PlanError

_PEERS: Final = 64
_SAID_NS = 10**7
_LATER_NS = 10**7
"""Long enough after something was said that it is published."""
_AGAIN: Final = 5
"""Repetitions of operations too quick to be timed once."""
_PREFIX: Final = 20
"""Chunks of a prompt in the sample."""
_BATCH: Final = min(ANNOUNCE_RECORDS_MAX, limits.ANNOUNCE_BATCH_CHUNKS)


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Seconds of one core and bytes, each of one thing."""

    sample: int
    announce_s: float
    """Controller: one record of an Announce."""
    usage_s: float
    """Controller: one fetch event."""
    publish_s: float
    """Controller: one changed chunk in a delta, for all receivers."""
    tell_s: float
    """Controller: one changed chunk made into bytes for one agent; each agent's stream does it separately."""
    look_up_s: float
    """Controller: one chunk that an agent with a bounded replica asks for, found and told."""
    apply_s: float
    """Agent: one changed chunk taken into its replica."""
    record_bytes: float
    event_bytes: float
    entry_bytes: float
    heartbeat_bytes: int
    directory_bytes: float
    """Controller's memory for one chunk."""
    replica_bytes: float
    """Each agent's memory for one chunk."""
    linearity: float
    """Controller's memory for one chunk over the same at half the sample; 1: linear."""
    peak_rss_bytes: int


class _Silent:
    """A peer that listens and says nothing."""

    def controller_event(self, event: ControllerEvent) -> None:
        """Keeps nothing."""


def measure(sample: int = 100_000, progress: Callable[[str, float], None] = lambda *_: None) -> UnitCosts:
    """Run the controller's core with 64 agents and `sample` chunks. Some seconds for each 100,000."""
    keys = [key_of(1_000_000_000 + index) for index in range(sample)]
    progress("directory: memory", 0.0)
    half = _directory_bytes(keys[: sample // 2])
    whole = _directory_bytes(keys)
    progress("directory: time", 0.3)
    core = _core()
    announce_s, record_bytes = _announce(core, keys)
    progress("publication", 0.6)
    publish_s, tell_s, deltas = _publish(core, sample)
    entry_bytes = sum(delta.ByteSize() for delta in deltas) / sample
    progress("usage", 0.7)
    usage_s, event_bytes = _usage(core, keys)
    progress("replica", 0.8)
    look_up_s = _look_up(core, keys)
    apply_s = _apply(deltas)
    replica = _replica_bytes(deltas)
    return UnitCosts(
        sample=sample,
        announce_s=announce_s,
        usage_s=usage_s,
        publish_s=publish_s,
        tell_s=tell_s,
        look_up_s=look_up_s,
        apply_s=apply_s,
        record_bytes=record_bytes,
        event_bytes=event_bytes,
        entry_bytes=entry_bytes,
        heartbeat_bytes=rpc.FromAgent(heartbeat=rpc.Heartbeat(pool_used_bytes=1 << 37, chunks=4096)).ByteSize(),
        directory_bytes=whole / sample,
        replica_bytes=replica / sample,
        linearity=(whole / sample) / (half / max(1, sample // 2)),
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _core() -> Core:
    controller = VirtualController(VirtualClock(), _PEERS, 1 << 38, None)
    controller.attach([_Silent() for _ in range(_PEERS)])
    for node in range(_PEERS):
        controller.message(node, rpc.FromAgent(announce=rpc.Announce(snapshot=True, snapshot_end=True)))
    core = controller.core
    core.handle(TimerFired(), _SAID_NS)
    return core


def _announcements(keys: Sequence[ChunkKey]) -> list[rpc.FromAgent]:
    found = []
    for start in range(0, len(keys), _BATCH):
        indexes = range(start, min(start + _BATCH, len(keys)))
        said = rpc.Announce(namespaces=[""])
        pack(
            said.columns,
            keys=b"".join(keys[index] for index in indexes),
            parents=b"".join(keys[index - 1] if index % _PREFIX else ROOT_KEY for index in indexes),
            digests=b"".join(digest_of(Integrity.BLAKE3, index.to_bytes(32, "big")) for index in indexes),
            sizes=[1 << 26] * len(indexes),
            positions=[index % _PREFIX for index in indexes],
            namespace_indexes=[0] * len(indexes),
            flags=bytes(len(indexes)),
        )
        found.append(rpc.FromAgent(announce=said))
    return found


def _announce(core: Core, keys: Sequence[ChunkKey]) -> tuple[float, float]:
    messages = _announcements(keys)
    began = time.process_time()
    for turn, message in enumerate(messages):
        core.handle(MessageReceived(turn % _PEERS, message), _SAID_NS)
    took_s = time.process_time() - began
    return took_s / len(keys), sum(message.ByteSize() for message in messages) / len(keys)


def _published(core: Core) -> list[Effect]:
    """What the core tells agents of all that has changed: of very many chunks in several turns."""
    made: list[Effect] = []
    while core.directory.changes_count:
        made += core.handle(TimerFired(), core.now_ns + _LATER_NS)
    return made


def _publish(core: Core, sample: int) -> tuple[float, float, list[rpc.DirectoryDelta]]:
    began = time.process_time()
    effects = _published(core)
    took_s = time.process_time() - began
    deltas = [
        effect.message.directory
        for effect in effects
        if isinstance(effect, SendTo) and effect.session == 0 and effect.message.HasField("directory")
    ]
    messages = [rpc.ToAgent(directory=delta) for delta in deltas]
    began = time.process_time()
    made = sum(len(message.SerializeToString()) for _ in range(_AGAIN) for message in messages)
    tell_s = (time.process_time() - began) / (_AGAIN * sample)
    if made < _AGAIN * sample:
        raise AssertionError("a changed chunk takes at least a byte")
    return took_s / sample, tell_s, deltas


def _usage(core: Core, keys: Sequence[ChunkKey]) -> tuple[float, float]:
    messages = []
    for start in range(0, len(keys), limits.USAGE_BATCH_EVENTS):
        events = [
            rpc.FetchEvent(key=key, source=rpc.SOURCE_CAST, bytes=1 << 26, waited_us=10_000, age_ms=100, holder=1)
            for key in keys[start : start + limits.USAGE_BATCH_EVENTS]
        ]
        messages.append(rpc.FromAgent(usage=rpc.Usage(fetches=events)))
    began = time.process_time()
    for turn, message in enumerate(messages):
        core.handle(MessageReceived(turn % _PEERS, message), core.now_ns + _LATER_NS)
    took_s = time.process_time() - began
    return took_s / len(keys), sum(message.ByteSize() for message in messages) / len(keys)


def _look_up(core: Core, keys: Sequence[ChunkKey]) -> float:
    asker = _PEERS
    hello = hello_of(asker, 1 << 38, 0)
    hello.follows = True
    core.handle(HelloReceived(asker, hello), core.now_ns)
    step = limits.LOOK_UP_KEYS_MAX
    messages = [
        rpc.FromAgent(look_up=rpc.LookUp(number=start + 1, keys=b"".join(keys[start : start + step])))
        for start in range(0, len(keys), step)
    ]
    began = time.process_time()
    for message in messages:
        core.handle(MessageReceived(asker, message), core.now_ns + _LATER_NS)
    return (time.process_time() - began) / len(keys)


def with_bench(costs: UnitCosts, found: Mapping[str, Any]) -> UnitCosts:
    """With what `kvcast bench controller` has found (its `--json`) of a daemon on gRPC, in place of what the core alone
    takes. Raises PlanError for other figures."""
    try:
        figures, followers = found["figures"], found["load"]["followers"]
        announced_s, directory_bytes = figures["cpu_us_per_chunk"] / 1e6, float(figures["bytes_per_chunk"])
    except (KeyError, TypeError) as error:
        raise PlanError(f"these are no figures of `kvcast bench controller --json`: {error} is missing") from error
    # What it measured goes to its followers, too.
    alone_s = max(0.0, announced_s - costs.publish_s - followers * costs.tell_s)
    return replace(costs, announce_s=alone_s, directory_bytes=directory_bytes)


def _apply(deltas: Sequence[rpc.DirectoryDelta]) -> float:
    replica = DirectoryReplica("node0")
    began = time.process_time()
    for delta in deltas:
        replica.apply(delta_of(delta, Refusals()))
    return (time.process_time() - began) / max(1, replica.chunks_count)


def _traced(build: Callable[[], object]) -> int:
    """Bytes that the built object holds."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = build()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return max(1, after - before)


def _directory_bytes(keys: Sequence[ChunkKey]) -> int:
    messages = _announcements(keys)

    def build() -> Core:
        core = _core()
        for turn, message in enumerate(messages):
            core.handle(MessageReceived(turn % _PEERS, message), max(core.now_ns, _SAID_NS))
            if turn % 8 == 7:
                _published(core)
        _published(core)
        return core

    return _traced(build)


def _replica_bytes(deltas: Sequence[rpc.DirectoryDelta]) -> int:
    def build() -> DirectoryReplica:
        replica = DirectoryReplica("node0")
        for delta in deltas:
            replica.apply(delta_of(delta, Refusals()))
        return replica

    return _traced(build)
