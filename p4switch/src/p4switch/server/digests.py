"""Digest lists: buffering, duplicate suppression, acknowledgement. Pure: time comes in as nanoseconds.

Source: P4Runtime specification, "DigestEntry".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server import p4data
from p4switch.server.journal import Journal
from p4switch.server.limits import DIGEST_CACHE_MAX, DIGEST_LIST_MAX
from p4switch.server.schema import DigestSpec, Schema
from p4switch.server.status import already_exists, invalid, not_found

UPDATE = p4r.Update

Leaves: TypeAlias = tuple[int, ...]
"""The scalars of one digest, in declaration order."""


@dataclass(slots=True)
class _Sent:
    """A list that waits for its acknowledgement."""

    list_id: int
    at_ns: int
    members: tuple[Leaves, ...]


@dataclass(slots=True)
class _Digest:
    spec: DigestSpec
    config: p4r.DigestEntry.Config
    buffer: dict[Leaves, None] = field(default_factory=dict)
    first_ns: int = 0
    unacknowledged: dict[Leaves, int] = field(default_factory=dict)
    """Members of lists sent and not acknowledged, with the list's id."""
    sent: deque[_Sent] = field(default_factory=deque)

    @property
    def list_max(self) -> int:
        size = self.config.max_list_size
        return min(size, DIGEST_LIST_MAX) if size > 0 else DIGEST_LIST_MAX

    @property
    def deadline_ns(self) -> int | None:
        return self.first_ns + max(self.config.max_timeout_ns, 0) if self.buffer else None


class DigestBook:
    """Digest configuration and lists of a pipeline."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._enabled: dict[int, _Digest] = {}
        self._next_list_id = 1

    def write(self, kind: int, message: p4r.DigestEntry, journal: Journal) -> None:
        """INSERT enables a digest, MODIFY changes its configuration, DELETE disables it."""
        spec = self._schema.digests.get(message.digest_id)
        if spec is None:
            raise invalid(f"no digest {message.digest_id:#010x}")
        old = self._enabled.get(spec.id)
        if kind == UPDATE.INSERT and old is not None:
            raise already_exists(f"digest {spec.name} is enabled already")
        if kind != UPDATE.INSERT and old is None:
            raise not_found(f"digest {spec.name} is not enabled")
        if kind == UPDATE.DELETE:
            self._put(spec.id, None, journal)
            return
        if min(message.config.max_timeout_ns, message.config.max_list_size, message.config.ack_timeout_ns) < 0:
            raise invalid(f"digest {spec.name}: negative configuration")
        config = p4r.DigestEntry.Config()
        config.CopyFrom(message.config)
        if old is None:
            self._put(spec.id, _Digest(spec, config), journal)
        else:
            before, old.config = old.config, config
            journal.record(lambda: setattr(old, "config", before))

    def read(self, query: p4r.DigestEntry) -> Iterator[p4r.Entity]:
        """One enabled digest or (id 0) all."""
        if query.digest_id and query.digest_id not in self._schema.digests:
            raise invalid(f"no digest {query.digest_id:#010x}")
        for digest in self._enabled.values():
            if query.digest_id in (0, digest.spec.id):
                yield p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=digest.spec.id, config=digest.config))

    def add(self, index: int, leaves: Leaves, now_ns: int) -> p4r.DigestList | None:
        """A packet made a digest; returns the list that is full (or due) with it."""
        spec = self._schema.digest_by_index.get(index)
        digest = None if spec is None else self._enabled.get(spec.id)
        if digest is None:
            return None
        self._expire(digest, now_ns)
        if leaves in digest.buffer or leaves in digest.unacknowledged:
            return None
        if not digest.buffer:
            digest.first_ns = now_ns
        digest.buffer[leaves] = None
        if len(digest.buffer) >= digest.list_max or digest.config.max_timeout_ns <= 0:
            return self._flush(digest, now_ns)
        return None

    def due(self, now_ns: int) -> list[p4r.DigestList]:
        """Lists whose first member has waited long enough."""
        waiting = [d for d in self._enabled.values() if d.deadline_ns is not None and d.deadline_ns <= now_ns]
        return [self._flush(digest, now_ns) for digest in waiting]

    def next_deadline_ns(self) -> int | None:
        """When `due` has something to give, if nothing else comes."""
        return min((d.deadline_ns for d in self._enabled.values() if d.deadline_ns is not None), default=None)

    def acknowledge(self, ack: p4r.DigestListAck) -> None:
        """The client has acted on a list. Unknown lists are ignored; an unknown digest is refused."""
        if ack.digest_id not in self._schema.digests:
            raise invalid(f"no digest {ack.digest_id:#010x}")
        digest = self._enabled.get(ack.digest_id)
        if digest is None:
            return
        for sent in digest.sent:
            if sent.list_id == ack.list_id:
                self._forget(digest, sent)
                digest.sent.remove(sent)
                return

    def _put(self, digest_id: int, digest: _Digest | None, journal: Journal) -> None:
        old = self._enabled.pop(digest_id, None)
        if digest is not None:
            self._enabled[digest_id] = digest
        journal.record(lambda: self._put(digest_id, old, Journal()))

    def _flush(self, digest: _Digest, now_ns: int) -> p4r.DigestList:
        members = tuple(digest.buffer)
        digest.buffer.clear()
        list_id = self._next_list_id
        self._next_list_id += 1
        if digest.config.ack_timeout_ns > 0 and len(digest.unacknowledged) + len(members) <= DIGEST_CACHE_MAX:
            digest.sent.append(_Sent(list_id, now_ns, members))
            digest.unacknowledged |= dict.fromkeys(members, list_id)
        message = p4r.DigestList(digest_id=digest.spec.id, list_id=list_id, timestamp=now_ns)
        message.data.extend(p4data.encode(digest.spec.shape, iter(leaves)) for leaves in members)
        return message

    def _expire(self, digest: _Digest, now_ns: int) -> None:
        while digest.sent and now_ns - digest.sent[0].at_ns >= digest.config.ack_timeout_ns:
            self._forget(digest, digest.sent.popleft())

    @staticmethod
    def _forget(digest: _Digest, sent: _Sent) -> None:
        for leaves in sent.members:
            if digest.unacknowledged.get(leaves) == sent.list_id:
                del digest.unacknowledged[leaves]
