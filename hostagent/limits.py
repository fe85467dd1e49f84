"""Named limits of the host agent, with the relations between them asserted beside them."""

from __future__ import annotations

from kvproto.limits import SEGMENT_BLOCK_BYTES, SEGMENT_BYTES_MAX

KIB = 1024
MIB = 1024 * KIB

# ------------------------------------------------------------------ pool
EXTENT_ALIGN_BYTES = 4096
"""Chunks start on pages, so that sendfile and RDMA registration see whole pages."""
CHUNK_BYTES_MAX = 1 << 32
POOL_BYTES_MIN = 1 * MIB
POOL_BYTES_MAX = 1 << 44

DISK_BYTES_MIN = 1 * MIB
DISK_BYTES_MAX = 1 << 48

# ------------------------------------------------------------------ local API
API_KEYS_MAX = 4096
"""Keys in one request: a million tokens in chunks of 256."""
API_FRAME_BYTES_MAX = 256 * KIB
API_REQUESTS_IN_FLIGHT_MAX = 256
API_CONNECTIONS_MAX = 256
API_NAMESPACE_BYTES_MAX = 256
API_DEADLINE_S_MAX = 600.0
CHECKSUM_INLINE_BYTES_MAX = 4 * MIB
"""Up to here a checksum holds the event loop up for less (0.1 ms a MiB) than hops to a thread and back would cost."""

# ------------------------------------------------------------------ transports
CAST_BATCH_PACKETS = 64
"""Datagrams taken or handed over by one recvmmsg/sendmmsg call."""
CAST_POLL_S_MAX = 0.004
"""Longest time between two looks at arriving casts: adds to a leader's round trip, far below a window's worth."""
CAST_FOLLOWER_POLL_S_MAX = 0.012
"""The same for a follower, on whom nobody waits: half as many looks, and before rules about silence it looks anyway."""
CONTROL_POLL_S_MAX = 0.001
CAST_SEND_BUFFER_BYTES = 192 * KIB
"""Some 40 datagrams: what stands in the socket stands in the interface's queue, too, where it can be dropped without a
word and can no longer be merged with what others ask for. The rest waits in the holder."""
CAST_PREPARED_CHUNKS_MAX = 64
"""Chunks whose headers and ICRCs are kept ready for sending (about 60 B a segment)."""
CONTROL_BATCH_DATAGRAMS = 64
READS_PER_PEER_MAX = 8
"""Reliable reads in flight on one connection; more wait in order."""
READ_CONNECTIONS_MAX = 256
READ_REQUESTS_QUEUED_MAX = 1024
"""Requests a serving connection may have waiting; a peer beyond that is not ours and is cut off."""
READ_CONNECT_TIMEOUT_S = 3.0
READ_STALL_TIMEOUT_S = 30.0
"""A connection with requests out that brings nothing for so long is given up. Long: on a crowded link TCP may stand
still for many seconds and come back, and whether to wait is for the reader to decide."""
READ_KEEPALIVE_S = (2, 1, 4)
"""First probe of a silent peer, interval of further ones, how many unanswered ones mean that its host is gone."""
READ_PROGRESS_BYTES = 512 * KIB
"""Reads larger than this tell how far they are, so that a slow one is not taken for a dead one."""
READ_RECEIVE_LOW_WATER_BYTES = 256 * KIB
"""Wake for at least this much of a big reliable read: fewer, larger copies."""
MULTICAST_TTL = 64
RECEIVE_WINDOW_SEGMENTS_MIN = 8
"""A window below this cannot keep a link busy; a receive buffer that small loses segments, which are then read."""
SEGMENT_BYTES_SUPPORTED = (*range(SEGMENT_BLOCK_BYTES, 4096 + 1, SEGMENT_BLOCK_BYTES), SEGMENT_BYTES_MAX)
"""Those of switch programs, and what fabrics without a switch may use beside."""

