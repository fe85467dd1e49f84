"""Who is primary: P4Runtime's client arbitration as a pure state machine.

Streams come and go and send MasterArbitrationUpdate messages; out come orders for the shell: notify this stream, end
that one, wait until writes under way are done. One Arbiter serves one device; roles are independent of each other.

Source: P4Runtime specification, "Client Arbitration and Controller Replication".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType, TypeAlias

from p4switch.server.status import Code, StatusError

StreamId = NewType("StreamId", int)

ElectionId: TypeAlias = int
"""A 128-bit unsigned number."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a MasterArbitrationUpdate says; `election_id` None when unset, `has_config` when role.config is set."""

    device_id: int
    role: str
    election_id: ElectionId | None
    has_config: bool = False


@dataclass(frozen=True, slots=True)
class Notify:
    """Send the stream a MasterArbitrationUpdate."""

    stream: StreamId
    role: str
    election_id: ElectionId | None
    code: Code


@dataclass(frozen=True, slots=True)
class AwaitWrites:
    """Go on only when every Write that has begun is done."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """End the stream with a status."""

    stream: StreamId
    code: Code
    message: str


Order: TypeAlias = Notify | AwaitWrites | Terminate


@dataclass(slots=True)
class _Role:
    """Live streams of a role with their election ids, and the highest id ever seen from a primary candidate."""

    streams: dict[StreamId, ElectionId | None] = field(default_factory=dict)
    highest: ElectionId | None = None
    primary: StreamId | None = None


class Arbiter:
    """Arbitration among the streams of one device.

    `streams_max` bounds live streams of one role, `roles_max` the roles: each is remembered for ever, with the highest
    election id that it has seen.
    """

    def __init__(self, device_id: int, streams_max: int, roles_max: int) -> None:
        self._roles_max = roles_max
        self._device_id = device_id
        self._streams_max = streams_max
        self._roles: dict[str, _Role] = {}
        self._role_of: dict[StreamId, str] = {}

    def update(self, stream: StreamId, request: Request) -> list[Order]:
        """A stream has sent MasterArbitrationUpdate."""
        refusal = self._refusal(stream, request)
        if refusal is not None:
            code, message = refusal
            return [*self.disconnect(stream), Terminate(stream, code, message)]
        role = self._roles.setdefault(request.role, _Role())
        self._role_of[stream] = request.role
        role.streams[stream] = request.election_id
        previous = role.primary
        election_id = request.election_id
        if election_id is not None and (role.highest is None or election_id >= role.highest):
            role.primary = stream
            role.highest = election_id
            others = [s for s in role.streams if s != stream]
            return [
                *(self._notice(s) for s in others),
                AwaitWrites(),
                self._notice(stream),
            ]
        if previous == stream:
            role.primary = None
            return [self._notice(s) for s in role.streams]
        return [self._notice(stream)]

    def disconnect(self, stream: StreamId) -> list[Order]:
        """A stream has ended, for whatever reason."""
        name = self._role_of.pop(stream, None)
        if name is None:
            return []
        role = self._roles[name]
        del role.streams[stream]
        if role.primary != stream:
            return []
        role.primary = None
        return [self._notice(s) for s in role.streams]

    def check_write(self, role: str, election_id: ElectionId | None) -> None:
        """Raise StatusError unless a request that carries these ids comes from the primary of the role."""
        if role and role not in self._roles:
            raise StatusError(Code.NOT_FOUND, f"no role {role!r}: no client has opened a stream for it")
        state = self._roles.get(role)
        if state is None or state.primary is None:
            raise StatusError(
                Code.PERMISSION_DENIED, f"{_role_name(role)} has no primary client: send MasterArbitrationUpdate first"
            )
        if election_id is None or state.streams[state.primary] != election_id:
            raise StatusError(
                Code.PERMISSION_DENIED,
                f"not the primary client of {_role_name(role)}: its election id is {state.highest}",
            )

    def is_primary(self, stream: StreamId) -> bool:
        """Whether the stream is the primary of its role."""
        name = self._role_of.get(stream)
        return name is not None and self._roles[name].primary == stream

    def primaries(self) -> tuple[StreamId, ...]:
        """The primary streams of all roles: those who receive packets, digests and idle notifications."""
        return tuple(r.primary for r in self._roles.values() if r.primary is not None)

    def roles(self) -> dict[str, bool]:
        """The roles that clients have taken, and whether each has a primary client now."""
        return {name: role.primary is not None for name, role in self._roles.items()}

    def _refusal(self, stream: StreamId, request: Request) -> tuple[Code, str] | None:
        known_role = self._role_of.get(stream)
        if request.device_id != self._device_id:
            code = Code.NOT_FOUND if known_role is None else Code.FAILED_PRECONDITION
            return code, f"no device {request.device_id}: this switch is device {self._device_id}"
        if known_role is not None and known_role != request.role:
            return (
                Code.FAILED_PRECONDITION,
                f"this stream belongs to {_role_name(known_role)}; open another one for {_role_name(request.role)}",
            )
        if request.has_config:
            return Code.INVALID_ARGUMENT, "role.config is not supported: every role has access to the full pipeline"
        role = self._roles.get(request.role)
        if role is None and len(self._roles) >= self._roles_max:
            return Code.RESOURCE_EXHAUSTED, f"this switch knows {self._roles_max} roles already"
        others = {} if role is None else {s: e for s, e in role.streams.items() if s != stream}
        if request.election_id is not None and request.election_id in others.values():
            return (
                Code.INVALID_ARGUMENT,
                f"election id {request.election_id} is already used by another client of {_role_name(request.role)}",
            )
        if known_role is None and len(others) >= self._streams_max:
            return Code.RESOURCE_EXHAUSTED, f"{_role_name(request.role)} has {self._streams_max} streams already"
        return None

    def _notice(self, stream: StreamId) -> Notify:
        name = self._role_of[stream]
        role = self._roles[name]
        if role.primary is None:
            code = Code.NOT_FOUND
        else:
            code = Code.OK if role.primary == stream else Code.ALREADY_EXISTS
        return Notify(stream, name, role.highest, code)


def _role_name(role: str) -> str:
    return f"role {role!r}" if role else "the default role"
