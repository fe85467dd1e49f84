"""An inference engine at a simulated agent: asks where prompts are, fetches them, computes and puts what is missing.

It compares every byte that it gets, when it gets it and when it has read it, and notes what was not answered in time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hostagent.core import effects, events
from hostagent.core.events import EngineId
from kvchunk.ids import ChunkKey
from kvclient.messages import Kind, Status
from kvpolicy.tiers.prefill import Prefill
from kvproto.limits import MS
from kvsim.chance import Chance
from kvsim.engine import Engine
from kvsim.node import Node
from kvsim.storage import right_contents

ENGINE = EngineId(1)
COMPUTE_NS = 10 * MS
"""For a chunk."""
READ_NS = 2 * MS
PLACES_S = 0.3
"""Where chunks are is answered within this time, whatever the controller does."""
LATE_S = 0.1
"""What a stalled process takes to see that a deadline is over."""


@dataclass(frozen=True, slots=True)
class Document:
    """The chunks of a prompt that many ask for."""

    keys: tuple[ChunkKey, ...]
    namespace: str
    """As the fabric calls it."""


@dataclass(slots=True)
class _Asked:
    document: Document
    due_ns: int
    """It is answered by then."""
    what: str


class InferenceEngine:
    """One engine, connected to one agent for as long as its process lives."""

    def __init__(
        self, engine: Engine, name: str, tenant: str, own: str, segments: int, segment_bytes: int, chance: Chance
    ) -> None:
        """`own`: namespace of the tenant; empty: it names them whole."""
        self._engine, self._chance = engine, chance
        self._name, self._tenant, self._own = name, tenant, own
        self._segments, self._segment_bytes = segments, segment_bytes
        self.node: Node | None = None
        """Its agent; None: it is still to come."""
        self._asked: dict[int, _Asked] = {}
        self._request = 0
        self._puts: dict[int, ChunkKey] = {}
        """Chunks that are being put, by request."""
        self.answers: dict[Status, int] = {}
        """Fetches by how they ended."""
        self.compared_count = 0
        """Chunks whose bytes were compared."""
        self.problems: list[str] = []

    def connect(self) -> None:
        """The agent's process has begun."""
        self._tell(events.EngineConnected(ENGINE, self._tenant))

    def lost(self) -> None:
        """The agent's process died: nothing that it was asked is answered."""
        self._note_late()
        self._asked.clear()
        self._puts.clear()

    def want(self, document: Document, deadline_s: float, recompute_s: float | None) -> None:
        """A prompt comes."""
        if self.node is None or self.node.dead:
            return
        number = self._ask(document, PLACES_S, "places")
        self._tell(events.KeysRequested(ENGINE, number, Kind.CONTAINS, document.keys))
        number = self._ask(document, deadline_s, "a fetch")
        prefill = None if recompute_s is None else Prefill(recompute_s)
        self._tell(events.ChunksRequested(ENGINE, number, document.keys, deadline_s, prefill))

    def put(self, key: ChunkKey, parent: ChunkKey | None, position: int, namespace: str) -> None:
        """A chunk is computed."""
        self._request += 1
        self._puts[self._request] = key
        said = namespace.removeprefix(f"{self._own}/") if self._own else namespace
        size_bytes = self._segments * self._segment_bytes
        self._tell(events.ReserveRequested(ENGINE, self._request, key, parent, size_bytes, position, said))

    def end(self) -> None:
        """The simulation ends: nothing is still to be answered."""
        self._note_late()
        self.problems += [f"{self._name}: {one.what} was never answered" for one in self._asked.values()]

    def _ask(self, document: Document, within_s: float, what: str) -> int:
        self._request += 1
        due_ns = self._engine.now_ns + int((within_s + LATE_S) * 1e9)
        self._asked[self._request] = _Asked(document, due_ns, what)
        return self._request

    def _note_late(self) -> None:
        now_ns = self._engine.now_ns
        late = [one for one in self._asked.values() if one.due_ns < now_ns]
        self.problems += [f"{self._name}: {one.what} is not answered, due at {one.due_ns / 1e9:.3f} s" for one in late]

    def _answered(self, number: int) -> _Asked | None:
        asked = self._asked.pop(number, None)
        if asked is not None and self._engine.now_ns > asked.due_ns:
            late_s = (self._engine.now_ns - asked.due_ns) / 1e9 + LATE_S
            self.problems.append(f"{self._name}: {asked.what} was answered {late_s:.3f} s late")
        return asked

    def _tell(self, event: events.Event) -> None:
        if self.node is not None:
            self.node.tell(event)

    # --- answers -----------------------------------------------------------------------------------------------------

    def carriers(self) -> Mapping[type, Callable[[Any], None]]:
        """What carries out which effect."""
        return {
            effects.KeysAnswered: self._keys_answered,
            effects.FetchAnswered: self._fetch_answered,
            effects.ReserveAnswered: self._reserved,
            effects.CommitAnswered: self._committed,
        }

    def _after(self, delay_ns: int, action: Callable[[], None]) -> None:
        if self.node is not None:
            self.node.after(delay_ns, action)

    def _keys_answered(self, answer: effects.KeysAnswered) -> None:
        if answer.kind is Kind.CONTAINS:
            self._answered(answer.request)

    def _fetch_answered(self, answer: effects.FetchAnswered) -> None:
        asked = self._answered(answer.request)
        if asked is None:
            return
        self.answers[answer.status] = self.answers.get(answer.status, 0) + 1
        keys = asked.document.keys
        if (len(answer.chunks) == len(keys)) != (answer.status is Status.OK):
            self.problems.append(f"{self._name}: {answer.status.name} with {len(answer.chunks)} of {len(keys)} chunks")
        offsets = [chunk.offset for chunk in answer.chunks]
        self._compare(keys, offsets)
        if answer.chunks:
            self._after(self._chance.below(READ_NS), lambda: self._read_out(keys, offsets, answer.lease))
        if len(offsets) < len(keys):
            # Not from within the core's own turn.
            self._after(0, lambda: self._compute(asked.document, len(offsets)))

    def _compare(self, keys: Sequence[ChunkKey], offsets: Sequence[int]) -> None:
        node = self.node
        if node is None:
            return
        for key, offset in zip(keys, offsets, strict=False):
            self.compared_count += 1
            if not (node.storage.view_at(offset, self._segments) == right_contents(key, self._segments)).all():
                self.problems.append(f"{self._name}: wrong bytes in {key.hex()}")

    def _read_out(self, keys: Sequence[ChunkKey], offsets: Sequence[int], lease: events.LeaseId) -> None:
        self._compare(keys, offsets)
        self._tell(events.LeaseReleased(ENGINE, lease))

    # --- computing ---------------------------------------------------------------------------------------------------

    def _compute(self, document: Document, first: int) -> None:
        keys = document.keys[first:]
        etas_s = tuple((number + 1) * COMPUTE_NS / 1e9 for number in range(len(keys)))
        self._tell(events.ClaimMade(ENGINE, keys, self._segments * self._segment_bytes, etas_s))
        if not self._chance.below(8):  # preempted
            self._after(COMPUTE_NS // 2, lambda: self._tell(events.ClaimWithdrawn(ENGINE, keys)))
            return
        for number, key in enumerate(keys):
            position = first + number
            parent = document.keys[position - 1] if position else None
            self._after(
                (number + 1) * COMPUTE_NS,
                lambda key=key, parent=parent, position=position: self.put(  # type: ignore[misc]
                    key, parent, position, document.namespace
                ),
            )

    def _reserved(self, answer: effects.ReserveAnswered) -> None:
        key = self._puts.get(answer.request)
        if key is None or self.node is None:
            return
        if answer.status is not Status.OK:
            del self._puts[answer.request]
            return
        self.node.storage.view_at(answer.offset, self._segments)[:] = right_contents(key, self._segments)
        self._after(0, lambda: self._tell(events.CommitRequested(ENGINE, answer.request, answer.lease)))

    def _committed(self, answer: effects.CommitAnswered) -> None:
        key = self._puts.pop(answer.request, None)
        if key is not None and answer.status is not Status.OK:
            self.problems.append(f"{self._name}: {answer.status.name} for chunk {key.hex()} that it wrote")