# ------------------------------------------------------------------ RDMA
VERBS_CAST_QUEUE_SEGMENTS = 1024
"""Segments in the sending queue: 80 us of a 400 Gbit/s port at 4 KiB, about what a turn of the event loop takes."""
VERBS_CAST_CHAIN_SEGMENTS = 128
"""Segments posted by one call and told of by one completion."""
VERBS_RECEIVE_BLOCK_ROWS = 64
"""Rows of the receive ring that go back to the NIC by one call."""
VERBS_RECEIVE_BLOCKS_MIN = 2
VERBS_RECEIVE_BATCH_ROWS = 512
"""Messages handed on at once; their rows go back to the NIC in between."""
VERBS_READ_PIECES_MAX = 16
"""RDMA READs of one peer in flight. The NIC has a limit of its own, as a rule 16."""
VERBS_READ_WINDOW_BYTES = 4 * MIB
"""What they may bring at most, unless configured: 80 us of a 400 Gbit/s port."""
VERBS_READ_TIMEOUT_EXPONENT = 16
"""RDMA's acknowledgement timeout, 4.096 us * 2^n: 0.27 s (IBTA 9.7.6.1.3)."""
VERBS_READ_RETRIES = 6
"""So a peer that is gone fails a read after about 2 s. Not 7, which soft-RoCE takes for ever (as RNR retries do)."""
VERBS_READ_LOSSES_S = 0.025
"""How often the NIC's counters of retransmissions are looked at while reads are in flight. Drivers ask their hardware
at most every 10 ms; 25 ms are a thousand round trips, and what a loss costs of a window that is too large."""
VERBS_READ_IDLE_S = 60.0
"""A connection without reads for so long is taken down on both sides."""
VERBS_EXTENT_LINGER_S = 0.02
"""How long a peer's chunk stays pinned after a read of it: its next stripe, mostly, comes at once."""
VERBS_AGAIN_S = 1.0
"""How long after casts over RDMA broke they are begun anew."""
VERBS_COUNTERS_S = 1.0
"""How often the NIC's own counters are looked at."""

# ------------------------------------------------------------------ controller
CONTROLLER_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
STALE_DIRECTORY_S = 10.0
"""After a controller's restart, what was known before counts for so long: several times what any agent needs to be back
(its longest backoff, its snapshot)."""
FRESH_COPY_S = 5.0
"""A copy that an engine's fetch brought is announced after so long: while a prefix is being cast to many, the readers'
uplinks stay out of it, and the holder stays the one whom everybody asks."""
CONTROLLER_FAREWELL_S = 0.5
CONTROLLER_QUEUE_MAX = 65536
HEARTBEAT_S_DEFAULT = 1.0
TASK_TIMEOUT_MS = 60_000
ANNOUNCE_BATCH_CHUNKS = 2048
ANNOUNCE_DELAY_S = 0.03
"""Long enough for the chunks of one fetch or put to go out together, and not in the middle of it."""
USAGE_DELAY_S = 0.25
USAGE_EVENTS_MAX = 4096
USAGE_BATCH_EVENTS = 1000
TASKS_RUNNING_MAX = 256
NEXT_VICTIMS_TOLD = 8
"""Chunks that a full pool would lose next, named in each heartbeat."""
PREPARED_MAX = 1024
"""Chunks that are brought from disk at a time because peers or plans want them."""
PREPARE_DEADLINE_S = 30.0


def extent_bytes(size_bytes: int) -> int:
    """What a chunk takes in a pool: whole pages."""
    return -(-size_bytes // EXTENT_ALIGN_BYTES) * EXTENT_ALIGN_BYTES


assert API_KEYS_MAX * 17 + 64 <= API_FRAME_BYTES_MAX, "a full fetch must fit in one frame"
assert CAST_POLL_S_MAX <= CAST_FOLLOWER_POLL_S_MAX
assert VERBS_CAST_CHAIN_SEGMENTS <= VERBS_CAST_QUEUE_SEGMENTS
assert EXTENT_ALIGN_BYTES & (EXTENT_ALIGN_BYTES - 1) == 0
