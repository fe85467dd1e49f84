/* Serves lone gets (hostagent.lone_gets): engines' requests for one small chunk that one peer has, in a thread of its
 * own.
 *
 * The caller says which chunks a peer has, and lends connections to peers. The thread asks the peer, receives the chunk
 * into a buffer of its own, compares it with its digest, copies it to where the engine reads, and answers. It declines
 * whatever it is not sure of: engines then ask the agent as they always did. The caller hears of it afterwards and
 * takes the chunk from the buffer. One request at a time: a peer that does not answer in time is asked for nothing more
 * until it has answered, or is left. Any thread may call any function, but `dp_getter_free`, which comes last. */
#pragma once

#include <stdint.h>

#include "datapath.h"

#define DP_GET_PEERS 256
#define DP_GET_DIGEST_BYTES 32
#define DP_GET_REQUEST_HEAD_BYTES 8
#define DP_GET_ANSWER_HEAD_BYTES 6

struct dp_getter;

struct dp_getter_config {
    int64_t wait_ns;        /* for a peer's answer */
    int64_t spin_ns;        /* of these, without sleeping */
    int64_t owed_ns;        /* a peer that has owed an answer for so long is left */
    int64_t tell_ns;        /* what was got may wait so long */
    uint64_t chunks_max;    /* offered at a time */
    const uint8_t *context; /* of the derivation of a chunk's digest from its leaf */
    uint32_t context_bytes;
    uint32_t buffers;                                /* chunks that the caller has not taken yet */
    int32_t wake;                                    /* an eventfd; written to when the caller should drain */
    uint8_t request_head[DP_GET_REQUEST_HEAD_BYTES]; /* what a READ begins with */
    uint8_t answer_head[DP_GET_ANSWER_HEAD_BYTES];   /* what its answer begins with */
    uint8_t reserved[6];
};

/* Counters, in this order; only ever incremented: what became of requests. */
enum dp_get_count {
    DP_GET_SERVED,
    DP_GET_UNKNOWN, /* no peer is known to have it */
    DP_GET_UNCONNECTED,
    DP_GET_DEAR,    /* computing it may be quicker */
    DP_GET_FULL,    /* the caller is behind */
    DP_GET_REFUSED, /* by the peer, or it broke off */
    DP_GET_LATE,    /* the peer has not answered in time, this request or one before */
    DP_GET_WRONG,   /* bytes with another digest */
    DP_GET_COUNTS
};

/* A chunk that an engine has by now. */
struct dp_got {
    uint8_t key[DP_KEY_BYTES];
    uint8_t digest[DP_GET_DIGEST_BYTES];
    uint64_t engine;
    uint64_t size_bytes;
    int64_t took_ns;
    const void *bytes; /* until `dp_getter_give_back` */
    uint32_t buffer;
    uint32_t peer;
};

/* Returns NULL when there is no memory or no descriptor. */
DP_PUBLIC struct dp_getter *dp_getter_new(const struct dp_getter_config *config);

/* Begins in its own thread. Returns 0 or an errno. */
DP_PUBLIC int dp_getter_start(struct dp_getter *getter);

/* Serves an engine: `socket`, a non-blocking SOCK_SEQPACKET, is the getter's from now on, also after an error;
 * `landing`: DP_LONE_SLOTS times DP_LONE_SLOT_BYTES. `id`: the caller's, of no other engine, not 0. Returns 0 or an
 * errno. */
DP_PUBLIC int dp_getter_admit(struct dp_getter *getter, int socket, uint8_t *landing, uint64_t id);

/* After this call the getter touches neither socket nor landing, if it had them. */
DP_PUBLIC void dp_getter_leave(struct dp_getter *getter, uint64_t id);

/* `key` is `size_bytes` long, at most DP_LONE_SLOT_BYTES, and can be had from a peer. Returns 0, ENOMEM or ENOSPC. */
DP_PUBLIC int dp_getter_offer(struct dp_getter *getter, const uint8_t *key, uint64_t size_bytes, const uint8_t *digest,
                              uint32_t peer);

DP_PUBLIC void dp_getter_withdraw(struct dp_getter *getter, const uint8_t *key);

/* A non-blocking connection to a peer on which nothing is to come; it is the getter's from now on. */
DP_PUBLIC void dp_getter_connect(struct dp_getter *getter, uint32_t peer, int socket);

/* Nothing is asked of a peer until there is another connection to it. */
DP_PUBLIC void dp_getter_part(struct dp_getter *getter, uint32_t peer);

/* A chunk takes so long. */
DP_PUBLIC void dp_getter_set_costs(struct dp_getter *getter, double overhead_ns, double ns_per_byte);

/* Takes what was got, oldest first, at most `room`; returns how many. */
DP_PUBLIC uint32_t dp_getter_drain(struct dp_getter *getter, struct dp_got *got, uint32_t room);

/* Peers that were wanted and to which there is no connection, each once until it is connected again. */
DP_PUBLIC uint32_t dp_getter_take_wishes(struct dp_getter *getter, uint32_t peers[DP_GET_PEERS]);

/* The caller has taken a chunk. */
DP_PUBLIC void dp_getter_give_back(struct dp_getter *getter, uint32_t buffer);

/* DP_GET_COUNTS running totals. */
DP_PUBLIC void dp_getter_read_counts(struct dp_getter *getter, uint64_t *counts);

/* Ends the thread and all connections. */
DP_PUBLIC void dp_getter_free(struct dp_getter *getter);

/* The digest of a chunk, as the getter computes it. */
DP_PUBLIC void dp_get_digest(const uint8_t *context, uint32_t context_bytes, const uint8_t *bytes, uint64_t size_bytes,
                             uint8_t *digest);
