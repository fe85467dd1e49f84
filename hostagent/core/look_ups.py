"""What a node asks the controller of chunks, where it does not keep the whole directory. Pure.

Such a node follows the chunks that its engines ask for, and what hangs on them (`LookUp` in control.proto). Its replica
is bounded: what is worth least is let go. Of a chunk that nobody has it remembers that; the chunk's announcement is
news, as it follows that, too. Everything here belongs to one stream: the next one begins with nothing.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.node import Node
from kvchunk.ids import ChunkKey

_WAIT_NS = int(limits.LOOK_UP_WAIT_S * 1e9)


@dataclass(slots=True)
class _Look:
    keys: Sequence[ChunkKey]
    then: Callable[[], None] | None
    """None: nobody waits any more."""
    due_ns: int
    root: ChunkKey | None


class LookUps:
    """Owns the questions under way, what nobody has, and what was let go and is still told of."""

    def __init__(self, node: Node, is_in_use: Callable[[ChunkKey], bool]) -> None:
        """`is_in_use(key)`: its entry must not be let go."""
        self._node = node
        self._replica = node.directory
        self._is_in_use = is_in_use
        self.rows_max = min(node.options.replica_bytes // limits.REPLICA_ROW_BYTES, limits.REPLICA_ROWS_MAX)
        """Chunks that the replica may have."""
        self.is_partial = False
        """The controller tells only of what this node follows."""
        self.follows = self.rows_max > 0 and node.options.follows_at_once
        """It is asked to: the whole directory is not wanted, or has become too large. Then it stays so."""
        share = 0.75 + 0.25 * zlib.crc32(node.directory.own_name.encode()) / 0xFFFFFFFF
        self.whole_rows_max = 0 if node.options.follows_at_once else int(self.rows_max * share)
        """Chunks of the whole directory, before this node follows; 0: however many. Nodes do not all begin at once."""
        self._takes_look_ups = self._has_outgrown = False
        self._follows = False
        """A snapshot came on this stream already: what is known or remembered is followed."""
        self._number = 0
        self._looks: dict[int, _Look] = {}
        self.absent: OrderedDict[ChunkKey, None] = OrderedDict()
        """Chunks that nobody has. To be read."""
        self.elsewhere_count = 0
        """Questions about prefixes that another cell is home to."""
        self._released: dict[int, Sequence[ChunkKey]] = {}
        self._alarm = node.alarms.add(self._too_late)

    @property
    def under_way_count(self) -> int:
        """Questions that are not answered."""
        return len(self._looks) + len(self._released)

    def stream_began(self, *, takes_look_ups: bool, follows: bool) -> bool:
        """A controller listens, which knows nothing of what was followed; `follows`: it says that it tells of nothing
        else. True: until now this node wanted to be told of everything."""
        self.stream_ended()
        began = (follows and not self.follows) or self._has_outgrown
        self.follows |= follows
        self._has_outgrown = False
        self._takes_look_ups = takes_look_ups
        self.is_partial = takes_look_ups and self.follows
        self._follows = False
        return began

    def outgrown(self, rows: int) -> bool:
        """The whole directory has so many chunks. True: from the next stream on this node follows what it asks for."""
        if self.follows or not self._takes_look_ups or not 0 < self.whole_rows_max < rows:
            return False
        self.follows = self._has_outgrown = True
        return True

    def stream_ended(self) -> None:
        """Nobody answers: who waits goes on with what is known."""
        self.is_partial = False
        looks = list(self._looks.values())
        self._looks.clear()
        self.absent.clear()
        self._released.clear()
        self._replica.let_go.clear()
        self._arm()
        for look in looks:
            if look.then is not None:
                look.then()

    def look(self, keys: Iterable[ChunkKey], then: Callable[[], None], root: ChunkKey | None = None) -> bool:
        """Ask for those of these chunks of which nothing is known. `root`: the first one of their prefix, where that is
        known. True: `then` is called later, once, when the answer is here or has taken too long; False: go on
        without."""
        room = limits.LOOK_UPS_MAX - len(self._looks)
        if not self.is_partial or room <= 0:
            return False
        wanted = [key for key in keys if key not in self.absent and self._replica.find(key) is None]
        step, due_ns = limits.LOOK_UP_KEYS_MAX, self._node.clock.now_ns + _WAIT_NS
        starts = range(0, len(wanted), step)[:room]
        for at in starts:  # the answer to the last comes last
            self._ask(_Look(wanted[at : at + step], then if at == starts[-1] else None, due_ns, root))
        return bool(starts)

    def told(self, keys: Iterable[ChunkKey], gone: Iterable[ChunkKey]) -> None:
        """Somebody has these, and nobody has those any more: they are followed still."""
        for key in keys:
            self.absent.pop(key, None)
        self.absent.update(dict.fromkeys(key for key in gone if key not in self._replica.let_go))

    def snapshot_ended(self, changed: Iterable[ChunkKey]) -> None:
        """A snapshot is whole; of what was followed it says nothing, and what nobody had may be shown now."""
        released = [key for key in changed if self._replica.find(key) is None] if self._follows else []
        self._follows = True
        released += self.absent
        self.absent.clear()
        self._let_go(released)

    def answered(self, event: events.LookedUp) -> None:
        """The controller's answer; what it found is in the replica by now."""
        let_go = self._replica.let_go
        for key in self._released.pop(event.number, ()):
            if let_go.get(key) == event.number:
                del let_go[key]
        self.elsewhere_count += event.elsewhere
        look = self._looks.pop(event.number, None)
        if look is None:
            return
        if not event.refused:
            found = {chunk.key for chunk in event.found.chunks}
            absent = [key for key in look.keys if key not in found and let_go.get(key, -1) < event.number]
            self.absent.update(dict.fromkeys(absent))
        self._arm()
        if look.then is not None:
            look.then()

    def make_room(self) -> Sequence[ChunkKey]:
        """Let go what is worth least of what is too much; returns those of which nothing is known any more."""
        if not self.is_partial:
            return ()
        released = self._replica.evict(self._replica.chunks_count - self.rows_max, self._is_in_use)
        while len(self.absent) > limits.LOOK_UP_ABSENT_MAX:
            released.append(self.absent.popitem(last=False)[0])
        self._let_go(released)
        return released

    def close(self) -> None:
        """Those who wait are not told any more."""
        self._looks.clear()
        self._alarm.due_ns = None

    def _let_go(self, released: Sequence[ChunkKey]) -> None:
        for at in range(0, len(released), limits.LOOK_UP_KEYS_MAX):
            some = released[at : at + limits.LOOK_UP_KEYS_MAX]
            self._number += 1
            self._released[self._number] = some
            self._replica.let_go.update(dict.fromkeys(some, self._number))
            self._node.emit(effects.LookUp(self._number, (), tuple(some)))

    def _ask(self, look: _Look) -> None:
        self._number += 1
        self._looks[self._number] = look
        self._node.emit(effects.LookUp(self._number, tuple(look.keys), root=look.root))
        self._arm()

    def _too_late(self) -> None:
        now_ns = self._node.clock.now_ns
        late = [look for look in self._looks.values() if look.then is not None and look.due_ns <= now_ns]
        waiting = [look.then for look in late if look.then is not None]
        for look in late:
            look.then = None
        self._arm()
        for then in waiting:
            then()

    def _arm(self) -> None:
        self._alarm.set(min((look.due_ns for look in self._looks.values() if look.then is not None), default=None))
