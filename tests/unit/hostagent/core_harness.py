"""An agent's core alone: the test is its shell, and its clock."""

from __future__ import annotations

from typing import TypeVar

from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.core import AgentCore
from hostagent.core.directory import Delta, NodeEntry
from hostagent.core.disk_index import DiskState
from hostagent.core.events import EngineId, LoadOutcome, SaveOutcome
from hostagent.core.node import Knowledge
from hostagent.core.options import CoreOptions
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.tree import NOT_HASHED, Hashed
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.form_costs import FormChoice
from kvpolicy.tiers.prefill import Prefill
from kvpolicy.value.costs import PRIORS
from kvproto.commands import SendControl
from kvproto.events import ControlReceived, ReadDone
from kvproto.ids import Address
from kvproto.wire.control import Control, Op
from tests.digests import digest, hashed

PAGE = 4096
MS = 1_000_000
ENGINE = EngineId(1)
T = TypeVar("T")


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


class Disk:
    """A disk without bytes: what is saved can be loaded."""

    def __init__(self, pool: ChunkPool) -> None:
        self.pool = pool
        self.state = DiskState.ON

    def find(self, key: ChunkKey) -> Chunk | None:
        return self.pool.find(key) if self.state is not DiskState.OFF else None

    def stored_chunks(self) -> list[Chunk]:
        return self.pool.ready_chunks()

    def take_changes(self) -> tuple[list[Chunk], list[ChunkKey]]:
        return self.pool.take_changes()

    def store(self, number: int, size_bytes: int = PAGE) -> None:
        """A chunk lies here from an earlier life."""
        place = self.pool.reserve(key(number), None, size_bytes)
        assert isinstance(place, Chunk)
        self.pool.commit(place, hashed(number))


class Scene:
    """One core. Effects are collected in `made` until the test takes them."""

    def __init__(
        self,
        *,
        pool_pages: int = 64,
        disk_pages: int = 0,
        promote: bool = False,
        segment_bytes: int = PAGE,
        cold: bool = False,
        wire: FormChoice = FormChoice.RAW,
        lone_gets: bool = False,
        replica_bytes: int = 0,
        follows_at_once: bool = True,
    ) -> None:
        knowledge = Knowledge("n0", PRIORS)
        self.disk = Disk(knowledge.disk_pool(disk_pages * PAGE)) if disk_pages else None
        options = CoreOptions(
            pool_pages * PAGE,
            segment_bytes,
            promote=promote,
            has_cold=cold,
            lone_gets=lone_gets,
            wire_form=wire,
            replica_bytes=replica_bytes,
            follows_at_once=follows_at_once,
        )
        self.core = AgentCore(options, knowledge, self.disk)
        self.now_ns = 1_000_000_000
        self.made: list[effects.Effect] = []
        self.request = 0
        self.say(events.Started(1 << 20))

    # ------------------------------------------------------------------ in and out

    def say(self, event: events.Event) -> None:
        self.made += self.core.handle(event, self.now_ns)

    def pass_ms(self, ms: float) -> None:
        """Let time pass; alarms ring when they are due."""
        until_ns = self.now_ns + int(ms * MS)
        while (due_ns := self.core.next_timeout_ns()) is not None and due_ns <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.say(events.TimerFired())
        self.now_ns = until_ns

    def take(self, kind: type[T]) -> list[T]:
        """Effects of a kind, out of those collected."""
        taken = [effect for effect in self.made if isinstance(effect, kind)]
        self.made = [effect for effect in self.made if not isinstance(effect, kind)]
        return taken

    def said(self) -> list[tuple[Op, Address]]:
        """Control datagrams since the last look."""
        return [(sent.message.op, sent.address) for sent in self.take(SendControl)]

    # ------------------------------------------------------------------ the world

    def directory(self, *chunks: ChunkEntry, nodes: int = 3, member: int | None = None) -> None:
        """The replica learns nodes n0, n1, ... at the addresses 0, 1, ..., and chunks."""
        known = tuple(NodeEntry(one, f"n{one}", Address(one), f"0.0.0.{one}:1", one) for one in range(nodes))
        sequence = self.core.directory.sequence + 1
        self.say(events.DirectoryChanged(Delta(sequence, nodes=known, chunks=chunks)))

    def put(self, number: int, size_bytes: int = PAGE) -> Chunk:
        """An engine writes a chunk; its number stands for its contents."""
        self.request += 1
        self.say(events.ReserveRequested(ENGINE, self.request, key(number), None, size_bytes, None, ""))
        answer = self.take(effects.ReserveAnswered)[-1]
        self.say(events.CommitRequested(ENGINE, self.request, answer.lease))
        self.compute(number)
        chunk = self.core.pool.find(key(number))
        assert chunk is not None
        return chunk

    def compute(self, number: int) -> None:
        """Answer every ComputeDigest."""
        for asked in self.take(effects.ComputeDigest):
            self.say(events.DigestComputed(asked.chunk, hashed(number), asked.use))

    def read(self) -> None:
        """Answer every StartRead: the peer delivers."""
        for started in self.take(effects.StartRead):
            self.say(ReadDone(started.read))

    def fetch(self, *numbers: int, recompute_s: float | None = None, deadline_s: float = 10.0) -> int:
        """An engine asks; the request's number."""
        self.request += 1
        keys = tuple(key(number) for number in numbers)
        self.say(
            events.ChunksRequested(
                ENGINE, self.request, keys, deadline_s, None if recompute_s is None else Prefill(recompute_s)
            )
        )
        return self.request

    def ask(self, op: Op, number: int, segments: int, count: int, source: int) -> None:
        """A peer asks this node."""
        message = Control(op, key(number), segments=segments, segment=0, count=count)
        self.say(events.ControlsReceived((ControlReceived(message, Address(source)),)))

    # ------------------------------------------------------------------ the disk

    def load(self, outcome: LoadOutcome = LoadOutcome.DONE) -> list[ChunkKey]:
        """Answer every LoadChunk."""
        asked = self.take(effects.LoadChunk)
        for one in asked:
            stored = self.disk.find(one.into.key) if self.disk is not None else None
            found = Hashed(stored.digest) if stored is not None else NOT_HASHED
            self.say(events.LoadEnded(one.into, outcome, found))
        return [one.into.key for one in asked]

    def save(self, outcome: SaveOutcome = SaveOutcome.STORED) -> list[ChunkKey]:
        """Answer every SaveChunk, as a disk does that has its own word about room."""
        asked = self.take(effects.SaveChunk)
        for one in asked:
            assert self.disk is not None
            ended = outcome
            if outcome is SaveOutcome.STORED:
                place = self.disk.pool.reserve(one.chunk.key, None, one.chunk.size_bytes)
                if isinstance(place, Chunk):
                    self.disk.pool.commit(place, Hashed(one.chunk.digest))
                else:
                    ended = SaveOutcome.REFUSED
            self.say(events.SaveEnded(one.chunk, ended))
        return [one.chunk.key for one in asked]

    def close(self) -> None:
        """The engine and the process go; nothing is left."""
        self.say(events.EngineDisconnected(ENGINE))
        self.say(events.Stopped())
        assert self.core.pool.pins_count == 0
        assert self.core.pool.usage().filling_bytes == 0


def entry(number: int, *holders: int, pages: int = 8, served: bool = False, disk: tuple[int, ...] = ()) -> ChunkEntry:
    return ChunkEntry(key(number), None, pages * PAGE, digest(number), 0, holders, served, disk_holders=disk)
