"""Multicast groups and clone sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.journal import Journal
from p4switch.server.limits import CLASS_OF_SERVICE_MAX, CLONE_SESSION_MAX, INSTANCE_MAX, MULTICAST_GROUP_MAX
from p4switch.server.status import already_exists, invalid, not_found, unimplemented
from p4switch.server.target_pipeline import CloneSession, Pipeline
from p4switch.server.translate import check_port, decode_port
from p4switch.values import Replica

UPDATE = p4r.Update


class Replication:
    """The packet replication engine of a pipeline: entries as the client wrote them, by id."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._groups: dict[int, p4r.MulticastGroupEntry] = {}
        self._sessions: dict[int, p4r.CloneSessionEntry] = {}

    def write(self, kind: int, message: p4r.PacketReplicationEngineEntry, journal: Journal) -> None:
        """INSERT, MODIFY or DELETE a group or session."""
        match message.WhichOneof("type"):
            case "multicast_group_entry":
                self._write_group(kind, message.multicast_group_entry, journal)
            case "clone_session_entry":
                self._write_session(kind, message.clone_session_entry, journal)
            case _:
                raise invalid("a packet replication entry needs a multicast group or a clone session")

    def read(self, query: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.Entity]:
        """One group or session, or (id 0) all of them; both kinds when the query names none."""
        kind = query.WhichOneof("type")
        if kind in (None, "multicast_group_entry"):
            group = query.multicast_group_entry.multicast_group_id
            if group and group not in self._groups:
                raise not_found(f"no multicast group {group}")
            for entry in [self._groups[group]] if group else self._groups.values():
                yield p4r.Entity(
                    packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)
                )
        if kind in (None, "clone_session_entry"):
            session = query.clone_session_entry.session_id
            if session and session not in self._sessions:
                raise not_found(f"no clone session {session}")
            for clone in [self._sessions[session]] if session else self._sessions.values():
                yield p4r.Entity(
                    packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(clone_session_entry=clone)
                )

    def _write_group(self, kind: int, message: p4r.MulticastGroupEntry, journal: Journal) -> None:
        group = message.multicast_group_id
        if not 0 < group <= MULTICAST_GROUP_MAX:
            raise invalid(f"multicast group {group} is not within 1 to {MULTICAST_GROUP_MAX}")
        old = self._groups.get(group)
        _check_presence(kind, old is not None, f"multicast group {group}")
        if kind == UPDATE.DELETE:
            self._put_group(group, None, journal)
            return
        _replicas(message.replicas, f"multicast group {group}")
        kept = p4r.MulticastGroupEntry()
        kept.CopyFrom(message)
        self._put_group(group, kept, journal)

    def _write_session(self, kind: int, message: p4r.CloneSessionEntry, journal: Journal) -> None:
        session = message.session_id
        if not 0 < session <= CLONE_SESSION_MAX:
            raise invalid(f"clone session {session} is not within 1 to {CLONE_SESSION_MAX}")
        what = f"clone session {session}"
        _check_presence(kind, session in self._sessions, what)
        if kind == UPDATE.DELETE:
            self._put_session(session, None, journal)
            return
        _replicas(message.replicas, what)
        if message.class_of_service > CLASS_OF_SERVICE_MAX:
            raise invalid(f"{what}: class of service {message.class_of_service} is above {CLASS_OF_SERVICE_MAX}")
        if message.packet_length_bytes < 0:
            raise invalid(f"{what}: negative packet length")
        kept = p4r.CloneSessionEntry()
        kept.CopyFrom(message)
        self._put_session(session, kept, journal)

    def _put_group(self, group: int, entry: p4r.MulticastGroupEntry | None, journal: Journal) -> None:
        old = self._groups.pop(group, None)
        replicas = None if entry is None else _replicas(entry.replicas, f"multicast group {group}")
        self._pipeline.set_multicast_group(group, replicas)
        if entry is not None:
            self._groups[group] = entry
        journal.record(lambda: self._put_group(group, old, Journal()))

    def _put_session(self, session: int, entry: p4r.CloneSessionEntry | None, journal: Journal) -> None:
        old = self._sessions.pop(session, None)
        clone = None
        if entry is not None:
            replicas = tuple(_replicas(entry.replicas, f"clone session {session}"))
            clone = CloneSession(replicas, entry.class_of_service, entry.packet_length_bytes)
            self._sessions[session] = entry
        self._pipeline.set_clone_session(session, clone)
        journal.record(lambda: self._put_session(session, old, Journal()))


def _check_presence(kind: int, present: bool, what: str) -> None:
    if kind == UPDATE.INSERT and present:
        raise already_exists(f"{what} exists already")
    if kind != UPDATE.INSERT and not present:
        raise not_found(f"no {what}")


def _replicas(messages: Iterable[p4r.Replica], what: str) -> list[Replica]:
    replicas = []
    for message in messages:
        if message.backup_replicas:
            raise unimplemented(f"{what}: backup replicas are not supported")
        if message.WhichOneof("port_kind") == "port":
            port = decode_port(message.port, f"{what}: port")
        else:
            port = check_port(message.egress_port, f"{what}: egress_port")
        if message.instance > INSTANCE_MAX:
            raise invalid(f"{what}: instance {message.instance} is above {INSTANCE_MAX}")
        replicas.append(Replica(port, message.instance))
    if len(set(replicas)) != len(replicas):
        raise invalid(f"{what}: a port and instance are given twice")
    return replicas
