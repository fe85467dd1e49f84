/* The data path of an agent: carries cast segments between a socket, or an RDMA NIC, and the pool, without the
 * interpreter.
 *
 * facts.h, which is generated, has what the Python around it knows of datagrams, catalogs and trees. Numbers in
 * structures, addresses of hosts included, are in host order. Any thread may call any function. A function copies the
 * structures that it is given before it returns, but not the memory that pointers in them name. */
#pragma once

#include <stdint.h>

#include "facts.h"

#define DP_PUBLIC __attribute__((visibility("default")))

/* What a datagram's ICRC covers before its BTH: eight bytes of ones, IPv4, UDP; fields that routers change are
 * masked. */
#define DP_MASKED_BYTES 36
#define DP_MASKED_SOURCE 20
#define DP_MASKED_DESTINATION 24
#define DP_MASKED_SOURCE_PORT 28
#define DP_IDENTIFICATION_BITS 16
#define DP_KEY_BYTES 16

/* ---- receiving --------------------------------------------------------------------------------------------------- */

struct dp_receiver;

/* A completion queue of libibverbs, its channel, and the functions that serve both (verbs.h has their types). */
struct dp_completion_queue {
    void *queue;
    void *channel;
    void *poll;
    void *request_notify;
    void *get_event;
    void *acknowledge;
    int32_t fd; /* of the channel, non-blocking */
    uint32_t reserved;
};

/* A UD queue pair that receives into rows of a ring: 40 bytes in place of a GRH, then the message. */
struct dp_receive_queue {
    struct dp_completion_queue completions;
    void *queue_pair;
    void *post;     /* posts receives */
    void *requests; /* `rows_count` of them, all posted; each names its row as work id. Their links are set here */
    uint8_t *rows;
    uint32_t rows_count;
    uint32_t row_bytes;
    uint32_t number; /* of the queue pair */
    uint32_t reserved;
};

struct dp_receiver_config {
    int32_t socket; /* non-blocking; IP_RECVTOS and SO_RXQ_OVFL set. Not used with a queue */
    int32_t wake;   /* an eventfd; the receiver writes to it when the caller should drain */
    uint32_t own;   /* casts from this address are ignored, unless the switch sends them */
    uint32_t qkey;
    uint32_t source_qpn; /* of senders whose IP identification is 0 */
    uint32_t segment_bytes;
    uint32_t from_switch_dscp;
    uint32_t by_groups; /* casts come to several groups, some unasked; the socket has IP_PKTINFO set */
    uint32_t identification[DP_IDENTIFICATION_BITS][2]; /* reduced basis (leading bit, pattern): kvproto.wire.icrc */
    uint8_t masked[DP_MASKED_BYTES];                    /* with zeros where source and source port go */
};

/* Counters, in this order; only ever incremented. */
enum dp_count {
    DP_RECEIVED,    /* good segments */
    DP_FROM_SWITCH, /* of those, with the switch's code point */
    DP_LOOKS,       /* receive calls that brought something */
    DP_OVERFLOWS,   /* datagrams that the kernel dropped at the socket; times that a NIC had no row left */
    DP_DUPLICATES,  /* good segments that were here already */
    DP_OTHER_SIZE,  /* good segments of an expected chunk whose segment count differs */
    DP_OWN,
    DP_UNASKED, /* of chunks that are not expected, not looked at any further */
    DP_UNICAST, /* where casts come by groups: not to a group, of this network or another */
    DP_TRUNCATED,
    DP_OVERSIZED,
    DP_OPCODE,
    DP_QKEY,
    DP_VERSION,
    DP_OP,
    DP_RESERVED,
    DP_SEGMENT,
    DP_LENGTH,
    DP_ICRC,
    DP_COUNTS
};

/* Segments of one chunk from one source, in order of arrival. */
struct dp_report {
    uint8_t key[DP_KEY_BYTES];
    uint64_t ticket; /* of the chunk's registration; 0: the chunk was not expected, and its segments are lost */
    uint32_t source;
    uint32_t segments; /* in the chunk */
    uint32_t first;    /* index of its first one in dp_drained.segments */
    uint32_t count;
    uint32_t from_switch;
    uint32_t reserved;
};

enum dp_broken {
    DP_NOT_BROKEN,
    DP_BROKEN_QUEUE_PAIR,  /* another one can take its place */
    DP_BROKEN_COMPLETIONS, /* the queue, its channel or the whole device: nothing comes any more */
};

