"""Chunks on their way that come by their twins: brings the twins as any chunks, and has each decoded when it is whole.

Such a chunk is being loaded, as from a disk: `load_ended` says how that went, and where it went wrong the reader is
asked for the chunk itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hostagent.core import effects
from hostagent.core.arrivals import InboundChunk
from hostagent.core.events import LoadOutcome, TwinDecoded
from hostagent.core.fetch import FetchResult
from hostagent.core.node import Node
from hostagent.core.twins import Twin, Twins
from hostagent.pool.chunks import Chunk
from hostagent.tree import NOT_HASHED, Hashed
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvcodec.forms import Form
from kvpolicy.tiers.form_costs import FormCosts
from kvpolicy.tiers.gate import Ticket
from kvproto.ids import Address, FetchId
from kvproto.integrity import algorithm_of

Bring = Callable[[Sequence[InboundChunk], int, Ticket, Callable[[FetchResult], None]], FetchId | None]
"""Begins a fetch of the twins of chunks, until a deadline; the ticket is of the fetch of the chunks."""


@dataclass(slots=True, eq=False)
class _Decoding:
    inbound: InboundChunk
    twin: Chunk
    form: Form


class TwinFetches:
    """Owns the chunks that wait for their twins, and those that are being decoded. It is told by which twin a chunk
    should come."""

    def __init__(
        self,
        node: Node,
        twins: Twins,
        costs: FormCosts,
        bring: Bring,
        cancel: Callable[[FetchId], None],
        load_ended: Callable[[Chunk, LoadOutcome, Hashed], None],
    ) -> None:
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._twins = twins
        self._costs = costs
        self._bring = bring
        self._cancel = cancel
        self._load_ended = load_ended
        self.waiting: dict[ChunkKey, InboundChunk] = {}
        """By the key of the twin. The memory of each is pinned until `load_ended`."""
        self._brought: dict[FetchId, frozenset[ChunkKey]] = {}
        """Twins by the fetch that brings them."""
        self._decoding: dict[Chunk, _Decoding] = {}
        """By the chunk that is written."""
        self._failed: list[InboundChunk] = []
        self._settle_soon = node.alarms.add(self._settle)
        self.decoded_count = 0
        self.saved_bytes = 0

    def begin(self, inbounds: Sequence[InboundChunk], deadline_ns: int, ticket: Ticket) -> None:
        """These chunks, which are on their way since this moment, come by their twins."""
        for inbound in inbounds:
            self._pool.pin(inbound.chunk)
            self.waiting[_twin(inbound).key] = inbound
        for inbound in inbounds:
            here = self._pool.find(_twin(inbound).key)
            if here is not None:
                self.came(here, None, ChunkSource.LOCAL)
        missing = [inbound for inbound in inbounds if _twin(inbound).key in self.waiting]
        if not missing:
            return
        keys = frozenset(_twin(inbound).key for inbound in missing)

        def ended(result: FetchResult) -> None:
            self._brought = {number: brought for number, brought in self._brought.items() if brought is not keys}
            for chunk, source in result.chunks:
                self.came(chunk, None, source)
                self._pool.unpin(chunk)
            for key in keys & self.waiting.keys():
                self._fail(key)

        number = self._bring(missing, deadline_ns, ticket, ended)
        if number is not None:
            self._brought[number] = keys

    def came(self, twin: Chunk, sender: Address | None, source: ChunkSource) -> None:
        """A chunk is whole and right in the pool; perhaps a twin that is waited for."""
        inbound = self.waiting.pop(twin.key, None)
        if inbound is None:
            return
        inbound.last_source, inbound.decoded_from = sender, source
        self._pool.pin(twin)
        form = _twin(inbound).stored.form
        self._decoding[inbound.chunk] = _Decoding(inbound, twin, form)
        self._emit(effects.DecodeTwin(twin, inbound.chunk, form, algorithm_of(inbound.entry.digest)))

    def decoded(self, event: TwinDecoded) -> None:
        """What became of DecodeTwin."""
        decoding = self._decoding.pop(event.into, None)
        if decoding is None:
            return
        if event.work is not None:
            self._costs.measured(event.work)
        expected = decoding.inbound.entry.digest
        # What was rounded has another digest; it is what the twin's holder vouched for with the twin's digest.
        is_right = event.whole and (decoding.form is Form.LOSSY or event.hashed.digest == expected)
        if is_right:
            self.decoded_count += 1
            self.saved_bytes += event.into.size_bytes - decoding.twin.size_bytes
        else:
            self._twins.was_wrong(decoding.twin, expected)
        self._pool.unpin(decoding.twin)
        self._load_ended(event.into, LoadOutcome.DONE if is_right else LoadOutcome.DAMAGED, event.hashed)

    def given_up(self, inbound: InboundChunk) -> None:
        """Nobody waits for a chunk any more, or it is here by other means."""
        twin = inbound.twin
        if twin is not None and self.waiting.get(twin.key) is inbound:
            del self.waiting[twin.key]
            self._pool.unpin(inbound.chunk)
            self._settle_soon.set(self._clock.now_ns)

    def close(self) -> None:
        """The chunks were given up. Memory that a thread still writes to is given back without its word."""
        self._brought.clear()
        for decoding in self._decoding.values():
            self._pool.unpin(decoding.twin)
            self._pool.unpin(decoding.inbound.chunk)
        self._decoding.clear()
        for inbound in self._failed:
            self._pool.unpin(inbound.chunk)
        self._failed.clear()

    def _fail(self, key: ChunkKey) -> None:
        """A twin did not come. The reader hears of it when the event at hand is over."""
        self._failed.append(self.waiting.pop(key))
        self._settle_soon.set(self._clock.now_ns)

    def _settle(self) -> None:
        failed, self._failed = self._failed, []
        for inbound in failed:
            self._load_ended(inbound.chunk, LoadOutcome.ABSENT, NOT_HASHED)
        for number, keys in list(self._brought.items()):
            if keys.isdisjoint(self.waiting):
                del self._brought[number]
                self._cancel(number)


def _twin(inbound: InboundChunk) -> Twin:
    if inbound.twin is None:
        raise ValueError(f"chunk {inbound.chunk.key.hex()} does not come by a twin")
    return inbound.twin
