"""Limits of the server, with the relations between them."""

STREAMS_MAX = 32
"""Open StreamChannel RPCs; each holds one thread."""

ROLES_MAX = 256
"""Roles for which a stream has ever been opened."""

UNARY_WORKERS = 8
"""Threads left for unary RPCs when every stream is open."""

RPC_WORKERS = STREAMS_MAX + UNARY_WORKERS

MESSAGE_BYTES_MAX = 64 << 20
"""Largest message that a client may send (a pipeline configuration or a large batch)."""

METADATA_BYTES_DEFAULT = 7 << 10
"""Error details that any client can receive: gRPC's default is 8 KiB for all metadata."""

ERROR_DETAILS_BYTES_MAX = 60 << 10
"""Error details that are sent at all; clients made for P4Runtime take 64 KiB of metadata or more."""

STATUS_MESSAGE_BYTES_MAX = 2 << 10
"""Longest status message: gRPC escapes up to three bytes for one, and clients take 8 KiB of metadata in all."""

KEEPALIVE_MS = 1_000
"""How long a silent connection is trusted."""

KEEPALIVE_ANSWER_MS = 2_000
"""Then so long it may take to answer a ping: in all a backup is primary 3 s after a primary that stands still."""

READ_ENTITIES_PER_MESSAGE = 512
"""Entities in one ReadResponse; keeps messages well below the 4 MiB that clients accept by default."""

READ_BYTES_PER_MESSAGE_MAX = 1 << 20
"""Bytes of one ReadResponse before the next is begun (one entity may exceed it by itself)."""

STREAM_QUEUE_MAX = 8192
"""Messages waiting for one slow client; further packet-ins, digests and notifications are dropped and counted."""

DIGEST_LIST_MAX = 512
"""Digests in one list when the controller sets no limit."""

DIGEST_CACHE_MAX = 65536
"""Unacknowledged digests remembered per digest instance to suppress duplicates."""

PORT_MAX = 511
"""v1model's 9-bit ports; 511 means drop."""

INSTANCE_MAX = 0xFFFF
"""v1model's 16-bit egress_rid."""

MULTICAST_GROUP_MAX = 0xFFFF
"""v1model's 16-bit mcast_grp."""

CLONE_SESSION_MAX = 0x7FFF
"""Clone session ids that v1model programs can name; bmv2 accepts as many."""

GROUP_SLOTS_MAX = 1 << 16
"""Sum of the weights of a selector group."""

CLASS_OF_SERVICE_MAX = 7
"""v1model's 3-bit priority."""

TABLE_SIZE_DEFAULT = 1024
"""Entries of a table whose P4Info gives no size."""

FLUSH_UPDATES = 1024
"""Updates of a large Write that reach the pipeline together, unless the client wants all of them together."""

EVENT_WAIT_MS_MAX = 200
"""Longest sleep of the thread that takes digests and packet-ins from the data plane."""

assert STATUS_MESSAGE_BYTES_MAX * 3 < METADATA_BYTES_DEFAULT
assert METADATA_BYTES_DEFAULT < ERROR_DETAILS_BYTES_MAX
assert UNARY_WORKERS >= 2, "a Write must go on while a pipeline is being compiled"
assert READ_BYTES_PER_MESSAGE_MAX * 4 <= 4 << 20
