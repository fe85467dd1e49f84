"""What agents say and the controller does not take: each record by itself. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from controlplane.core.cluster import Cluster
from controlplane.core.ids import NodeIndex
from controlplane.core.nodes import Node
from kvproto.records import RecordError
from kvproto.rpc import control_pb2 as rpc

KEYS_TOLD_MAX: Final = 64
"""Of one kind, with one message."""
TEXT_MAX: Final = 200

R = TypeVar("R")
V = TypeVar("V")


class Refusals:
    """Owns what is refused of the message that is being handled, and of which nodes the log has told. Whoever refuses
    a record adds it; the rest of its message counts."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._refused: dict[str, rpc.Refusal] = {}
        self._logged: set[tuple[NodeIndex, str]] = set()

    def add(self, what: str, key: bytes, reason: str) -> None:
        """A record is refused; `what` it is, in a word."""
        refused = self._refused.setdefault(what, rpc.Refusal(what=what, reason=reason[:TEXT_MAX]))
        refused.count += 1
        if len(refused.keys) < KEYS_TOLD_MAX:
            refused.keys.append(key)

    def taken(self, what: str, records: Iterable[R], take: Callable[[R], V]) -> list[V]:
        """What `take` makes of records; those that it raises RecordError for are refused."""
        made: list[V] = []
        for record in records:
            try:
                made.append(take(record))
            except RecordError as error:
                self.add(what, record if isinstance(record, bytes) else getattr(record, "key", b""), str(error))
        return made

    def tell(self, node: Node) -> None:
        """The message is handled: count, log and tell its sender what was refused of it."""
        if not self._refused:
            return
        refused, self._refused = self._refused, {}
        for what, one in refused.items():
            self._cluster.decisions[f"record_refused_{what}"] += one.count
            if (node.index, what) not in self._logged:
                self._logged.add((node.index, what))
                self._cluster.warn(f"node {node.facts.name}: a {what} is refused, the rest is taken: {one.reason}")
        if node.attached:
            self._cluster.send(node.session, rpc.ToAgent(refusals=rpc.Refusals(refused=refused.values())))