struct dp_drained {
    const struct dp_report *reports;
    const uint32_t *segments;
    uint32_t reports_count;
    uint32_t segments_count;
    uint32_t broken; /* enum dp_broken */
    uint32_t reserved;
};

/* `queue`: where datagrams come from; NULL: from the socket. Returns NULL when there is no memory. */
DP_PUBLIC struct dp_receiver *dp_receiver_new(const struct dp_receiver_config *config,
                                              const struct dp_receive_queue *queue);

/* A fresh queue pair on the same completion queue, with all rows posted, takes the place of one that broke. */
DP_PUBLIC void dp_receiver_renew(struct dp_receiver *receiver, void *queue_pair, uint32_t number);

/* Begins to receive in its own thread. Returns 0 or an errno. */
DP_PUBLIC int dp_receiver_start(struct dp_receiver *receiver);

/* From now on the receiver writes segments of this chunk to `place`: every segment s for which missing[s] is not 0.
 * `missing` belongs to the caller, who may clear entries at any time. Returns the registration's ticket, 0 when there
 * is no memory. */
DP_PUBLIC uint64_t dp_receiver_expect(struct dp_receiver *receiver, const uint8_t *key, uint8_t *place,
                                      uint64_t size_bytes, const uint8_t *missing);

/* After this call the receiver touches neither `place` nor `missing` of that registration. */
DP_PUBLIC void dp_receiver_forget(struct dp_receiver *receiver, uint64_t ticket);

/* After this call no segment is being written that `missing` denied before it. */
DP_PUBLIC void dp_receiver_settle(struct dp_receiver *receiver);

/* Receives everything that waits in the socket, or in the queue, at this moment. */
DP_PUBLIC void dp_receiver_drain_intake(struct dp_receiver *receiver);

/* What arrived since the last call; valid until the next call. Call it from one thread at a time. */
DP_PUBLIC void dp_receiver_drain(struct dp_receiver *receiver, struct dp_drained *drained);

/* How long, and up to how many segments, arrivals may wait for the next drain. */
DP_PUBLIC void dp_receiver_set_patience(struct dp_receiver *receiver, int64_t patience_ns, uint32_t segments);

/* DP_COUNTS running totals. */
DP_PUBLIC void dp_receiver_read_counts(struct dp_receiver *receiver, uint64_t *counts);

/* Ends the thread and everything else; the descriptors stay open. */
DP_PUBLIC void dp_receiver_free(struct dp_receiver *receiver);

/* ---- sending ----------------------------------------------------------------------------------------------------- */

struct dp_sender;

#define DP_PREFIX_BYTES_MAX 64

#define DP_GROUPS_MAX 64

/* Where a datagram goes, and what that changes in its ICRC: a CRC is linear, so XOR makes one from the other. */
struct dp_group {
    uint32_t address;
    uint32_t difference;
};

/* A run of segments of one chunk. Each leaves once to each group, and has its outcome when it has left to the last. */
struct dp_job {
    const uint8_t *chunk;
    uint64_t size_bytes;
    uint64_t id; /* the caller's */
    uint32_t segment_bytes;
    uint32_t first;
    uint32_t count;
    uint32_t groups_count;
    uint32_t icrc_seed; /* CRC of the bytes before the BTH, where the difference is 0 */
    uint16_t port;
    uint16_t prefix_bytes;   /* of the bytes before each BTH, 0: none */
    uint16_t prefix_segment; /* where in it the segment's number goes, four bytes */
    uint8_t prefix[DP_PREFIX_BYTES_MAX];
    uint8_t header[DP_HEADER_BYTES]; /* BTH, DETH and chunk header of the chunk's first segment, as if it were full */
    struct dp_group groups[DP_GROUPS_MAX];
};

/* What became of some segments of a job. */
struct dp_outcome {
    uint64_t id;
    uint32_t sent;
    uint32_t failed;
    uint32_t over;    /* no outcome of this job follows */
    uint32_t refused; /* errno with which the kernel refused to cut a buffer, told once: segments leave one by one */
};

/* Sizes in bytes of all structures of this header, asker.h, gets.h, pulls.h and reads.h, in the order in which they are
 * declared: code that reads the headers compares them. */
