"""Named limits of the host agent, with assertions about how they relate to each other."""

from __future__ import annotations

from kvclient import lone
from kvclient.messages import KEYS_MAX
from kvproto.integrity import Integrity
from kvproto.limits import CHUNK_BYTES_MAX as CHUNK_BYTES_MAX
from kvproto.limits import CLAIM_S_MAX as CLAIM_S_MAX
from kvproto.limits import CLAIMS_PER_NODE_MAX, FOLLOWED_PER_NODE_MAX, SEGMENT_BLOCK_BYTES, SEGMENT_BYTES_MAX

KIB = 1024
MIB = 1024 * KIB

SWITCH_PORT_MAX = 510
"""Of p4switch and the controller, too: ports have 9 bits, and 511 drops."""

# ------------------------------------------------------------------ pool
EXTENT_ALIGN_BYTES = 4096
"""Chunks start on pages, so that sendfile and RDMA registration see whole pages."""
POOL_BYTES_MIN = 1 * MIB
POOL_BYTES_MAX = 1 << 44

ADOPTED_AT_ONCE = 4
"""Chunks of the agent before that are compared with their digests at a time."""
ADOPTED_HELD_S = 2.0
"""What the agent before had given out is given to nobody else for this long. Copies of a lease take milliseconds;
whoever takes longer finds out when it is done."""

DISK_BYTES_MIN = 1 * MIB
DISK_BYTES_MAX = 1 << 48

# ------------------------------------------------------------------ local API
API_REQUESTS_IN_FLIGHT_MAX = 256
API_CONNECTIONS_MAX = 256
API_CONNECTIONS_PER_PROCESS_MAX = 32
"""One process of an engine has one or two; a broken one must not shut the others out."""
API_CONNECTIONS_PER_TENANT_MAX = 128
"""Unless the configuration says otherwise: one tenant leaves as many to the others."""
API_DEADLINE_S_MAX = 600.0
WRITE_REGION_BYTES_MIN = 1 * MIB
WRITE_REGION_BYTES_DEFAULT = 1024 * MIB
"""Of each engine's connection, or as much as the pool has: only what the engine touches takes memory."""
INTAKE_INLINE_BYTES_MAX = 256 * KIB
"""Up to here a copy out of a write region (0.15 ms per MiB) holds the event loop up no longer than a thread would."""
API_LOCK_S_MAX = 600.0
API_LOCKS_MAX = 16384
"""Locks of one engine: four times the keys of one request."""
LOCKS_ENDED_AT_ONCE = 128
API_LOCKED_SHARE_MAX = 0.5
"""Of the pool, locked by all engines together: what is fetched and put needs room, too."""
SLICE_KEYS = 128
"""Of a request with more keys so many are worked at a time, in some 0.5 ms: then others have their turns."""
FETCH_SLICE_KEYS = 64
"""Of a fetch with more keys than that so many: to keep a chunk and to learn from it takes longer than to lock it."""
FETCH_WINDOW_CHUNKS = 128
"""Of a fetch of more chunks so many are looked for, asked for, returned or given up at a time, in 1 to 3 ms."""
LOCAL_READS_LOOK_S = 0.25
"""How often the agent looks at what engines read without asking, and at chunks that had to stay for them. It learns of
so many hits of a connection at most (`kvclient.catalog.HITS`) as come within that time."""
HASH_INLINE_BYTES_MAX = {Integrity.BLAKE3: 512 * KIB, Integrity.XXH3: 4 * MIB}
"""Up to here hashing holds the event loop up for less (about 0.15 and 0.03 ms per MiB) than hops to a thread and back
would cost."""

# ------------------------------------------------------------------ fetches
GIVE_UP_S_MIN = 0.05
"""No fetch is given up earlier for being slower than computing: the jitter of a busy host would end it."""
CONTENDED_SHARE = 0.1
"""A fetch that its holder's queue delays by more than this share of its own time says nothing of the link's rate."""
PROBE_DEADLINE_S = 10.0
"""A probe that has brought nothing by then has found out enough."""

