"""A node whose engine computes the prefix that others want: it claims the chunks, and puts each when it is computed."""

from dataclasses import replace
from functools import partial

from hostagent.core import effects, events
from hostagent.core.directory import NodeClaims
from kvproto.limits import MS
from kvsim.node import Node
from kvsim.world import World

NEWS_NS = 6 * MS
"""From what an agent says of claims to what the others know."""


class Computing:
    """One engine's computation, in a world whose nodes announce what they have."""

    def __init__(self, world: World, node: Node, chunk_ns: int, claimed_ns: int | None = None) -> None:
        """`chunk_ns`: for each chunk; `claimed_ns`: the same as the engine says (None: the truth)."""
        self._world = world
        self._node = node
        self._chunk_ns = chunk_ns
        self._claimed_ns = chunk_ns if claimed_ns is None else claimed_ns
        self._stopped = False
        node.claimed = partial(self._told, node)

    def begin(self, at_ns: int) -> None:
        """The engine begins at this time."""
        self._world.engine.at(at_ns, self._begin)

    def stop(self, *, honestly: bool = True) -> None:
        """The engine computes no further; `honestly`: it says so."""
        self._stopped = True
        if honestly:
            self._node.tell(events.ClaimWithdrawn(self._node.engine_id, None))

    def kill(self, *, noticed: bool = True) -> None:
        """The node dies; `noticed`: its stream to the controller ends with it."""
        self._stopped = True
        self._node.kill()
        if noticed:
            self._publish(NodeClaims(self._world.nodes.index(self._node), (), tuple(self._world.keys)))

    def _begin(self) -> None:
        keys, setting = tuple(self._world.keys), self._world.setting
        size_bytes = setting.segments * setting.segment_bytes
        etas_s = tuple(self._claimed_ns * (place + 1) / 1e9 for place in range(len(keys)))
        self._node.tell(events.ClaimMade(self._node.engine_id, keys, size_bytes, etas_s))
        for place in range(len(keys)):
            self._world.engine.at(self._world.engine.now_ns + self._chunk_ns * (place + 1), partial(self._put, place))

    def _put(self, place: int) -> None:
        if not self._stopped and not self._node.dead:
            self._node.hold(self._world.keys[place], self._world.setting.segments, place)

    def _told(self, node: Node, effect: effects.ReportClaims) -> None:
        number = self._world.nodes.index(node)
        self._publish(NodeClaims(number, tuple(effect.made), tuple(effect.withdrawn)))

    def _publish(self, news: NodeClaims) -> None:
        for other in self._world.nodes:
            # Times are from now on: they are older when they come.
            made = tuple(replace(one, eta_s=max(0.0, one.eta_s - NEWS_NS / 1e9)) for one in news.made)
            told = NodeClaims(news.node, made, news.withdrawn)
            self._world.engine.at(self._world.engine.now_ns + NEWS_NS, partial(other.learn, claims=(told,)))
