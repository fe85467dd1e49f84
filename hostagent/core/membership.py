"""A node's place in the fabric: what the controller says that it is, and what the node says of itself.

Owns the parameters of its readers, its switch's epoch, and the heartbeat.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.claims import Claims
from hostagent.core.disk_index import DiskState
from hostagent.core.engines import Engines
from hostagent.core.fetches import Fetches
from hostagent.core.load_reports import LoadReports
from hostagent.core.node import Node
from hostagent.core.reports import Reports
from hostagent.core.serving import Serving
from hostagent.core.sources import Sources
from hostagent.core.tasks import SwitchPlace, Tasks
from hostagent.core.twins import is_twin
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.gate import Gate
from kvproto.commands import SendControl
from kvproto.session.parameters import ReaderParameters
from kvproto.wire.control import Control, Op


class Membership:
    """One node's."""

    def __init__(
        self,
        node: Node,
        sources: Sources,
        gate: Gate,
        claims: Claims,
        fetches: Fetches,
        serving: Serving,
        tasks: Tasks,
        reports: Reports,
        load_reports: LoadReports,
        engines: Engines,
    ) -> None:
        self._clock = node.clock
        self._emit = node.emit
        self.parameters = node.options.reader
        self._pool_address = node.options.pool_address
        self._pool = node.pool
        self._disk = node.disk
        self._directory = node.directory
        self._sources = sources
        self._gate = gate
        self._claims = claims
        self._fetches = fetches
        self._serving = serving
        self._tasks = tasks
        self._reports = reports
        self._load_reports = load_reports
        self._engines = engines
        self._receive_buffer_bytes = 0
        self._switch_epoch: int | None = None
        self._here: ChunkKey | None = None
        """What this node says to the switch, so that the controller learns where it is."""
        self._heartbeat_ns = int(limits.HEARTBEAT_S_DEFAULT * 1e9)
        self._heartbeat = node.alarms.add(self._beat)

    # ------------------------------------------------------------------ what is said to this node

    def started(self, event: events.Started) -> None:
        """The transport is there: the window follows from its receive buffer."""
        self._receive_buffer_bytes = event.receive_buffer_bytes
        self._serving.use_casts(made_by_nic=event.casts_by_nic)
        self._configure(self.parameters)

    def welcomed(self, event: events.Welcomed) -> None:
        """A controller listens: the node works as it says, and tells it what is here."""
        self._pool_address = event.pool_address or self._pool_address
        if self._pool_address is not None:
            self._sources.use_pool_address(self._pool_address)
        self._tasks.use_switch(SwitchPlace(self._pool_address, event.segment_bytes))
        self._serving.use_segment_bytes(event.segment_bytes)
        self._configure(
            replace(
                self.parameters,
                member=event.member,
                segment_bytes=event.segment_bytes,
                interest_ttl_ns=event.interest_ttl_ns or ReaderParameters(member=None).interest_ttl_ns,
            )
        )
        self._directory.restart(event.controller)
        self._engines.integrity = self._reports.integrity = event.integrity
        self._reports.snapshot(event.controller)
        self._load_reports.attached(wanted=event.takes_loads)
        self._claims.welcomed(event.node)
        self._heartbeat_ns = int(max(limits.HEARTBEAT_S_MIN, event.heartbeat_s or limits.HEARTBEAT_S_DEFAULT) * 1e9)
        self._beat()

    def member_given(self, event: events.MemberGiven) -> None:
        """The node's index at its switch is another."""
        self._configure(replace(self.parameters, member=event.member))

    def switch_state_given(self, event: events.SwitchStateGiven) -> None:
        """Another epoch: the switch's tables are empty."""
        if event.epoch != self._switch_epoch:
            self._switch_epoch = event.epoch
            self._fetches.switch_restarted()
        self._here = event.here
        self._say_here()

    def controller_lost(self, _: events.ControllerLost) -> None:
        """Go on with the directory as it is; fetches here go on teaching the pools which chunks to keep."""
        self._reports.disconnected()
        self._claims.controller_lost()
        self._tasks.abandon()
        self._heartbeat.cancel()

    def _configure(self, parameters: ReaderParameters) -> None:
        """Use `parameters`, with a window that follows from the receive buffer once its size is known."""
        fitting = self._receive_buffer_bytes // (2 * parameters.segment_bytes)
        window = max(limits.RECEIVE_WINDOW_SEGMENTS_MIN, fitting)
        self.parameters = replace(parameters, receive_window_segments=window)
        self._fetches.configure(self.parameters)

    # ------------------------------------------------------------------ what this node says

    def _say_here(self) -> None:
        """From the data interface: the switch tells the controller at which port that is, if it does not know yet."""
        if self._here is not None and self._pool_address is not None:
            self._emit(SendControl(Control(Op.HERE, self._here, 1), self._pool_address))

    def _beat(self) -> None:
        self._heartbeat.set(self._clock.now_ns + self._heartbeat_ns)
        disk = self._disk.pool.usage() if self._disk is not None and self._disk.state is not DiskState.OFF else None
        self._emit(
            effects.BeatHeart(
                self._pool.usage(),
                self._directory.sequence,
                self._tasks.running_count,
                self._next_victims(),
                disk.size_bytes - disk.free_bytes if disk is not None else 0,
                [
                    effects.Arriving(one.chunk.key, one.entry.size_bytes, self._fetches.arrivals.left_bytes(one))
                    for one in islice(self._fetches.arrivals.under_way.values(), limits.ARRIVING_TOLD)
                ],
                self._gate_news(),
            )
        )
        self._say_here()

    def _next_victims(self) -> list[ChunkKey]:
        """What others may want to save; twins are made again."""
        chunks = (self._pool.find(key) for key in self._pool.next_victims(limits.NEXT_VICTIMS_TOLD))
        return [chunk.key for chunk in chunks if chunk is not None and not is_twin(chunk)]

    def _gate_news(self) -> effects.GateNews:
        counts = self._gate.counts
        decisions = {choice.value: count for choice, count in counts.decisions.items()}
        return effects.GateNews(decisions, counts.saved_s, counts.last)