# ------------------------------------------------------------------ traces
TRACES_SEND_S = 5.0
"""A collector has this long to take a batch."""
TRACES_DELAY_S = 2.0
"""Spans wait this long for others to be sent with."""
TRACES_QUEUED_MAX = 4096
"""Spans that wait; of more, the oldest are lost."""
TRACES_FLUSH_S = 2.0
"""An orderly stop waits this long for the last spans to be sent."""
# ------------------------------------------------------------------ claims
CLAIMS_PER_ENGINE_MAX = 8192
"""Chunks that one engine may say it computes: two prompts of a million tokens in chunks of 256."""
CLAIM_TOLD_S_MIN = 0.01
"""A claim's new time is told to other nodes when it differs by at least this much."""
CLAIMS_BATCH_KEYS = 4096
"""Claims in one message to the controller."""
CLAIMS_HERE_SHARED = CLAIMS_PER_NODE_MAX // 2
"""Of all engines here, until each may have no more than its even share: all together have no more than the controller
takes of a node."""
CLAIMS_LATE_AT_ONCE = 4096

# ------------------------------------------------------------------ transports
CAST_BATCH_PACKETS = 64
"""Completions of work requests taken by one poll."""
CAST_POLL_S_MAX = 0.004
"""Longest time between two looks at arriving casts: adds to a leader's round trip, far below a window's worth."""
CAST_FOLLOWER_POLL_S_MAX = 0.012
"""The same for a follower, on whom nobody waits: half as many looks, and before rules about silence it looks anyway."""
CAST_WAKE_SEGMENTS = 512
"""The data path in C reports cast segments once this many wait, or half a window of the reader that asks for them: each
report costs the event loop some 0.3 ms, whatever it brings. At a pause it reports, too."""
CAST_FOLLOWER_WAKE_SEGMENTS = 1024
"""The same for a follower, on whom nobody waits."""
CAST_SEND_BUFFER_BYTES = 192 * KIB
"""Some 40 datagrams: those in the socket's buffer stand in the interface's queue, too, which may drop them silently and
where they can no longer be merged with other readers' requests. The rest waits in the holder."""
CAST_SEND_BUFFER_BYTES_MIN = 16 * KIB
"""Two datagrams of 8 KiB segments, as the kernel charges them."""
CONTROL_WAIT_S = 0.002
"""A keeper's NOTICEs wait behind no more than this of its casts."""


def keeper_buffer_bytes(rate_bytes_s: int) -> int:
    """What of a keeper's casts may wait in its socket, at this rate of its link: NOTICEs wait behind it."""
    return min(CAST_SEND_BUFFER_BYTES, max(CAST_SEND_BUFFER_BYTES_MIN, int(rate_bytes_s * CONTROL_WAIT_S)))


