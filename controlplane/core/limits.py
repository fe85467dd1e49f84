"""Every limit of the control plane, with the relations between them asserted below."""

from __future__ import annotations

from typing import Final

from kvproto.limits import CHUNK_BYTES_MAX as CHUNK_BYTES_MAX
from kvproto.limits import CLAIM_S_MAX as CLAIM_S_MAX
from kvproto.limits import CLAIMS_PER_NODE_MAX as CLAIMS_PER_NODE_MAX
from kvproto.limits import FOLLOWED_PER_NODE_MAX as FOLLOWED_PER_NODE_MAX
from kvproto.limits import NAMESPACE_BYTES_MAX as NAMESPACE_BYTES_MAX
from kvproto.limits import PREFIX_CHUNKS_MAX as PREFIX_CHUNKS_MAX

MEMBERS_MAX: Final = 64
"""Bits of the `members` field in a control datagram."""

SWITCH_PORT_MAX: Final = 510
"""The highest port that a node may have: v1model drops packets that go to port 511."""

NODES_MAX: Final = 4096
"""Agents that one controller remembers, attached or not."""

GROUPS_EXACT_MEMBERS_MAX: Final = 8
"""Up to this many members every set has its own multicast group, installed before it is needed."""

GROUPS_ON_DEMAND_MAX: Final = 1024
"""Groups for sets in use when there are more members; the least recently used goes first."""

BITMAP_GROUPS_MAX: Final = 4096
"""Groups that a Tofino is given so that every set is one, unless the configuration says otherwise: enough for 22
members. Each pair more doubles them; they are written when it comes and read back with every check."""

ANNOUNCE_RECORDS_MAX: Final = 10_000
"""Records of one Announce; agents batch below it."""

DELTA_RECORDS_MAX: Final = 5_000
"""Chunks in one DirectoryDelta; about 500 KiB."""

COPIES_FORGOTTEN_AT_ONCE: Final = 4096
"""Of nodes that are gone, in one turn of the loop: 20 ms."""

GRPC_MESSAGE_BYTES_MAX: Final = 16 << 20
"""Of one message of the control channel, both ways."""

CLAIM_KEYS_MAX: Final = 10_000
"""Keys in the claims of one message."""

CLAIMS_SHARED: Final = 1 << 20
"""Of all nodes, until each may have no more than its even share. Agents keep those of all others, 500 bytes each."""
CLAIMS_LATE_AT_ONCE: Final = 4096
"""Withdrawn in one sweep."""

LOOK_UP_KEYS_MAX: Final = 4096
"""Of one look-up, and as many that are released: 20 ms."""

PUBLISH_S: Final = 0.005
"""Changes of the directory wait this long for further changes before they are published together."""

MESSAGES_AT_ONCE: Final = 16
"""A publication of so many messages is followed by the next after PUBLISH_S, one of more after as much longer: 3,200 a
second, however many agents listen. What changes after a rest is told at once."""

LOADS_PUBLISH_S: Final = 0.05
LOAD_MESSAGES_PER_S: Final = 1_000
"""What nodes have queued for readers is published no more often, and with no more messages in all: a larger cluster
hears of it less often."""

OUTBOX_MESSAGES_MAX: Final = 10_000
"""Waiting for one agent; an agent that falls further behind is cut off and starts again with a snapshot."""

TASKS_PER_NODE_MAX: Final = 32
"""Unfinished tasks that one agent is given; more wait here."""

TASK_KEYS_MAX: Final = 1_000
"""Keys in one task."""

SWITCH_PINS_MAX: Final = 100_000
"""Chunks pinned into the switch that an agent may repeat, with 16 bytes each."""

REVISION_MAX: Final = 1 << 62
"""Of the operators' state: a higher one is not believed, so that the revision can still be counted up."""

NODE_NAME_BYTES_MAX: Final = 64
COPIES_PER_NODE_MAX: Final = 1 << 21
"""In a node's pool and on its disk, each: 2 TiB in chunks of 1 MiB. What a node announces beyond that is not taken:
every agent keeps the directory."""
HELLO_TEXT_BYTES_MAX: Final = 256
"""Of an agent's version and endpoint: both are shown and passed on."""

CANDIDATES_MAX: Final = 4_096
"""Chunks waiting to be admitted to the switch; the one that nobody wanted for longest is forgotten first."""

WRITE_BATCH_UPDATES_MAX: Final = 200
"""Updates in one P4Runtime WriteRequest; keeps the server's lock short and the error metadata below gRPC's limit."""

PAST_FETCHES_MAX: Final = 1000
"""Chunks in one message of what a node told controllers before."""

NEXT_VICTIMS_MAX: Final = 32
"""Endangered chunks that a heartbeat may name."""

ARRIVING_MAX: Final = 16
"""Chunks on their way to a node that its heartbeat may name."""

COUNTERS_MAX: Final = 64
COUNTER_NAME_MAX: Final = 64
"""Counters of one kind in a heartbeat, and characters of their names."""

REPLICATIONS_AT_ONCE: Final = 16
REPLICATIONS_PER_HEARTBEAT: Final = 2
"""Fetches of last copies that a full pool is about to lose; background work of the nodes that take them."""

PUSHES_PER_NODE: Final = 2
"""Unfinished push tasks that a node may have; further chunks are not pushed to it."""

PUSHES_AT_ONCE_UNICAST: Final = 2
"""Nodes that are pushed to at the same time where no switch casts: engines' reads hardly feel one more reader. Behind
pushes to all at once they queued: the gate's regret was 18 %, with two 2.8 %."""

PUSH_JOINED_CHUNKS_MAX: Final = 256
"""Chunks offered to a node that has just come."""

WARM_WISHES_MAX: Final = 64
"""Wishes of starting engines in one message."""

WARM_NAMESPACES_MAX: Final = 256
"""Namespaces whose engines are starting at the same time; others are not warmed."""

WARM_WAIT_MS_MAX: Final = 600_000
"""The longest that an engine may wait for others that start with it."""

HEARTBEATS_MISSED_MAX: Final = 3
"""After this many missed heartbeats a node is suspect: nothing new is asked of it."""
HEARTBEATS_UNSEEN_MAX: Final = 5
"""With each heartbeat an agent says HERE; nothing seen of so many is a fault that somebody should look at."""

TICK_NS: Final = 1 << 16
"""One tick of the clock that the program for Tofino reckons with."""

assert MEMBERS_MAX <= NODES_MAX
assert GROUPS_EXACT_MEMBERS_MAX <= MEMBERS_MAX
assert (1 << GROUPS_EXACT_MEMBERS_MAX) - 1 <= GROUPS_ON_DEMAND_MAX
assert (1 << GROUPS_EXACT_MEMBERS_MAX) - 1 <= BITMAP_GROUPS_MAX <= 0xFFFF
assert DELTA_RECORDS_MAX * 512 < GRPC_MESSAGE_BYTES_MAX
assert ANNOUNCE_RECORDS_MAX * 512 < GRPC_MESSAGE_BYTES_MAX
assert TASK_KEYS_MAX <= DELTA_RECORDS_MAX
assert CLAIM_KEYS_MAX <= CLAIMS_PER_NODE_MAX
assert CLAIM_KEYS_MAX * 32 < GRPC_MESSAGE_BYTES_MAX
assert SWITCH_PINS_MAX * 32 < GRPC_MESSAGE_BYTES_MAX
