"""Which form a chunk of this node is stored in or offered to others in, and what the gate reckons for one that was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hostagent.core.node import Node
from hostagent.pool.chunks import Chunk, ChunkPool
from kvchunk.kv_layout import terms_of
from kvcodec.forms import Form, StoredForm
from kvpolicy.tiers.form_costs import FormChoice, FormCosts
from kvpolicy.tiers.wire_forms import form_to_make, takes_twin
from kvpolicy.value import Tier
from kvproto.twins import twin_code


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
