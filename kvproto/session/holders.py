"""Which of several holders a reader turns to, and when one is given up for a chunk."""

from kvproto.events import HolderRef
from kvproto.ids import NodeId
from kvproto.session.chunk import Chunk, Phase
from kvproto.session.parameters import ReaderParameters
from kvproto.session.timing import HOLDER_FAILURES_MAX


def choose_holder(chunk: Chunk, parameters: ReaderParameters) -> HolderRef | None:
    """The holder to ask for this chunk: usable, with the fewest failures, least loaded; None when none is left.

    Readers begin at different places among equals, and chunks do too, so that copies share the work.
    """
    usable = chunk.usable_holders()
    if not usable:
        return None
    if chunk.phase is Phase.STRICT:
        for holder in usable:
            if holder.node == chunk.strict_holder:
                return holder
    start = (parameters.member or 0) + chunk.order
    count = len(usable)
    turned = [usable[(start + place) % count] for place in range(count)]
    return min(turned, key=lambda holder: (chunk.failures.get(holder.node, 0), not holder.castable, holder.load))


def note_failure(chunk: Chunk, node: NodeId) -> None:
    """A read or pull of this chunk from this holder failed; after some it is excluded."""
    failures = chunk.failures[node] = chunk.failures.get(node, 0) + 1
    if failures >= HOLDER_FAILURES_MAX:
        chunk.excluded.add(node)
