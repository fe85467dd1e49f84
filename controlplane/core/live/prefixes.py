"""The prefixes that are fetched most, with what became of their fetches. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from controlplane.core.directory import Directory
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.live.figures import count_delivered
from controlplane.core.live.runs import RunActivity, Runs
from controlplane.core.nodes import Node
from kvproto.rpc import control_pb2 as rpc

SHOWN: Final = 40
HOLDERS_SHOWN: Final = 8
KEPT: Final = 512
"""Runs left after forgetting those that were fetched least; twice as many begin the next."""


class Prefixes:
    """Activity of the runs of a directory."""

    def __init__(self, directory: Directory, runs: Runs) -> None:
        self._directory = directory
        self._runs = runs
        self._activities: list[RunActivity] = []
        self._last: dict[NodeIndex, tuple[RunActivity, int]] = {}
        """The run that each node last fetched of, and the position: one read names the chunks of a run in order."""

    def fetched(self, node: Node, fetch: rpc.FetchEvent, at_ns: int, *, rode_along: bool) -> None:
        """A node got a chunk of the directory, or had to recompute it."""
        key = ChunkKey(fetch.key)
        run, chunk = self._runs.run_of(key), self._directory.get(key)
        if run is None or chunk is None:
            return
        if run.activity is None:
            run.activity = RunActivity(run=run)
            self._activities.append(run.activity)
        activity = run.activity
        position = chunk.facts.position
        last, last_position = self._last.get(node.index, (None, 0))
        if last is not activity or position <= last_position:
            activity.reads += 1
            activity.rate.add(1.0, at_ns)
            activity.waited(fetch.waited_us / 1e3)
        self._last[node.index] = activity, position
        if fetch.source == rpc.SOURCE_CAST:
            activity.casts += not rode_along
            activity.riders += rode_along
        count_delivered(activity.delivered, fetch.source, fetch.bytes or chunk.facts.size_bytes)
        if len(self._activities) >= 2 * KEPT:
            self._forget_the_least()

    def node_forgotten(self, index: NodeIndex) -> None:
        """A node was forgotten."""
        self._last.pop(index, None)

    def rows(self, names: Callable[[Iterable[NodeIndex]], list[str]], now_ns: int) -> Iterator[rpc.PrefixView]:
        """The ones fetched most."""
        self._drop_dead()
        for activity in heapq.nsmallest(SHOWN, self._activities, key=_rank):
            run = activity.run
            first = None if run is None else self._directory.get(run.first)
            if run is None or first is None:
                continue
            yield rpc.PrefixView(
                first=run.first,
                position=first.facts.position,
                namespace=first.facts.namespace,
                chunks=run.chunks,
                size_bytes=run.size_bytes,
                served_chunks=run.served_chunks,
                holders=names(first.holders)[:HOLDERS_SHOWN],
                reads_per_s=activity.rate.per_s(now_ns),
                reads=activity.reads,
                casts=activity.casts,
                riders=activity.riders,
                delivered=rpc.Delivered(**activity.delivered),
                wait_ms=float(f"{activity.wait_ms:.3g}"),
            )

    def _drop_dead(self) -> None:
        """Of runs that have gone, or were taken into others."""
        for activity in self._activities:
            if activity.run is not None and activity.run.chunks == 0:
                activity.run.activity = None
                activity.run = None
        self._activities = [activity for activity in self._activities if activity.run is not None]

    def _forget_the_least(self) -> None:
        self._drop_dead()
        self._activities.sort(key=_rank)
        for activity in self._activities[KEPT:]:
            if activity.run is not None:
                activity.run.activity = None
        del self._activities[KEPT:]


def _rank(activity: RunActivity) -> tuple[float, bytes]:
    return -activity.rate.score(), activity.run.first if activity.run is not None else b""
