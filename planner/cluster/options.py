"""The subject of a plan: a cluster, and how its nodes share KV."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kvpolicy.tiers.merging import WAIT_MAX_S
from kvproto.limits import SEGMENT_BYTES_DEFAULT
from planner.hardware import Engine
from planner.traces import BLOCK_TOKENS


class Sharing(enum.Enum):
    """The options that are compared, each a step beyond the one before."""

    NONE = "no pool"
    """Every node keeps what it computed itself."""
    UNICAST = "unicast"
    """A chunk is served by the node that computed it; readers keep private copies."""
    REPLICAS = "replicas"
    """The same with every new chunk also written to other nodes in the background."""
    RELAY = "relays"
    """Every copy serves, from the moment its first bytes arrive: readers forward to readers."""
    CAST = "casts"
    """kvcast: copies serve, and the switch replicates chunks in flight."""
    CAST_SWITCH = "casts+switch"
    """kvcast with chunks in the switch, too."""


class Merging(enum.Enum):
    """What engines do with what others compute at this moment."""

    OFF = "off"
    """Nothing: they compute it, too."""
    WHOLE = "whole"
    """They may wait for it; a prompt's chunks are put when all of it is computed."""
    CHUNKS = "chunks"
    """They may wait for it; each chunk is put as soon as it is computed."""


class Routing(enum.Enum):
    """Which node gets a request."""

    ROUND_ROBIN = "rr"
    PREFIX = "prefix"
    """The node with the longest cached prefix of half the prompt or four blocks, unless it is much busier than the
    idlest; otherwise the idlest."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines and their settings; bytes, bytes per second."""

    engine: Engine
    nodes: int = 16
    link_rate: float = 12.5e9
    local_dram_bytes: int = 256 * 10**9
    """Of each node: its own cache, and its share of the pool where there is one."""
    local_disk_bytes: int = 0
    """Of each node's disk tier; 0: none."""
    disk_rate: float = 6e9
    """Of its device, reading and writing."""
    switch_bytes: int = 0
    """Room for chunks in the switch."""
    routing: Routing = Routing.ROUND_ROBIN
    """Within a cell, where there are several (`planner.cells`)."""
    sessions_in_cells: bool = True
    """With more nodes than one switch takes: a session's requests go to one cell; otherwise to any."""
    replicas: int = 3
    """Copies of a chunk under REPLICAS."""
    rtt_s: float = 20e-6
    mtu_bytes: int = 9000
    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    chunk_tokens: int = BLOCK_TOKENS

    @property
    def chunk_bytes(self) -> int:
        return self.engine.model.chunk_bytes(self.chunk_tokens)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One replay."""

    cluster: Cluster
    sharing: Sharing
    speed: float = 1.0
    """Arrivals come this many times as fast as in the trace."""
    look_up_again: bool = False
    """An engine looks a prefix up again when it is free for the request (`planner.cluster.serial`)."""
    merging: Merging = Merging.OFF
    """With `look_up_again`."""
    wait_max_s: float = WAIT_MAX_S
    """The agents' `gate.merge_wait_max`."""
    copies_serve: bool = False
    """With UNICAST: readers' copies are in the directory and serve others, as those of kvcast without a switch do."""
    jitter_seed: int = 0
    """Not 0: every arrival is moved by up to JITTER_S, to see what chance alone changes."""
