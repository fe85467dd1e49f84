"""A simulated controller's process: the shell of `controlplane.core`, as `controlplane.daemon` is, and its candidacy.

It may be killed, stand still (SIGSTOP: nothing happens in it, and what comes meanwhile is done when it goes on), and be
cut off from the store of the lease.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from controlplane.core.core import Core
from controlplane.core.effects import (
    Answer,
    CloseSession,
    Effect,
    Inform,
    JobProgress,
    RequestRefused,
    SendTo,
    Warn,
)
from controlplane.core.election import Candidate, Hold, LeaseTerms, Look, Renew, Request, Take
from controlplane.core.events import (
    Deposed,
    Elected,
    Event,
    HelloReceived,
    MessageReceived,
    Requested,
    StreamEnded,
    TimerFired,
)
from controlplane.core.ids import Mark
from controlplane.core.options import CoreOptions
from hostagent.controller.convert import events_of
from hostagent.controller.refusals import Refusals
from kvproto.limits import MS
from kvproto.rpc import control_pb2 as rpc
from kvproto.wire.data import Fabric
from kvsim.chance import Chance
from kvsim.engine import Engine
from tests.sim.simulated_cluster.leases import SimulatedLeaseStore
from tests.sim.simulated_cluster.streams import Said, Stream

STORE_NS = 2 * MS
"""To the store or back, on average."""
_ANSWERS_PER_LEASE = 3
"""As `controlplane.election.lease_election` has it."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a controller's core was told of its leadership."""

    at_ns: int
    controller: str
    epoch: int
    """0: it does not lead."""
    until_ns: int = 0


