"""Jobs for `AgentClient.background`: what a node can do for engines while none of them waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvchunk.kv_layout import KvLayout
from kvclient.client import AgentClient
from kvclient.engines.kv_conversion import convert


def warm(agent: AgentClient, prefixes: Iterable[Sequence[bytes]], *, deadline_s: float = 10.0) -> Iterator[int]:
    """Bring prefixes that are expected next, keys in order, into this node's DRAM. A step is a prefix; yields how many
    of its chunks are here."""
    for keys in prefixes:
        with agent.fetch(keys, deadline_s=deadline_s) as found:
            here = found.count
        yield here


def reencode(
    agent: AgentClient,
    names: Iterable[tuple[bytes, bytes]],
    given: KvLayout,
    wanted: KvLayout,
    *,
    namespace: str = "",
    deadline_s: float = 10.0,
) -> Iterator[bool]:
    """Give chunks of one layout to engines of another. `names`: pairs of the key that a chunk has and the key by
    which those engines know it (of another identity). A step is a chunk; yields whether it is there now."""
    for key, other in names:
        with agent.fetch([key], deadline_s=deadline_s) as found:
            if not found.count:
                yield False
                continue
            made = bytearray(wanted.size_bytes)
            convert(found.views[0], given, memoryview(made), wanted)
        agent.put(other, None, made, namespace=namespace)
        yield True
