"""Which of several holders a reader turns to, and when one is given up for a chunk."""

from kvproto.events import HolderRef
from kvproto.ids import NodeId
from kvproto.session.chunk import Chunk, Phase
from kvproto.session.parameters import ReaderParameters
from kvproto.session.timing import HOLDER_FAILURES_MAX


def choose_holder(chunk: Chunk, parameters: ReaderParameters) -> HolderRef | None:
    """The holder to ask for this chunk: usable, with the fewest failures, least loaded; None when none is left.

    Readers begin at different places among equals, and chunks do too, so that copies share the work. A chunk stays
    with its holder as long as that works, whatever copies appear meanwhile.
    """
    usable = chunk.usable_holders()
    if not usable:
        return None
    wanted = chunk.strict_holder if chunk.phase is Phase.STRICT else chunk.holder
    for holder in usable:
        if holder.node == wanted and (chunk.phase is Phase.STRICT or not chunk.failures.get(holder.node)):
            return holder
    if len(usable) > 1:
        start = ((parameters.member or 0) + chunk.order) % len(usable)
        turned = usable[start:] + usable[:start]
        usable = sorted(
            turned, key=lambda holder: (chunk.failures.get(holder.node, 0), not holder.castable, holder.load)
        )
    chunk.holder = usable[0].node
    return usable[0]


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