class SimulatedController:
    """From its first start to the end of the simulation; `name` is its address, too."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        store: SimulatedLeaseStore,
        options: CoreOptions,
        fabric: Fabric,
        chance: Chance,
        roles: list[Role],
    ) -> None:
        """`options`: but for the incarnation; `roles`: of all controllers, in order."""
        self.name = name
        self._engine, self._store, self._chance = engine, store, chance
        self._options, self._fabric = options, fabric
        self._roles = roles
        self.others: list[SimulatedController] = []
        self.alive = False
        self.store_cut_until_ns = 0
        self._life = 0
        self._held: list[Callable[[], None]] | None = None
        """What is done when the process goes on; None: it runs."""
        self._refusals = Refusals()
        """What agents would not take of what was said to them."""

    @property
    def refused(self) -> dict[str, int]:
        """What agents would not take of what was said to them, by what it is."""
        return dict(self._refusals.counts)

    @property
    def answers(self) -> bool:
        """Whether anything happens in it."""
        return self.alive and self._held is None

    # --- its life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A process begins, and knows nothing."""
        self._life += 1
        self.alive, self._held = True, None
        now_ns = self._engine.now_ns
        self.core = Core(replace(self._options, incarnation=now_ns + self._life))
        self._candidate = Candidate(
            f"{self.name}-{self._life}", LeaseTerms(self._store.lease_ns, self._store.ends_by_itself)
        )
        self._told: Event | None = None
        self._asked = 0
        self._campaign_ns: int | None = None
        self._streams: dict[int, Stream] = {}
        self._session = 0
        self._timer_ns: int | None = None
        self._said = Said(rpc.ToAgent(), ())
        self._tell_standing()
        self._campaign()
        self.handle(TimerFired())

    def kill(self) -> None:
        """The process dies; its kernel ends its streams."""
        self.alive = False
        self._roles.append(Role(self._engine.now_ns, self.name, 0))
        for stream in self._streams.values():
            stream.close("UNAVAILABLE", "the connection was reset")

    def quit(self) -> None:
        """The process ends as an operator wishes: it resigns first."""
        if self.answers and self._reaches_store and self._candidate.hold is not None:
            self._store.release(self._candidate.hold, self._engine.now_ns)
            self._tell_of_lease()
        self.kill()

    def stand_still(self) -> None:
        """SIGSTOP."""
        self._held = []

    def go_on(self) -> None:
        """SIGCONT. What came meanwhile is taken in its order."""
        held, self._held = self._held or [], None
        for action in held:
            action()

    def _soon(self, at_ns: int, action: Callable[[], None]) -> None:
        """Something happens in this process, if it lives until then."""
        life = self._life

        def run() -> None:
            if not self.alive or self._life != life:
                return
            if self._held is None:
                action()
            else:
                self._held.append(action)

        self._engine.at(at_ns, run)

    # --- the election ------------------------------------------------------------------------------------------------

    @property
    def _reaches_store(self) -> bool:
        return self._engine.now_ns >= self.store_cut_until_ns

    def _campaign(self) -> None:
        now_ns = self._engine.now_ns
        request = self._candidate.next_request(now_ns)
        if request is not None:
            self._asked += 1
            number = self._asked
            if self._reaches_store:
                self._engine.at(now_ns + self._store_ns(), partial(self._reach_store, request, number, self._life))
            self._soon(now_ns + self._store.lease_ns // _ANSWERS_PER_LEASE, lambda: self._store_silent(number))
        elif (due_ns := self._candidate.due_ns()) is not None and due_ns != self._campaign_ns:
            self._campaign_ns = due_ns
            self._soon(due_ns, lambda: self._campaign_due(due_ns))

    def _campaign_due(self, due_ns: int) -> None:
        if due_ns == self._campaign_ns:
            self._campaign_ns = None
            self._campaign()

    def _store_ns(self) -> int:
        return int(self._chance.exponential(STORE_NS))

    def _reach_store(self, request: Request, number: int, life: int) -> None:
        """Carried out whatever becomes of the process meanwhile; its answer may never come."""
        if not self._reaches_store:
            return
        store, now_ns, name = self._store, self._engine.now_ns, f"{self.name}-{life}"
        match request:
            case Look():
                hold = store.look(now_ns)
            case Take(epoch_above, instead_of):
                hold = store.take(name, epoch_above, instead_of, now_ns)
            case Renew(mine):
                hold = store.renew(mine, now_ns)
        if life == self._life:
            self._soon(now_ns + self._store_ns(), lambda: self._store_answered(request, number, hold))
        if isinstance(request, Take) and hold is not None:
            self._tell_of_lease()

    def _store_answered(self, request: Request, number: int, hold: Hold | None) -> None:
        if number != self._asked or not self._reaches_store or self._candidate.due_ns() is not None:
            return
        candidate = self._candidate
        heard = {Look: candidate.looked, Take: candidate.taken, Renew: candidate.renewed}[type(request)]
        heard(hold, self._engine.now_ns)
        self._tell_standing()
        self._campaign()

    def _store_silent(self, number: int) -> None:
        if number == self._asked and self._candidate.due_ns() is None:
            self._candidate.request_failed(self._engine.now_ns)
            self._tell_standing()
            self._campaign()

    def _tell_of_lease(self) -> None:
        """etcd tells all who watch."""
        if self._store.ends_by_itself:
            for one in (self, *self.others):
                one.lease_changed()

    def lease_changed(self) -> None:
        """The store tells it, if it reaches it."""
        if self.alive and self._reaches_store:
            self._soon(self._engine.now_ns + self._store_ns(), self._told_of_change)

    def _told_of_change(self) -> None:
        self._candidate.lease_changed(self._engine.now_ns)
        self._campaign()

    def _tell_standing(self) -> None:
        news = self._candidate.news(self._store.place, self._engine.now_ns)
        if news is None or news == self._told:
            return
        self._told = news
        now_ns = self._engine.now_ns
        match news:
            case Elected(epoch=epoch, until_ns=until_ns):
                self._roles.append(Role(now_ns, self.name, epoch, until_ns or 0))
            case _:
                self._roles.append(Role(now_ns, self.name, 0))
        self.handle(news)
        if isinstance(news, Deposed):
            for stream in list(self._streams.values()):
                self._close(stream, "UNAVAILABLE", self.core.leadership.standby_words)

    # --- agents ------------------------------------------------------------------------------------------------------

    def accept(self, stream: Stream) -> None:
        """An agent opens a stream: a moment later it is there, or refused."""
        self._soon(self._engine.now_ns, lambda: self._accepted(stream))

    def _accepted(self, stream: Stream) -> None:
        if words := self.core.leadership.standby_words:
            stream.close("UNAVAILABLE", words)
            return
        self._session += 1
        stream.session = self._session
        self._streams[stream.session] = stream

    def heard(self, stream: Stream, message: rpc.FromAgent) -> None:
        """A message comes on a stream."""
        self._soon(self._engine.now_ns, lambda: self._take(stream, message))

    def _take(self, stream: Stream, message: rpc.FromAgent) -> None:
        if stream.is_closed or self._streams.get(stream.session) is not stream:
            return
        if message.HasField("hello"):
            self.handle(HelloReceived(stream.session, message.hello, message.hello.node))
        else:
            self.handle(MessageReceived(stream.session, message))

    def stream_lost(self, stream: Stream) -> None:
        """A stream has ended at its other end."""
        self._soon(self._engine.now_ns, lambda: self._end(stream))

    def _end(self, stream: Stream) -> None:
        stream.is_closed = True
        if self._streams.get(stream.session) is stream:
            del self._streams[stream.session]
            self.handle(StreamEnded(stream.session))

    def _close(self, stream: Stream, code: str, reason: str) -> None:
        """The stream's own coroutine ends it in its turn."""
        stream.close(code, reason)
        self._soon(self._engine.now_ns, lambda: self._end(stream))

    def leader_epoch(self) -> int:
        """What it answers to agents that look for the leader; 0: it does not lead, or does not answer."""
        leadership = self.core.leadership
        until_ns = leadership.until_ns
        leads = not leadership.standby_words and (until_ns is None or self._engine.now_ns < until_ns)
        return leadership.epoch if self.answers and leads else 0

    # --- operators ---------------------------------------------------------------------------------------------------

    def operate(
        self, verb: str, request: rpc.PinRequest | rpc.EvictRequest | rpc.WarmRequest | rpc.DrainRequest
    ) -> None:
        """An operator asks for something, and goes on."""
        mark = Mark("operator", self._engine.now_ns // MS)
        self.handle(Requested(verb, request, mark))  # type: ignore[arg-type]

    # --- the core's loop ---------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """As the daemon does."""
        core, now_ns = self.core, self._engine.now_ns
        late_ns = now_ns - core.next_timeout_ns()
        if core.started_ns is not None and late_ns > core.options.graces.heartbeat_ns:
            core.stood_still(late_ns)
        for effect in core.handle(event, now_ns):
            self._carry_out(effect)
        due_ns = max(core.next_timeout_ns(), now_ns)
        if self._timer_ns is None or self._timer_ns > due_ns:
            self._timer_ns = due_ns
            self._soon(due_ns, lambda: self._timer_fired(due_ns))

    def _timer_fired(self, due_ns: int) -> None:
        if due_ns == self._timer_ns:
            self._timer_ns = None
            self.handle(TimerFired())

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendTo(session=session, message=message):
                if (stream := self._streams.get(session)) is not None:
                    if message is not self._said.message:
                        self._said = Said(message, events_of(message, self._fabric, self._refusals))
                    stream.tell(self._said)
            case CloseSession(session=session, code=code, reason=reason):
                if (stream := self._streams.get(session)) is not None:
                    self._close(stream, code, reason)
            case Inform() | Warn() | JobProgress() | Answer() | RequestRefused():
                pass
            case _:
                raise AssertionError(f"without a switch nothing leads to {effect}")
