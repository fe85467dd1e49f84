"""Verbs on chunks of the whole cluster, for programs: what `kvcast warm` and `kvcast evict --hosts` do, by key.

    replicate(keys, nodes=2)          # two nodes have each of them, and what comes before it
    replicate(keys, nodes=["n3", "n4"])
    delete(keys)                      # and what hangs below them: nobody finds it any more

The controller that leads does it; where it is, and with which certificates one is an operator, is said as for `kvcast`
(docs/reference/commands.md): by arguments, the environment, or ~/.config/kvcast/config.yaml.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from kvcast.errors import UsageError
from kvcast.operator import controller, key_text
from kvchunk.ids import KEY_BYTES, ChunkKey
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc

__all__ = ["ControllerAt", "Deleted", "PoolError", "Replicated", "delete", "replicate"]


class PoolError(Exception):
    """It was not done, or not all of it; one line names what is missing and the remedy."""


@dataclass(frozen=True, slots=True)
class ControllerAt:
    """Where controllers are and who asks; None: as the environment or the user's file says."""

    addresses: str | None = None
    """HOST:PORT, several with commas."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Replicated:
    """What a call brought."""

    nodes: tuple[str, ...]
    """Each has all of the chunks now."""
    chunks: int
    """That were brought, over all nodes; those that were there do not count."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a call ended."""

    chunks_from_switch: int
    copies_from_hosts: int


def replicate(
    keys: Sequence[ChunkKey], nodes: int | Sequence[str], *, at: ControllerAt | None = None, timeout_s: float = 0.0
) -> Replicated:
    """Have chunks, and all that comes before each of them, at `nodes`: these by name, or so many, of which those count
    that have all of it already; the others are those with most room. Returns when they have it.

    `timeout_s`: 0: the controller decides. Raises PoolError.
    """
    with _operator(at) as stub:
        paths = _paths(stub, _checked(keys))
        if isinstance(nodes, int):
            held = set.intersection(*(set(chunk.holders) for path in paths.values() for chunk in path))
            chosen = _chosen(stub.Status(rpc.StatusRequest()), nodes, held)
        else:
            chosen = tuple(dict.fromkeys(nodes))
        if not chosen:
            raise PoolError("replicate to no nodes: name some, or say how many (1 or more)")
        brought: dict[tuple[str, bytes], int] = {}
        for tip, path in paths.items():
            lacking = {(node, one.key): one.size_bytes for one in path for node in chosen if node not in one.holders}
            asked = rpc.WarmRequest(key_hex=tip.hex(), nodes=chosen, timeout_ms=int(timeout_s * 1000))
            for step in stub.Warm(asked) if lacking else ():
                if step.problem:
                    raise PoolError(f"{step.node or 'the controller'}: {step.problem}; free room there, or ask again")
            brought |= lacking
    return Replicated(chosen, len(brought), sum(brought.values()))


def delete(keys: Sequence[ChunkKey], *, at: ControllerAt | None = None) -> Deleted:
    """End all copies of chunks and of what hangs below them, in pools, on disks and in the switch; the cold store keeps
    its own. Raises PoolError, before anything is gone, for a chunk that nobody has or that is pinned."""
    with _operator(at) as stub:
        named = set(_checked(keys))
        tops: list[ChunkKey] = []
        for key in keys:
            found = _around(stub, key)
            path = _path(found, key)
            below = {key}
            for chunk in found.values():  # parents before their children
                if chunk.parent in below:
                    below.add(ChunkKey(chunk.key))
            for one in below:
                if found[one].pinned:
                    raise PoolError(
                        f"chunk {key_text(one)} is pinned: take the pin back (kvcast unpin {key_text(one)})"
                    )
            if named.isdisjoint(ChunkKey(chunk.key) for chunk in path[:-1]):
                tops.append(key)
        gone = [stub.Evict(rpc.EvictRequest(key_hex=key.hex(), hosts=True)) for key in tops]
    return Deleted(sum(one.chunks_from_switch for one in gone), sum(one.copies_from_hosts for one in gone))


@contextmanager
def _operator(at: ControllerAt | None) -> Iterator[control_pb2_grpc.OperatorStub]:
    at = at or ControllerAt()
    try:
        with controller(
            argparse.Namespace(controller=at.addresses, tls_cert=at.tls_cert, tls_key=at.tls_key, tls_ca=at.tls_ca)
        ) as stub:
            yield stub
    except UsageError as error:
        raise PoolError(str(error)) from error


def _checked(keys: Sequence[ChunkKey]) -> Sequence[ChunkKey]:
    if not keys:
        raise PoolError("no keys: name at least one chunk")
    wrong = next((key for key in keys if not isinstance(key, bytes) or len(key) != KEY_BYTES), None)
    if wrong is not None:
        raise PoolError(f"{str(wrong)[:40]!r} is no key: take {KEY_BYTES} bytes, as kvchunk.ids.prefix_keys makes them")
    return keys


def _around(stub: control_pb2_grpc.OperatorStub, key: ChunkKey) -> Mapping[ChunkKey, rpc.ChunkView]:
    """A chunk, what comes before it, and what hangs below it; parents before their children."""
    try:
        return {ChunkKey(chunk.key): chunk for chunk in stub.List(rpc.ListRequest(key_hex=key.hex()))}
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.NOT_FOUND:
            raise PoolError(f"no chunk {key.hex()} is in the pool: put it first, and look with kvcast ls") from error
        raise


def _path(found: Mapping[ChunkKey, rpc.ChunkView], key: ChunkKey) -> list[rpc.ChunkView]:
    """A chunk and all that comes before it, the first one first."""
    path: list[rpc.ChunkView] = []
    chunk = found.get(key)
    while chunk is not None and len(path) < len(found):
        path.append(chunk)
        chunk = found.get(ChunkKey(chunk.parent))
    return path[::-1]


def _paths(stub: control_pb2_grpc.OperatorStub, keys: Sequence[ChunkKey]) -> Mapping[ChunkKey, Sequence[rpc.ChunkView]]:
    """By last chunk, the prefixes that these make: what comes before another one of them is part of its prefix."""
    paths: dict[ChunkKey, Sequence[rpc.ChunkView]] = {}
    before: set[bytes] = set()
    for key in reversed(keys):
        if key in before or key in paths:
            continue
        path = _path(_around(stub, key), key)
        before.update(chunk.key for chunk in path[:-1])
        paths[key] = path
    return {key: path for key, path in paths.items() if key not in before}


def _chosen(status: rpc.StatusReply, count: int, held: set[str]) -> tuple[str, ...]:
    """Those that have it, and the emptiest of the others."""
    attached = [node for node in status.nodes if node.state == "attached"]
    if not 1 <= count <= len(attached):
        raise PoolError(f"{count} nodes are asked for, and {len(attached)} are attached: ask for 1 to {len(attached)}")
    attached.sort(key=lambda node: (node.name not in held, node.pool_used_bytes - node.pool_bytes, node.name))
    return tuple(node.name for node in attached[:count])
