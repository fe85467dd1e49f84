"""The agent's end of the control channel: turns the controller's messages into events, and sends the agent's.

Owns the link, and the parts of the fabric that only the shell needs.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from hostagent import limits
from hostagent.config import AgentConfig
from hostagent.configured import configured_fabric
from hostagent.controller import convert
from hostagent.controller.convert import RemoteProtocolError, VersionSkewError
from hostagent.controller.link import ControllerLink
from hostagent.controller.refusals import Refusals
from hostagent.core.events import ControllerEvent, ControllerLost, MemberGiven, Welcomed
from hostagent.transport.base import TransportError
from hostagent.transport.read_tokens import TokenBook
from kvdaemon.tls import Certificates
from kvproto import __version__
from kvproto.integrity import Integrity
from kvproto.rpc import control_pb2 as pb
from kvproto.rpc.versions import skew
from kvproto.wire.data import Fabric

log = logging.getLogger(__name__)


class Attachment:
    """`start` when the agent can answer, `leave` to say goodbye."""

    def __init__(
        self,
        config: AgentConfig,
        use_fabric: Callable[[Fabric], None],
        hello: Callable[[], pb.FromAgent],
        handle: Callable[[ControllerEvent], None],
        probe: Callable[[pb.Task], None],
        certificates: Certificates | None,
        tokens: TokenBook,
    ) -> None:
        """`config`: names the controllers, and the fabric until one of them does; `use_fabric` raises TransportError
        where this node cannot use it; `hello()`: who this node is; `handle(event)`: takes the controller's events;
        `probe(task)`: does a step of an examination; `certificates` None: no TLS;
        `tokens`: learns who may read."""
        self._tokens = tokens
        self.fabric = configured_fabric(config)
        self._use_fabric = use_fabric
        self._handle = handle
        self._probe = probe
        self._demanded = config.data.integrity
        self._integrity = self._demanded or Integrity.BLAKE3
        self.refused: Counter[str] = Counter()
        """What a controller did not take of what it was told, by what it is (`Refusal.what`)."""
        self.refusals = Refusals()
        self.takes_columns = False
        """The controller takes announcements in columns."""
        self.hello = hello
        self._link = ControllerLink(config.controllers, self, certificates) if config.controllers else None

    @property
    def has_controller(self) -> bool:
        """Whether one is configured."""
        return self._link is not None

    @property
    def refusal(self) -> str:
        """Why a controller will not have this node: it is put out, say, or too old. Empty: none has said so."""
        return self._link.refusal if self._link is not None else ""

    def start(self) -> None:
        """Connect to the controller, if one is configured, and stay connected."""
        if self._link is not None:
            self._link.start()

    def attach_again(self, reason: str) -> None:
        """Say Hello anew: who this node is has changed."""
        if self._link is not None:
            self._link.attach_again(reason)

    async def leave(self) -> None:
        """Say goodbye and end the stream."""
        if self._link is not None:
            await self._link.close(pb.FromAgent(leaving=pb.Leaving(reason="stopping")))

    def send(self, message: pb.FromAgent) -> None:
        """Send a message to the controller; without one it is dropped."""
        if self._link is not None:
            self._link.send(message)

    # ------------------------------------------------------------------ the link

    def message_received(self, message: pb.ToAgent) -> None:
        """A message of the controller, of which single records may be refused. Raises RemoteProtocolError,
        VersionSkewError or SequenceGapError, which end the stream."""
        if message.HasField("welcome"):
            if reason := skew("the controller", message.welcome.version, message.welcome.protocol, __version__):
                raise VersionSkewError(reason)
            self._integrity = convert.integrity_of(message.welcome, self._demanded)
            member = convert.member_of(message.welcome)
            self._change_fabric(convert.fabric_of(message.welcome.fabric, self.fabric, member))
            self.takes_columns = message.welcome.takes_columns
            self._tokens.controller_connected(time.monotonic(), gives_tokens=message.welcome.read_tokens)
        if message.HasField("membership"):
            self._change_fabric(convert.fabric_with(message.membership, self.fabric))
        if message.HasField("read_access"):
            try:
                self._tokens.access_given(message.read_access, time.monotonic())
            except ValueError as error:
                self.refusals.add("read_key", f"its key for read tokens is not an Ed25519 public key: {error}")
        if message.HasField("refusals"):
            self._refused(message.refusals)
        if message.HasField("task") and message.task.HasField("probe"):
            self._probe(message.task)
            return
        made = convert.events_of(message, self.fabric, self.refusals, self._integrity)
        for what, reason in self.refusals.news(time.monotonic()):
            log.warning("a %s that the controller sent is refused, the rest is taken: %s", what, reason)
        for event in made:
            self._handle(event)
            if isinstance(event, Welcomed):
                log.info("attached to the controller as node %d, member %s", event.node, event.member)
            elif isinstance(event, MemberGiven):
                log.info("this node is member %s of its switch", event.member)

    def _change_fabric(self, fabric: Fabric) -> None:
        try:
            self._use_fabric(fabric)
        except TransportError as error:
            raise RemoteProtocolError(f"this node cannot use its fabric: {error}") from error
        self.fabric = fabric

    def _refused(self, refusals: pb.Refusals) -> None:
        for one in refusals.refused:
            if one.what not in self.refused:
                named = f", the first of chunk {one.keys[0].hex()}" if one.keys and one.keys[0] else ""
                log.warning("the controller refuses %d of kind %s%s: %r", one.count, one.what, named, one.reason)
            if one.what in self.refused or len(self.refused) < limits.REFUSALS_TOLD_MAX:
                self.refused[one.what] += one.count

    def stream_ended(self) -> None:
        """The stream ended."""
        self._tokens.controller_lost(time.monotonic())
        self._handle(ControllerLost())
