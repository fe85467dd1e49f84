// Sizes of the data plane. A build sets them (-DSEGMENT_BYTES=256); these are the defaults.

#ifndef KVCAST_SIZES_P4
#define KVCAST_SIZES_P4

// Payload of one segment in bytes: a multiple of 256, 4096 at most. One value in a fabric. RDMA NICs cast 3840 at most
// (768 with an RDMA MTU of 1024, 1792 of 2048, 3840 of 4096): a segment and its header are one packet of theirs.
// bmv2 grows a packet by 512 bytes at most when it answers a GET, so it is built with 256.
#ifndef SEGMENT_BYTES
#define SEGMENT_BYTES 4096
#endif

// Members (ports with an agent) at one switch; at most 64, the width of an interest set.
#ifndef MEMBERS
#define MEMBERS 64
#endif

// Limits of requests that can be written: of JOINs and of GETs for each member's port.
#define REQUEST_LIMITS (2 * MEMBERS)

// Segments that the switch can hold (SLOTS * SEGMENT_BYTES bytes of payload).
#ifndef SLOTS
#define SLOTS 16384
#endif

// Chunks that kv_cache can name.
#ifndef CHUNKS
#define CHUNKS 4096
#endif

// Entries of the interest table; at most 65536, what a 16-bit hash can index.
#ifndef INTEREST
#define INTEREST 65536
#endif

// Entries of the interest table that one member can pay for in a time to live; twice as many live at most. A node waits
// for 128 chunks at a time (JOINED_MAX of its reader), twice that when the salt has changed, and LEAVEs get lost.
#ifndef INTEREST_OF_PORT
#define INTEREST_OF_PORT 512
#endif

// Exact replication groups: every subset of eight members, or those in use beyond.
#ifndef REPLICATION_GROUPS
#define REPLICATION_GROUPS 4096
#endif

// Unicast addresses that forwarding can know.
#ifndef ADDRESSES
#define ADDRESSES 4096
#endif

// Cells of each row of the heat sketch and of the memory of what was reported; a power of two, at most 65536.
#ifndef HEAT_CELLS
#define HEAT_CELLS 16384
#endif

#endif