CAST_BUFFER_BYTES_MAX = 65507
"""Of datagrams that the kernel gets by one buffer and cuts apart: the payload of the longest UDP datagram over IPv4."""
CAST_BUFFER_SEGMENTS_MAX = 64
"""Of them: kernels before 6.9 take no more."""
CAST_THREAD_BYTES_S = 2_500_000_000
"""What one thread casts, about."""
CAST_THREAD_CORES = 8
"""A node has one more thread that casts for each so many cores."""
CAST_THREADS_MAX = 4
CAST_PREPARED_CHUNKS_MAX = 64
"""Chunks whose headers and ICRCs are kept ready for sending (about 60 B per segment)."""
CONTROL_BATCH_DATAGRAMS = 64
READS_PER_PEER_MAX = 8
"""Reliable reads in flight on one connection; more wait in order."""
READ_CONNECTIONS_MAX = 256
READ_CONNECTIONS_PER_PEER_MAX = 8
"""From one address: a peer has one for small and one for large reads, and READ_STALLED_CONNECTIONS_MAX more that stand
still."""
READ_SMALL_BYTES_MAX = 256 * KIB
"""Where no more than this is wanted of a peer, reads have a connection of their own, so that they wait for
no large ones, and are not hashed on their way."""
LONE_GET_WAIT_S = 0.01
"""How long the thread of lone gets waits for a peer, and other lone gets with it; its clients have more patience."""
LONE_GET_SPIN_S = 0.00003
"""Of these, without sleeping: about what a peer on the same switch takes to answer. A thread that sleeps at once brings
a chunk in 130 us instead of 117; spinning for 60 us is no better."""
LONE_GETS_TOLD_S = 0.005
"""How late the pool may learn of chunks that lone gets brought."""
LONE_GET_BUFFERS = 64
"""Chunks that the pool has not taken yet; beyond, lone gets are declined. 4 MiB, of which only those in use take
memory."""
LONE_GET_CHUNKS_MAX = 1 << 16
"""Small chunks of others that are known to the thread, about 100 bytes each."""
LONE_GET_RECONNECT_S = 1.0
"""A peer is connected to no more often for lone gets. One that has owed an answer for so long is left."""
READ_REQUESTS_QUEUED_MAX = 256
"""Requests a serving connection may have waiting; a peer beyond that is not ours and is cut off."""
READ_CONNECT_TIMEOUT_S = 3.0
READ_RENEW_S = 0.5
"""A connection that moved nothing for this long gets no more requests: they go over a new one. TCP doubles its pauses
while a path is broken, so that an old connection may stay silent for many seconds after the path is whole again."""
READS_TOLD_S = 0.025
"""How late the pool and the metrics may learn of reads that the thread in C answered."""
PATH_TRIES_S = (0.3, 0.3, 0.6)
"""A node that answers none of so many attempts to connect, each for so long, cannot be reached: the kernel answers them
however busy its agent is, and a crowded link seldom loses three of three."""
PATH_FRESH_S = 1.0
"""A node that was reached so lately is not doubted."""
PATH_AGAIN_S = (1.0, 8.0)
"""When a node that could not be reached is tried again: first, and at the latest."""
PATH_WITNESSED_S = 20.0
"""For so long a node that was reached speaks for this node's own link."""
PATH_WITNESSES = 2
READ_TOKEN_S = 5.0
"""A connection on which nobody shows a good token for so long ends."""
READ_TOKEN_AGAIN_S = 1.0
"""How often a token whose time is over is looked at again while time stands still."""
READ_UNWANTED_BYTES_MAX = 64 * KIB
"""Bytes of reads that were given up, which a connection without any other reads takes in. Where more are to come a new
connection is quicker than waiting for them, and the holder's uplink is spared."""
READ_STALLED_CONNECTIONS_MAX = 2
"""Connections to one peer that stand still, beside the newest; with more, requests wait on the newest."""
READ_STALL_TIMEOUT_S = 30.0
"""A connection with open requests that moves nothing for this long is given up, by the reader and by the holder.
Long: on a crowded link TCP may stand still for many seconds and recover, and the reader decides whether to wait."""
READ_KEEPALIVE_S = (2, 1, 4)
"""Seconds until a silent peer is probed, seconds between probes, and unanswered probes that mean its host is gone."""
READ_PROGRESS_BYTES = 512 * KIB
"""Reads larger than this report their progress, so that a slow one is not taken for a dead one,"""
READ_PROGRESS_S = 0.002
"""where nothing was heard of their connection for this long."""
READ_PROVERS = 2
"""Threads in C that hash what reads bring: of BLAKE3 they take in some 10 GB/s together. With one, 16 MiB take 13.2 ms
instead of 10.4."""
READ_RECEIVE_LOW_WATER_BYTES = 256 * KIB
"""Wake for at least this much of a big reliable read: fewer, larger copies. 128 and 512 KiB are no quicker."""
READ_TURN_BYTES = 1 * MIB
"""Of one connection are received before others have their turn: a holder may send as fast as this is received."""
MULTICAST_TTL = 64
RAIL_TRY_S = 0.3
"""A connection by a rail that was left is made within this, or it is left for longer."""
INTERFACE_LOOK_S = 1.0
"""How often an agent looks whether its data interface is still the one that it bound to; the kernel tells it sooner."""
INTERFACE_SETTLES_S = 0.1
"""What changes within this time is looked at together: a restart of the network changes much, one after the other."""
RECEIVE_WINDOW_SEGMENTS_MIN = 8
"""A window below this cannot keep a link busy; a receive buffer that small loses segments, which are then read."""
SEGMENT_BYTES_SUPPORTED = (*range(SEGMENT_BLOCK_BYTES, 4096 + 1, SEGMENT_BLOCK_BYTES), SEGMENT_BYTES_MAX)
"""Sizes that switch programs support, and one more for fabrics without a switch."""

