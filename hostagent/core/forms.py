"""Which form a chunk of this node is stored in or offered to others in, and what the gate reckons for one that was.
Pure.

A form in which chunks cross the network pays for a reader if the bytes that it saves take the link longer than decoding
takes the processor:

    readers * (size - stored) / rate > size / decoding rate

`readers`: who share the link, this one included. Decoding is counted as if nothing else went on meanwhile, although it
runs while the next chunks come: a form that pays by this rule makes no reader slower.

A holder encodes a chunk if a reader of it would save more than encoding takes, times how likely one comes. A chunk that
somebody has asked for is likely to be asked for again. One that was just put is as likely to be as those before it were
(`Demand`), which is nothing on a node that nobody reads from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from hostagent.core.node import Node
from hostagent.pool.chunks import Chunk, ChunkPool
from kvchunk.ids import ChunkKey
from kvchunk.kv_layout import terms_of
from kvcodec.forms import Form, StoredForm
from kvpolicy.tiers.form_costs import GAIN_MIN, FormChoice, FormCosts
from kvpolicy.value import Tier
from kvpolicy.value.costs import SourceCost
from kvproto.twins import twin_code

CHUNK_BYTES_MIN: Final = 64 << 10
"""Smaller chunks cross as they are: a second key costs more than they have."""
_REMEMBERED_MAX: Final = 1024
_SMOOTHING: Final = 1 / 32
_SMALLER_SMOOTHING: Final = 1 / 8
_SMALLER_MIN: Final = 0.5
_TRIED_OF: Final = 64


class Demand:
    """How many of the chunks that are put on a node other nodes ask for."""

    def __init__(self) -> None:
        self.share = 0.0
        """Of the last chunks, about 32."""
        self._unasked: OrderedDict[ChunkKey, None] = OrderedDict()

    def put(self, key: ChunkKey) -> None:
        """An engine of this node put a chunk. One that nobody asked for until many others were put counts as such."""
        self._unasked[key] = None
        self._unasked.move_to_end(key)
        if len(self._unasked) > _REMEMBERED_MAX:
            self._unasked.popitem(last=False)
            self.share -= _SMOOTHING * self.share

    def chunk_requested(self, key: ChunkKey) -> None:
        """Another node asked for a chunk."""
        if key in self._unasked:
            del self._unasked[key]
            self.share += _SMOOTHING * (1 - self.share)


class Smaller:
    """Whether chunks become smaller at all: where most of the last ones did not, few more are tried."""

    def __init__(self) -> None:
        self._share = 1.0
        """Of the last chunks that were encoded, about 8."""
        self._left_out = 0

    def worth_trying(self) -> bool:
        """Whether the next chunk is encoded."""
        if self._share > _SMALLER_MIN:
            return True
        self._left_out = (self._left_out + 1) % _TRIED_OF
        return not self._left_out

    def tried(self, is_smaller: bool) -> None:
        """A chunk was encoded."""
        self._share += _SMALLER_SMOOTHING * (is_smaller - self._share)


def takes_twin(
    choice: FormChoice, costs: FormCosts, twin: StoredForm, size_bytes: int, source: SourceCost, sharing: int = 0
) -> bool:
    """Whether a reader asks for the twin of a chunk of `size_bytes`. `sharing`: others who read from its holder."""
    if choice is not FormChoice.AUTO:
        return choice is FormChoice.LOSSLESS and twin.form is Form.PLANES
    decode_s = costs.decode_s(twin.form, size_bytes)
    if decode_s is None:
        return False
    byte_s = (1 + sharing) / source.rate_bytes_per_s
    return twin.size_bytes * byte_s + decode_s < (1 - GAIN_MIN) * size_bytes * byte_s


def form_to_make(
    choice: FormChoice,
    costs: FormCosts,
    allowed: Sequence[Form],
    size_bytes: int,
    source: SourceCost,
    likely: float,
) -> Form:
    """The form in which a holder should have a twin of a chunk; RAW: none. `likely`: how many are expected to read it
    from here; `source`: what they take for that."""
    if size_bytes < CHUNK_BYTES_MIN:
        return Form.RAW
    form = costs.best(choice, allowed, size_bytes, source, 0)
    if choice is not FormChoice.AUTO or form is Form.RAW:
        return form
    stored, encode_s = costs.expected(form, size_bytes), costs.encode_s(form, size_bytes)
    decode_s = costs.decode_s(form, size_bytes)
    if encode_s is None or decode_s is None:
        return Form.RAW
    saved_s = (size_bytes - stored.size_bytes) / source.rate_bytes_per_s - decode_s
    return form if likely * saved_s > encode_s else Form.RAW


class Forms:
    """Weighs what coding takes here against what fewer bytes save. It knows no lane and no twin: a chunk, a place for
    it, and what both cost."""

    def __init__(self, node: Node) -> None:
        self._source_costs = node.costs
        self._options = node.options
        self.costs = FormCosts()
        self.has_wire = node.options.wire_form is not FormChoice.RAW
        """Whether anything may cross the network in fewer bytes."""

    def for_disk(self, chunk: Chunk) -> Form:
        """Only what comes back as it was: other nodes are told of copies on disk by their digests."""
        options, source = self._options, self._source_costs.cost(Tier.LOCAL_DISK)
        return self.costs.best(
            options.disk_form, (Form.PLANES,), chunk.size_bytes, source, options.disk_write_bytes_per_s
        )

    def for_cold(self, chunk: Chunk) -> Form:
        """With loss only where the namespace says that all who share it take it."""
        options, source = self._options, self._source_costs.cost(Tier.COLD)
        allowed = _allowed(chunk.namespace, chunk.size_bytes)
        return self.costs.best(options.cold_form, allowed, chunk.size_bytes, source, options.cold_write_bytes_per_s)

    @property
    def reads_encoded(self) -> bool:
        """Whether any chunk could come in fewer bytes; without a codec that was tried out, none does by itself."""
        return self.has_wire and not (self.decides_wire and self.costs.decode_s(Form.PLANES, 1) is None)

    @property
    def decides_wire(self) -> bool:
        """Whether this node decides by what it has measured; else the operator says what it is to be."""
        return self._options.wire_form is FormChoice.AUTO

    def for_wire(self, chunk: Chunk, likely: float) -> Form:
        """What other nodes should be offered a chunk in, besides as it is; `likely`: how many will read it."""
        source = self._source_costs.cost(Tier.REMOTE_DRAM)
        allowed = _allowed(chunk.namespace, chunk.size_bytes)
        return form_to_make(self._options.wire_form, self.costs, allowed, chunk.size_bytes, source, likely)

    def reads_as(self, stored: StoredForm, namespace: str, size_bytes: int, source: Tier, sharing: int) -> bool:
        """Whether this node reads a chunk of `size_bytes` in a form; `sharing`: others who read from its holder."""
        if stored.form not in _allowed(namespace, size_bytes):
            return False
        cost = self._source_costs.cost(source)
        return takes_twin(self._options.wire_form, self.costs, stored, size_bytes, cost, sharing)

    def cold_bytes(self, chunk: Chunk) -> int:
        """What the cold store is reckoned with for a chunk that would be stored now."""
        source = self._source_costs.cost(Tier.COLD)
        stored = self.costs.expected(self.for_cold(chunk), chunk.size_bytes)
        return self.costs.reckoned_bytes(stored, chunk.size_bytes, source)

    def reckoned(self, size_bytes: int, stored: Mapping[Tier, StoredForm]) -> Mapping[Tier, int]:
        """Bytes by source that the gate reckons with for a chunk of `size_bytes`, where not its own."""
        return {
            tier: self.costs.reckoned_bytes(one, size_bytes, self._source_costs.cost(tier))
            for tier, one in stored.items()
            if one.form is not Form.RAW
        }


def is_twin(chunk: Chunk) -> bool:
    """Whether a chunk is its parent in another form."""
    return twin_code(chunk.key, chunk.parent) is not None


def next_victims_to_save(pool: ChunkPool, count: int) -> list[Chunk]:
    """Of the chunks that this pool evicts next, those that others may want to save: twins are made again."""
    chunks = (pool.find(key) for key in pool.next_victims(count))
    return [chunk for chunk in chunks if chunk is not None and not is_twin(chunk)]


def _allowed(namespace: str, size_bytes: int) -> Sequence[Form]:
    """Forms that a chunk may have, those that lose nothing first."""
    terms = terms_of(namespace, size_bytes)
    return (Form.PLANES, Form.LOSSY) if terms is not None and terms.may_lose else (Form.PLANES,)
