"""An agent's end of the control channel: as `hostagent.controller.link` and `attachment` are, by the same rules."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hostagent import limits
from hostagent.controller import convert
from hostagent.controller.leaders import DeposedLeaderError, LatestLeader, StreamSigns, Turns, Verdict
from hostagent.core import effects, events
from hostagent.core.directory import SequenceGapError
from kvproto.limits import MS
from kvproto.rpc import control_pb2 as rpc
from kvsim.chance import Chance
from kvsim.engine import Engine
from tests.sim.simulated_cluster.controller import SimulatedController
from tests.sim.simulated_cluster.streams import Said, Stream

CONNECT_NS = 100 * MS
"""An agent tries so long to connect to a host that does not answer."""


class Host(Protocol):
    """Whose end it is."""

    def tell(self, event: events.Event) -> None: ...


class AgentLink:
    """One stream at a time, for as long as the process lives."""

    def __init__(
        self, engine: Engine, controllers: Sequence[SimulatedController], hello: Callable[[], rpc.Hello], chance: Chance
    ) -> None:
        """`hello()`: who this agent is."""
        self._engine, self._chance = engine, chance
        self._controllers = {one.name: one for one in controllers}
        self._hello = hello
        self.host: Host | None = None
        """The agent; None: it is still to come."""
        self.cut_until_ns = 0
        self.lag_ns = 0
        self._life = 0
        self._stream: Stream | None = None
        self.address = ""
        """Of the controller whose turn it is, or that is there."""
        self.epochs: list[tuple[int, int]] = []
        """(epoch of a task that was taken, highest epoch heard of by then)."""
        self.refused: Counter[str] = Counter()
        """What a controller did not take, by what it is."""
        self.operator_state = rpc.OperatorState()
        self.problems: list[str] = []
        """What no controller should have said."""

    @property
    def is_attached(self) -> bool:
        """A controller listens."""
        return self._stream is not None and self._welcomed

    def start(self) -> None:
        """A process begins."""
        self._life += 1
        self._turns = Turns(list(self._controllers))
        self._latest, self._highest = LatestLeader(), 0
        self._welcomed = False
        self.operator_state = rpc.OperatorState()
        self._connect()

    def end(self) -> None:
        """The process dies; its kernel ends the stream."""
        self._life += 1
        if self._stream is not None:
            self._stream.leave()
            self._stream = None

    def _soon(self, delay_ns: int, action: Callable[[], None]) -> None:
        life = self._life

        def run() -> None:
            if self._life == life:
                action()

        self._engine.at(self._engine.now_ns + delay_ns, run)

    # --- the stream --------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self.address = self._turns.next()
        controller = self._controllers[self.address]
        self._welcomed = False
        if not controller.alive:
            self._soon(MS, lambda: self._again(welcomed=False))
        elif not controller.answers or self._engine.now_ns < self.cut_until_ns:
            self._soon(CONNECT_NS, lambda: self._again(welcomed=False))
        else:
            self._soon(MS, lambda: self._connected(controller))

    def _connected(self, controller: SimulatedController) -> None:
        self._stream = stream = Stream(self._engine, self._chance, self, controller)
        self._signs, self._silence_s = StreamSigns(), limits.CONTROLLER_SILENCE_S
        controller.accept(stream)
        hello = self._hello()
        if self.operator_state.revision:
            hello.operator_state.CopyFrom(self.operator_state)
        stream.say(rpc.FromAgent(hello=hello))
        self._look_later(stream)

    def _again(self, *, welcomed: bool) -> None:
        pause_s = self._turns.ended(welcomed=welcomed)
        if self._turns.round_failed:
            self._turns.ask(list(self._controllers))
        self._soon(int(pause_s * 1e9), self._connect)

    def stream_lost(self, stream: Stream, code: str, reason: str) -> None:
        """The controller has ended the stream."""
        if code in ("INVALID_ARGUMENT", "PERMISSION_DENIED", "FAILED_PRECONDITION", "INTERNAL"):
            self.problems.append(f"{self.address}: {code}: {reason}")
        if stream is self._stream:
            if code == "ABORTED":
                self._turns.found = self.address
            self._ended()

    def _leave(self) -> None:
        """End the stream from here."""
        if self._stream is not None:
            self._stream.leave()
            self._ended()

    def _ended(self) -> None:
        self._stream = None
        self._tell_host(events.ControllerLost())
        self._again(welcomed=self._welcomed)

    def heard(self, stream: Stream, said: Said) -> None:
        """A message of the controller."""
        if stream is not self._stream:
            return
        self._welcomed = True
        try:
            self._take(said)
        except DeposedLeaderError:
            self._leave()
        except SequenceGapError as error:
            self.problems.append(f"{self.address}: {error}")
            self._leave()

    def _take(self, said: Said) -> None:
        message = said.message
        self._signs.message_received()
        match message.WhichOneof("message"):
            case "operator_state":
                self.operator_state = message.operator_state
            case "leads":
                self._signs.leads(unsure=message.leads.unsure)
                self._heard(message.leads.epoch)
            case "welcome":
                self._heard(message.welcome.epoch)
                self._silence_s = message.welcome.silence_ms / 1000
            case "task":
                self._heard(message.task.epoch)
                self.epochs.append((message.task.epoch, self._highest))
            case "refusals":
                for one in message.refusals.refused:
                    self.refused[one.what] += one.count
        for event in said.events:
            self._tell_host(event)

    def _heard(self, epoch: int) -> None:
        self._latest.heard(epoch, self._engine.now_ns / 1e9)
        self._highest = max(self._highest, epoch)

    def _tell_host(self, event: events.Event) -> None:
        if self.host is not None:
            self.host.tell(event)

    # --- a controller that stands still, or does not know whether it leads -------------------------------------------

    def _look_later(self, stream: Stream) -> None:
        silence_s = self._silence_s or limits.CONTROLLER_SILENCE_S
        self._soon(int(silence_s / limits.CONTROLLER_LOOKS * 1e9), lambda: self._look(stream))

    def _look(self, stream: Stream) -> None:
        if stream is not self._stream:
            return
        match self._signs.look():
            case Verdict.SILENT if self._silence_s:
                self._leave()
            case Verdict.UNSURE if self._engine.now_ns >= self.cut_until_ns:
                others = (name for name in self._controllers if name != self.address)
                leader = next((name for name in others if self._controllers[name].leader_epoch() > 0), "")
                if leader:
                    self._turns.found = leader
                    self._leave()
        self._look_later(stream)

    # --- what the agent says -----------------------------------------------------------------------------------------

    def carriers(self) -> Mapping[type, Callable[[Any], None]]:
        """What carries out which effect."""
        return {
            **dict.fromkeys(_REPORTS, self._report),
            effects.BeatHeart: lambda effect: self._say(convert.heartbeat_of(effect)),
        }

    def _report(self, effect: convert.ControllerEffect) -> None:
        if self._stream is not None:
            self._say(convert.message_of(effect, columns=True))

    def _say(self, message: rpc.FromAgent) -> None:
        if self._stream is not None:
            self._stream.say(message)


_REPORTS: tuple[type, ...] = (
    effects.Announce,
    effects.ReportUsage,
    effects.ReportLoad,
    effects.ReportClaims,
    effects.LookUp,
    effects.ReportInterests,
    effects.ReportTaskProgress,
    effects.ReportTaskEnd,
    effects.ReportBadCopy,
    effects.ReportPaths,
)