# ------------------------------------------------------------------ RDMA
VERBS_CAST_QUEUE_SEGMENTS = 1024
"""Segments in the sending queue: 80 us of a 400 Gbit/s port at 4 KiB, about what a turn of the event loop takes."""
VERBS_CAST_CHAIN_SEGMENTS = 128
"""Segments posted by one call and completed together."""
VERBS_RECEIVE_BLOCK_ROWS = 64
"""Rows of the receive ring that go back to the NIC by one call."""
VERBS_RECEIVE_BLOCKS_MIN = 2
RDMA_REGION_BYTES_MIN = 16 * MIB
"""NICs have room for some thousand regions."""
VERBS_READ_PIECES_MAX = 16
"""RDMA READs of one peer in flight. The NIC has its own limit, usually 16."""
VERBS_READ_WINDOW_BYTES = 4 * MIB
"""What they may bring at most, unless configured: 80 us of a 400 Gbit/s port."""
VERBS_READ_TIMEOUT_EXPONENT = 16
"""RDMA's acknowledgement timeout, 4.096 us * 2^n: 0.27 s (IBTA 9.7.6.1.3)."""
VERBS_READ_RETRIES = 6
"""So a read from a dead peer fails after about 2 s. Not 7: soft-RoCE takes it to mean for ever (as RNR retries do)."""
VERBS_READ_SILENCE_S = 8.0
"""A READ that the NIC has neither done nor given up after this long is lost: each of its retries takes four times the
timeout at most (IBTA 9.7.6.1.3). What the peer is asked for then goes over TCP."""
VERBS_READ_FAILURES_MAX = 2
"""Connections to a peer in a row that broke before they brought a read: then it is read over TCP for a while."""
VERBS_READ_DETOUR_S = 30.0
"""How long; then RDMA gets another try."""
VERBS_PEERS_REMEMBERED_MAX = 4096
"""Peers with such a history that are remembered."""
VERBS_READ_LOSSES_S = 0.025
"""How often the agent looks at the NIC's counters of retransmissions while reads are in flight. They belong to the port
and cost its firmware a command, so drivers ask their hardware at most every 10 ms. 25 ms are a thousand round trips,
and what a loss costs of a window that is too large."""
VERBS_READ_IDLE_S = 60.0
"""Both sides take down a connection that has had no reads for this long."""
VERBS_EXTENT_LINGER_S = 0.02
"""How long a peer's chunk stays pinned after a read of it: its next stripe, mostly, comes at once."""
VERBS_AGAIN_S = 1.0
"""Seconds until the agent restarts casts over RDMA after they broke."""
VERBS_COUNTERS_S = 1.0
"""How often the NIC's own counters are looked at."""

