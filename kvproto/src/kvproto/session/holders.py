"""Whom a chunk may come from, whom it came from, and when a holder is given up."""

from kvchunk.sources import ChunkSource
from kvproto.events import HolderRef
from kvproto.ids import NodeId
from kvproto.session.parameters import ReaderParameters
from kvproto.session.timing import HOLDER_FAILURES_MAX


class Provenance:
    """Holders of one chunk and what they brought. Owned by that chunk and written here only."""

    __slots__ = (
        "_by_cast",
        "_by_read",
        "_by_switch",
        "_chosen",
        "_excluded",
        "_failures",
        "_holders",
        "_loaded",
        "_order",
        "_put",
        "_strict",
    )

    def __init__(self, holders: tuple[HolderRef, ...], order: int) -> None:
        self._holders = holders
        self._order = order
        self._failures: dict[NodeId, int] = {}
        self._excluded: set[NodeId] = set()
        self._chosen: NodeId | None = None
        self._strict: NodeId | None = None
        self._loaded = False
        self._put = False
        self.wipe()

    def wipe(self) -> None:
        """Nothing of the chunk is here."""
        self._by_read = self._by_cast = self._by_switch = 0

    # --- whom to ask -------------------------------------------------------------------------------------------------

    def offer(self, holders: tuple[HolderRef, ...]) -> None:
        """The directory names these holders now."""
        self._holders = holders

    def names(self, node: NodeId) -> bool:
        """Whether the directory names this node."""
        return any(holder.node == node for holder in self._holders)

    def lose(self, node: NodeId) -> None:
        """This node is gone."""
        self._holders = tuple(holder for holder in self._holders if holder.node != node)

    def exclude(self, node: NodeId) -> None:
        """It does not have the chunk, or not the right bytes."""
        self._excluded.add(node)

    def usable(self) -> list[HolderRef]:
        """Holders that are not excluded."""
        return [holder for holder in self._holders if holder.node not in self._excluded]

    @property
    def any_readable(self) -> bool:
        """Whether some usable holder answers reliable reads."""
        return any(holder.readable and holder.node not in self._excluded for holder in self._holders)

    @property
    def strict(self) -> NodeId | None:
        """The one holder that the whole chunk is read from because a copy was bad; None: any may bring segments."""
        return self._strict

    def choose(self, parameters: ReaderParameters) -> HolderRef | None:
        """The holder to ask: usable, with the fewest failures, least loaded; None when none is left.

        Readers begin at different places among equals, and chunks do too, so that copies share the work. A chunk stays
        with its holder as long as that works, whatever copies appear meanwhile.
        """
        for holder in self.usable():
            if self._strict is not None:
                if holder.node == self._strict:
                    return holder
            elif holder.node == self._chosen and not self._failures.get(holder.node):
                return holder
        return self._choose_afresh(parameters)

    def choose_strictly(self, parameters: ReaderParameters) -> HolderRef | None:
        """Choose one holder for the whole chunk; None when none is left."""
        holder = self._choose_afresh(parameters)
        self._strict = holder.node if holder is not None else None
        return holder

    def relax(self) -> None:
        """Any holder may bring segments again."""
        self._strict = None

    def once_more(self) -> bool:
        """Let holders that answer no reads bring the chunk again, as often as reads may break. False: often enough."""
        self.relax()
        for holder in self.usable():
            self.fail(holder.node)
            if self._failures[holder.node] >= HOLDER_FAILURES_MAX:
                self.exclude(holder.node)
        return bool(self.usable())

    def _choose_afresh(self, parameters: ReaderParameters) -> HolderRef | None:
        usable = self.usable()
        if not usable:
            return None
        if len(usable) > 1:
            start = ((parameters.member or 0) + self._order) % len(usable)
            turned = usable[start:] + usable[:start]
            usable = sorted(
                turned, key=lambda holder: (self._failures.get(holder.node, 0), not holder.castable, holder.load)
            )
        self._chosen = usable[0].node
        return usable[0]

    def fail(self, node: NodeId) -> None:
        """It did not deliver: others go first from now on."""
        self._failures[node] = self._failures.get(node, 0) + 1

    def suspect(self, parameters: ReaderParameters) -> None:
        """The holder that is asked may have forgotten this reader: if there are others, they go first from now on."""
        holder = self.choose(parameters)
        if len(self.usable()) > 1 and holder is not None:
            self._failures.setdefault(holder.node, 1)

    # --- what came ---------------------------------------------------------------------------------------------------

    def note_cast(self, count: int, from_switch: int) -> None:
        """`count` wanted segments came by casts, at most `from_switch` of them out of the switch, as they say."""
        from_switch = min(from_switch, count)
        self._by_switch += from_switch
        self._by_cast += count - from_switch

    def note_read(self, count: int) -> None:
        """`count` wanted segments came by a reliable read."""
        self._by_read += count

    def note_loaded(self) -> None:
        """All of it came from this node's disk."""
        self._loaded = True

    def note_put(self) -> None:
        """An engine of this node put it."""
        self._put = True

    def to_blame(self) -> list[NodeId]:
        """Who brought wrong bytes: the holder that everything new was read from while nothing else could be written.

        Before that, casts may have been written, too, and a cast's source address proves nothing.
        """
        return [] if self._strict is None else [self._strict]

    def source(self) -> ChunkSource:
        """Where most of it came from."""
        if self._put:
            return ChunkSource.LOCAL
        if self._loaded:
            return ChunkSource.DISK
        best = max(self._by_read, self._by_cast, self._by_switch)
        if best == self._by_read:
            return ChunkSource.HOLDER
        return ChunkSource.CAST if best == self._by_cast else ChunkSource.SWITCH


class Health:
    """Which holders have failed lately: connections that broke, with nothing from them since."""

    __slots__ = ("_failed_ns", "_failures")

    def __init__(self) -> None:
        self._failures: dict[NodeId, int] = {}
        self._failed_ns: dict[NodeId, int] = {}
        """When the last failure that counts was seen."""

    def failed(self, node: NodeId, started_ns: int, now_ns: int) -> bool:
        """A read from it that began at `started_ns` failed. Returns whether it counts as gone now.

        A connection takes all its reads with it when it breaks: reads that were under way together fail once.
        """
        if node in self._failures and started_ns < self._failed_ns[node]:
            return False
        self._failed_ns[node] = now_ns
        failures = self._failures[node] = self._failures.get(node, 0) + 1
        if failures < HOLDER_FAILURES_MAX:
            return False
        self.worked(node)
        return True

    def worked(self, node: NodeId) -> None:
        """Something came from it."""
        self._failures.pop(node, None)
        self._failed_ns.pop(node, None)
