"""A node's place in the fabric: what the controller says that it is, and which namespaces it says that it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.claims import Claims
from hostagent.core.events import EngineId
from hostagent.core.fetches import Fetches
from hostagent.core.node import Node
from hostagent.core.reports import Heartbeat, LoadReports, Reports
from hostagent.core.serving import Keeping, Serving
from kvclient.messages import NAMESPACE_BYTES_MAX
from kvproto.fanout import Fanout
from kvproto.ids import Member
from kvproto.session.parameters import ReaderParameters


class Membership:
    """Owns the parameters of this node's readers, the epoch of its switch, and `FabricState`. It passes on what the
    controller says; what the controller hears it leaves to the parts of `reports`."""

    def __init__(
        self,
        node: Node,
        fetches: Fetches,
        serving_by_rail: Sequence[Serving],
        claims: Claims,
        reports: Reports,
        load_reports: LoadReports,
        heartbeat: Heartbeat,
    ) -> None:
        self.parameters = node.options.reader
        self._directory = node.directory
        self._fabric = node.fabric
        self._fetches = fetches
        self._serving_by_rail = serving_by_rail
        self._claims = claims
        self._reports = reports
        self._load_reports = load_reports
        self._heartbeat = heartbeat
        self._receive_buffer_bytes = 0
        self._switch_epoch: int | None = None
        self._fanout, self._unasked_weight = Fanout.SWITCH, 0.0

    def started(self, event: events.Started) -> None:
        """The transport is there: the window follows from its receive buffer."""
        self._receive_buffer_bytes = event.receive_buffer_bytes
        self._serving_by_rail[0].use_casts(made_by_nic=event.casts_by_nic)
        self._configure(self.parameters)

    def welcomed(self, event: events.Welcomed) -> None:
        """A controller listens: the node works as it says, and tells it what is here."""
        fabric = self._fabric
        fabric.pool_address = event.pool_address or fabric.pool_address
        fabric.segment_bytes = event.segment_bytes
        for serving in self._serving_by_rail:
            serving.use_segment_bytes(event.segment_bytes)
        self._configure(
            replace(
                self.parameters,
                segment_bytes=event.segment_bytes,
                interest_ttl_ns=event.interest_ttl_ns or ReaderParameters(member=None).interest_ttl_ns,
            )
        )
        self._take_part(event.member, event.fanout, event.unasked_weight)
        begins = self._fetches.look_ups.stream_began(takes_look_ups=event.takes_look_ups, follows=event.follows)
        self._directory.restart(event.controller, keep=begins)
        fabric.integrity = event.integrity
        fabric.connected = True
        self._reports.snapshot(event.controller)
        self._load_reports.begin(wanted=event.takes_loads)
        self._claims.welcomed(event.node)
        self._heartbeat.begin(event.heartbeat_s)

    def member_given(self, event: events.MemberGiven) -> None:
        """The node's index at its switch is another, or the fabric fans out in another way."""
        if event.fanout is None:
            self._take_part(event.member, self._fanout, self._unasked_weight)
        else:
            self._take_part(event.member, event.fanout, event.unasked_weight)

    def _take_part(self, member: Member | None, fanout: Fanout, unasked_weight: float) -> None:
        """What is under way ends as it began: chunks that come by relays go on doing so."""
        self._fanout, self._unasked_weight = fanout, unasked_weight
        self._fetches.arrivals.relays.is_way = fanout is Fanout.RELAY
        self._configure(replace(self.parameters, member=member, by_keepers=fanout.keeps))
        keeping = Keeping(fanout, member, self.parameters.interest_ttl_ns, unasked_weight)
        for serving in self._serving_by_rail:
            serving.keep_interest(keeping)

    def switch_state_given(self, event: events.SwitchStateGiven) -> None:
        """Another epoch: the switch's tables are empty."""
        if event.epoch != self._switch_epoch:
            self._switch_epoch = event.epoch
            self._fetches.arrivals.switch_restarted()
        self._heartbeat.say_here(event.here)

    def controller_lost(self) -> None:
        """Go on with the directory as it is; fetches here go on teaching the pools which chunks to keep."""
        self._fabric.connected = False
        self._heartbeat.close()
        self._fetches.look_ups.stream_ended()

    def _configure(self, parameters: ReaderParameters) -> None:
        """Use `parameters`, with a window that follows from the receive buffer once its size is known."""
        fitting = self._receive_buffer_bytes // (2 * parameters.segment_bytes)
        window = max(limits.RECEIVE_WINDOW_SEGMENTS_MIN, fitting)
        self.parameters = replace(parameters, receive_window_segments=window)
        self._fetches.configure(self.parameters)


class Interests:
    """Which namespaces this node's engines use, and what theirs are called: as the configuration names tenants.

    A tenant with a namespace puts its chunks there and is told of no others; what its engines call a namespace is a
    part of it. An engine of any other tenant uses whatever this node may have. While no engine is connected, those of
    the last ones count. Knows no engine but by its number.
    """

    def __init__(self, node: Node) -> None:
        self._emit = node.emit
        self._namespaces = node.options.tenant_namespaces
        self._engines: dict[EngineId, str] = {}
        """Tenants of those that are connected."""
        self.current: tuple[str, ...] | None = None
        """Patterns (`kvproto.grants`); None: all that this node may have."""

    def engine_connected(self, engine: EngineId, tenant: str) -> None:
        """An engine is connected."""
        self._engines[engine] = tenant
        self._look()

    def engine_disconnected(self, engine: EngineId) -> None:
        """It is not any more."""
        if self._engines.pop(engine, None) is not None:
            self._look()

    def namespace(self, tenant: str, said: str) -> str:
        """The namespace of what a tenant's engine puts under the name `said`. No name leads into another tenant's."""
        own = self._namespaces.get(tenant)
        if own is None and said.partition("/")[0] in self._namespaces.values():
            own = tenant
        return said if own is None else _clipped(f"{own}/{said}")

    def _look(self) -> None:
        if not self._engines:
            return
        used = {self._namespaces.get(tenant) for tenant in self._engines.values()}
        patterns = None if None in used else tuple(sorted(f"{one}/*" for one in used))
        if patterns != self.current:
            self.current = patterns
            self._emit(effects.ReportInterests(patterns))


def _clipped(namespace: str) -> str:
    return namespace.encode()[:NAMESPACE_BYTES_MAX].decode(errors="ignore")