# ------------------------------------------------------------------ controller
CONTROLLER_BACKOFF_S = (0.1, 0.2, 0.2, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 1.0, 2.0)
"""Of rounds through all controllers: the first ones within the time that an election takes, up to 4.5 s with a lease of
three seconds that its store does not end by itself."""
CONTROLLER_SILENCE_S = 5.0
"""Until its first message; then as it says itself."""
CONTROLLER_LOOKS = 6
"""Within the time that it may be silent."""
LEADER_ASKED_S = 1.0
"""Patience with a controller that is asked whether it leads."""
LEADER_REMEMBERED_S = 15.0
"""Several times what it takes agents to find a new leader. Where the switch elects, the controllers' clocks make
epochs: for so long an agent does without a leader whose clock is behind its predecessor's."""
STALE_DIRECTORY_S = 10.0
"""For this long after a controller's restart older directory entries still count: several times what any agent needs to
be back (its longest backoff, its snapshot)."""
STALE_AT_ONCE = 1024
"""Entries that are forgotten in one turn of the loop then."""
REPLICA_ROW_BYTES = 160
"""What a chunk of the replica takes, its share of keys' tables and lists of nodes included."""
LOOK_UP_WAIT_S = 0.05
"""A request waits at most this long to learn who has chunks of which this node knows nothing."""
LOOK_UP_KEYS_MAX = 1024
"""Of one question; the controller takes four times as many."""
LOOK_UPS_MAX = 256
"""Questions without an answer."""
LOOK_UP_ABSENT_MAX = 65_536
"""Chunks remembered that nobody has; the oldest are let go."""
REPLICA_ROWS_MAX = FOLLOWED_PER_NODE_MAX - LOOK_UP_ABSENT_MAX - LOOK_UPS_MAX * LOOK_UP_KEYS_MAX
REPLICA_BYTES_MAX = REPLICA_ROWS_MAX * REPLICA_ROW_BYTES
"""Of a replica that is a part: with what is asked for and what nobody has, no more than a node may follow."""
CONTROLLER_NAME_S = 5.0
"""Looking up what a controller's name stands for takes no longer."""
CONTROLLER_FAREWELL_S = 0.5
CONTROLLER_QUEUE_MAX = 65536
HEARTBEAT_S_DEFAULT = 1.0
HEARTBEAT_S_MIN = 0.01
"""What a controller may ask for; its configuration allows no less."""
TASK_TIMEOUT_MS = 60_000
ANNOUNCE_BATCH_CHUNKS = 2048
LOAD_INTERVAL_S = 0.05
"""How often, at most, an agent says what it has queued for its readers."""
LOAD_AGAIN_S = 0.25
"""A queue that stays is told again: readers take it for drained as their link would drain it."""
ANNOUNCE_DELAY_S = 0.03
"""Long enough for the chunks of one fetch or put to go out together, and not in the middle of it."""
USAGE_DELAY_S = 0.25
WARM_WISHES_MAX = 64
"""Of engines that start, not told to the controller yet; beyond it the oldest are dropped."""
USAGE_EVENTS_MAX = 4096
USAGE_BATCH_EVENTS = 1000
FETCHES_MAX = 1024
"""Under way at a time, background ones included; whoever asks for more is told that the node is busy."""
PAST_FETCHES_MAX = 16_384
"""Chunks whose fetches are told again to a controller that comes to lead."""
CONTROLLERS_TOLD_MAX = 16
TASKS_RUNNING_MAX = 256
NEXT_VICTIMS_TOLD = 8
"""Chunks that a full pool would lose next, named in each heartbeat."""
ARRIVING_TOLD = 16
"""Chunks on their way here, named in each heartbeat."""
DROP_REASONS_TOLD = 64
REFUSALS_TOLD_MAX = 64
"""Kinds of what a controller does not take; each is logged once."""
PREPARED_MAX = 1024
"""Chunks that are brought from disk at a time because peers or plans want them."""
PREPARE_DEADLINE_S = 30.0

