"""Which form a chunk of this node is stored in, and what the gate reckons for one that was."""

from __future__ import annotations

from collections.abc import Mapping

from hostagent.core.options import CoreOptions
from hostagent.pool.chunks import Chunk
from kvcodec.forms import Form, StoredForm
from kvpolicy.tiers.form_costs import FormCosts
from kvpolicy.value import SourceCosts, Tier
from kvproto.kv_layout import terms_of


class Forms:
    """One node's."""

    def __init__(self, costs: SourceCosts, options: CoreOptions) -> None:
        """`costs`: of sources, as the gate learns them."""
        self._source_costs = costs
        self._options = options
        self.costs = FormCosts()

    def for_disk(self, chunk: Chunk) -> Form:
        """Only what comes back as it was: other nodes are told of copies on disk by their digests."""
        options, source = self._options, self._source_costs.cost(Tier.LOCAL_DISK)
        return self.costs.best(
            options.disk_form, (Form.PLANES,), chunk.size_bytes, source, options.disk_write_bytes_per_s
        )

    def for_cold(self, chunk: Chunk) -> Form:
        """With loss only where the label says that all who share the namespace take it."""
        options, source = self._options, self._source_costs.cost(Tier.COLD)
        terms = terms_of(chunk.namespace, chunk.size_bytes)
        may_lose = terms is not None and terms.may_lose
        allowed = (Form.PLANES, Form.LOSSY) if may_lose else (Form.PLANES,)
        return self.costs.best(options.cold_form, allowed, chunk.size_bytes, source, options.cold_write_bytes_per_s)

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
