"""What an operator says of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hostagent import limits
from kvpolicy.tiers.form_costs import FormChoice
from kvpolicy.tiers.merging import WAIT_MAX_S
from kvproto.ids import Address, Member
from kvproto.session.parameters import ReaderParameters


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """Of one agent's core."""

    pool_bytes: int
    segment_bytes: int
    """Until the controller says otherwise."""
    pool_address: Address | None = None
    """Where the switch takes FILL, until the controller says otherwise."""
    member: Member | None = None
    """This node's index at its switch, until the controller says otherwise; None: unknown, nothing is cast to it."""
    interest_ttl_ns: int = ReaderParameters(member=None).interest_ttl_ns
    link_rate_bytes_per_s: int | None = None
    """Of this node's link, all rails together, if the configuration says so."""
    disk_write_bytes_per_s: int = 0
    """Demotions are no faster; 0: no limit."""
    merge_wait_max_s: float = WAIT_MAX_S
    """How much later an engine may get chunks that are being computed, to spare the requests behind it."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    """Of the tenants that are named; others have weight 1."""
    tenant_namespaces: Mapping[str, str] = field(default_factory=dict)
    """By tenant: where its chunks go, and what it is told of."""
    replica_bytes: int = 0
    """Of other nodes' chunks, of which only those that this node asks for are known then; 0: all are."""
    follows_at_once: bool = True
    """False: all are known as long as they fit into `replica_bytes`."""
    promote: bool = True
    """Bring the most valuable chunks on disk back into free DRAM."""
    has_cold: bool = False
    """There is a cold store."""
    cold_wait_max_s: float = limits.COLD_LOOKUP_WAIT_S
    """A request waits at most this long to learn what the cold store has."""
    cold_write_bytes_per_s: int = 0
    """Writes to the cold store are no faster; 0: no limit."""
    disk_form: FormChoice = FormChoice.AUTO
    cold_form: FormChoice = FormChoice.AUTO
    lone_gets: bool = False
    """Engines may get small chunks of other nodes without the core (`hostagent.core.lone_chunks`)."""
    wire_form: FormChoice = FormChoice.RAW
    """What crosses the network in fewer bytes."""
    rails: int = 1
    """NICs that bring chunks to this node, and casts where holders keep interest."""
    relay_share: float = 1.0
    """Of what comes by relays, this part is passed on at most."""
    rack: str = ""
    """That this node stands in; empty: nobody said so."""

    chooses_way: bool = True
    """See `ReaderParameters.chooses`."""

    @property
    def reader(self) -> ReaderParameters:
        """How this node fetches, until the controller says otherwise."""
        return ReaderParameters(
            self.member,
            self.segment_bytes,
            interest_ttl_ns=self.interest_ttl_ns,
            link_rate_bytes_per_s=self.link_rate_bytes_per_s,
            rails=self.rails,
            chooses=self.chooses_way,
            cast_rails=self.rails,
        )