extern DP_PUBLIC const uint32_t dp_structure_bytes[];

/* `socket`: UDP, its datagrams have checksums, or the kernel cuts no buffers. `wake`: an eventfd; the sender writes to it
 * when outcomes wait. `rate_bytes_s`: of the link, as far as that is known; the sender measures it. With several
 * `threads` segments may overtake each other. Returns NULL when there is no memory. */
DP_PUBLIC struct dp_sender *dp_sender_new(int socket, int wake, uint64_t rate_bytes_s, uint32_t threads);

/* Begins to send in its own threads. Returns 0 or an errno. */
DP_PUBLIC int dp_sender_start(struct dp_sender *sender);

/* Queues a job. The chunk must not change until all its segments have an outcome. Returns 0 or ENOMEM. */
DP_PUBLIC int dp_sender_add(struct dp_sender *sender, const struct dp_job *job);

/* All segments not yet handed to the socket fail. */
DP_PUBLIC void dp_sender_give_up(struct dp_sender *sender);

/* Takes up to `room` outcomes, oldest first; returns how many. */
DP_PUBLIC uint32_t dp_sender_drain(struct dp_sender *sender, struct dp_outcome *outcomes, uint32_t room);

/* Ends the thread and forgets all jobs; the descriptors stay open. */
DP_PUBLIC void dp_sender_free(struct dp_sender *sender);

/* ---- sending through a NIC --------------------------------------------------------------------------------------- */

struct dp_queue_sender;

/* A queue pair that sends, in its completion queue alone. */
struct dp_send_queue {
    struct dp_completion_queue completions;
    void *queue_pair;
    void *post;       /* posts sends */
    uint32_t number;  /* of the queue pair */
    uint32_t depth;   /* work requests that fit it */
    uint32_t run_max; /* of them, those posted by one call, with one completion */
    uint32_t reserved;
};

/* A run of work requests, from one of an array whose links lead through it. They leave as they are; their links, flags
 * and work ids belong to the sender until the run is over. */
struct dp_chain {
    void *requests; /* the array */
    uint64_t id;    /* the caller's */
    uint32_t first;
    uint32_t count;
};

/* `wake`: as for dp_sender_new. Returns NULL when there is no memory. */
DP_PUBLIC struct dp_queue_sender *dp_queue_sender_new(const struct dp_send_queue *queue, int wake);

/* Begins to send in its own thread. Returns 0 or an errno. */
DP_PUBLIC int dp_queue_sender_start(struct dp_queue_sender *sender);

/* Queues a run. Returns 0 or ENOMEM. */
DP_PUBLIC int dp_queue_sender_add(struct dp_queue_sender *sender, const struct dp_chain *chain);

/* All segments that the NIC has not confirmed fail. Destroy the queue pair before their memory changes. */
DP_PUBLIC void dp_queue_sender_give_up(struct dp_queue_sender *sender);

/* As dp_sender_drain. `status`: what a completion said that broke the queue pair, 0: none did. */
DP_PUBLIC uint32_t dp_queue_sender_drain(struct dp_queue_sender *sender, struct dp_outcome *outcomes, uint32_t room,
                                         enum dp_broken *broken, uint32_t *status);

/* A fresh queue pair on the same completion queue takes the place of one that broke. */
DP_PUBLIC void dp_queue_sender_renew(struct dp_queue_sender *sender, void *queue_pair, uint32_t number);

/* Ends the thread and forgets all runs. */
DP_PUBLIC void dp_queue_sender_free(struct dp_queue_sender *sender);

/* ---- for tests --------------------------------------------------------------------------------------------------- */

DP_PUBLIC uint32_t dp_crc(uint32_t crc, const void *bytes, uint64_t size);

/* How many datagrams of this size leave by one buffer after the socket was full at these moments, and had taken so many
 * bytes since the one before (pace.h). */
DP_PUBLIC uint32_t dp_pace(uint64_t rate_bytes_s, const int64_t *full_ns, const uint64_t *bytes, uint32_t moments,
                           uint32_t datagram_bytes);

/* Uses the instructions of this enum cpu_level (kvcodec/src/cpu.h), or of the highest below it that the processor has;
 * returns which. CPU_BASE uses nothing that not every processor of the architecture has. The object uses all that there
 * is when it is loaded; nothing else may run meanwhile. */
DP_PUBLIC int dp_use_level(int level);