# ------------------------------------------------------------------ outages
OUTAGE_S = 60.0
"""What has not worked for this long is worth a line, and an alert."""
OUTAGE_LOOK_S = 5.0
OUTAGE_ASKED_MIN = 10
"""JOINs without an answer, or reads that failed, one after the other, before that says something."""

# ------------------------------------------------------------------ the cold store
COLD_INDEX_CHUNKS_MAX = 100_000
"""Chunks that a node remembers to be in the cold store; the oldest news goes first. About 40 MB of memory."""
COLD_ABSENT_S = 10.0
"""A chunk that was not in the store is not looked for again for this long."""
COLD_ABSENT_MAX = 16_384
"""Such chunks remembered."""
COLD_LOOKUP_WAIT_S = 0.05
"""A request waits at most this long to learn what the cold store has, unless the configuration says otherwise."""
COLD_LOOKS_MAX = 64
"""Requests that wait for a look at a time; further ones go on without."""
COLD_LOOK_CHUNKS_MAX = 256
"""Chunks of one request that are looked for."""
COLD_READS_AT_ONCE = 16
"""Operations that read from the store, loads and looks."""
COLD_FAILURES_MAX = 3
"""Operations that fail in a row, before the store counts as away (or as full)."""
COLD_RETRY_S_MIN = 1.0
COLD_RETRY_S_MAX = 60.0
"""How often a store that is away is tried."""
COLD_PROBE_BYTES = 1 << 20
"""Of the object that is put, read and deleted to learn what the store takes."""
COLD_TRIAL_BYTES_MAX = 16 * MIB
"""The same once larger ones were refused."""

# ------------------------------------------------------------------ examinations (`kvcast doctor cluster`)
EXAMINATION_CHUNK_BYTES_MAX = 16 * MIB
EXAMINATION_CHUNKS_MAX = 256
"""Chunks of examinations in this node's pool, put and fetched."""
EXAMINATION_LIFETIME_S = 60.0
"""They leave the pool after this time, even when nobody asks for it."""
EXAMINATION_STEPS_MAX = 64
"""Steps at once."""
EXAMINATION_DATAGRAMS = 3
"""Of each size to each node: one may be lost."""
EXAMINATION_SMALL_BYTES = 128
"""IP packet of the small ones."""
EXAMINATION_PACKET_BYTES_MAX = 9216
EXAMINATION_RETRY_S = 0.02
"""A chunk that the directory does not name yet is asked for again."""
WIRE_FORM_LINK_BIT_S_MAX = 25_000_000_000
"""On faster links no codec here keeps up with the bytes that it would save; it is not even tried out."""


def extent_bytes(size_bytes: int) -> int:
    """Bytes that a chunk takes in a pool: whole pages."""
    return -(-size_bytes // EXTENT_ALIGN_BYTES) * EXTENT_ALIGN_BYTES


assert READ_STALLED_CONNECTIONS_MAX + 2 <= READ_CONNECTIONS_PER_PEER_MAX < READ_CONNECTIONS_MAX
assert API_CONNECTIONS_PER_PROCESS_MAX < API_CONNECTIONS_PER_TENANT_MAX < API_CONNECTIONS_MAX
assert KEYS_MAX <= API_LOCKS_MAX
assert 0 < API_LOCKED_SHARE_MAX < 1
assert CAST_POLL_S_MAX <= CAST_FOLLOWER_POLL_S_MAX
assert VERBS_CAST_CHAIN_SEGMENTS <= VERBS_CAST_QUEUE_SEGMENTS
assert VERBS_READ_SILENCE_S > 4 * 4.096e-6 * 2**VERBS_READ_TIMEOUT_EXPONENT * (VERBS_READ_RETRIES + 1)
assert VERBS_READ_SILENCE_S < READ_STALL_TIMEOUT_S
assert 2 * LONE_GET_WAIT_S <= lone.WAIT_S
assert EXTENT_ALIGN_BYTES & (EXTENT_ALIGN_BYTES - 1) == 0
