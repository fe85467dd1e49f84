/* Answers reliable reads of chunks in the pool (hostagent/transport/read_protocol.py), in a thread of its own.
 *
 * The caller accepts connections, finds out who reads, and lends those to the thread whose readers may have
 * everything. The thread answers READs of chunks that it finds in the catalog, and of proven pieces of those that are
 * still arriving. A connection that brings anything else,
 * or ends, goes back to the caller with the bytes that are not answered, when the answers before have left. Any thread
 * may call any function. */
#pragma once

#include <stdint.h>

#include "datapath.h"

#define DP_REQUEST_BYTES 48
#define DP_ANSWER_BYTES 24
#define DP_REQUEST_HEAD_BYTES 8
#define DP_ANSWER_HEAD_BYTES 6
#define DP_LEVELS 1024
#define DP_READ_BYTES (64 * DP_REQUEST_BYTES) /* taken from a socket by one call */
#define DP_READ_KEYS 1024

struct dp_server;

struct dp_server_config {
    const uint8_t *pool;
    uint64_t pool_bytes;
    const uint64_t *catalog;                     /* of the pool's chunks */
    uint64_t *table;                             /* of leases, the server's own */
    const uint64_t *levels;                      /* DP_LEVELS amounts that `wanted` and `load` can say, ascending */
    int64_t stall_ns;                            /* a reader that takes in nothing for so long is given back */
    int64_t tell_ns;                             /* figures and keys may wait so long */
    int32_t pool_file;                           /* to send from; -1: sendfile cannot read it */
    int32_t wake;                                /* an eventfd; written to when the caller should drain */
    uint8_t request_head[DP_REQUEST_HEAD_BYTES]; /* what a READ begins with */
    uint8_t answer_head[DP_ANSWER_HEAD_BYTES];   /* what its answer begins with */
    uint8_t reserved[2];
};

/* Why a connection came back. */
enum dp_returned_why {
    DP_RETURNED_UNKNOWN, /* its next request is the caller's */
    DP_RETURNED_ENDED,   /* by the reader, or it broke; what was asked for is not answered any more */
    DP_RETURNED_STALLED,
};

struct dp_returned {
    uint64_t id;
    uint32_t why;
    uint32_t size_bytes;
    uint8_t bytes[DP_READ_BYTES]; /* that came and are not answered */
};

struct dp_reads {
    uint64_t sent_bytes;   /* of chunks, in all */
    uint64_t queued_bytes; /* that readers wait for, at this moment */
    uint32_t readers;      /* who wait for them */
    uint32_t keys_count;
    uint8_t keys[DP_READ_KEYS]
                [DP_KEY_BYTES]; /* whose first bytes were asked for since the last call; of more, the last are lost */
};

/* Pieces of a chunk that is still arriving. */
struct dp_part {
    uint8_t key[DP_KEY_BYTES];
    uint64_t offset; /* of the chunk in the pool */
    uint64_t size_bytes;
    uint64_t first; /* piece */
    uint64_t count;
};

/* Returns NULL when there is no memory or no descriptor. */
DP_PUBLIC struct dp_server *dp_server_new(const struct dp_server_config *config);

/* Begins to answer in its own thread. Returns 0 or an errno. */
DP_PUBLIC int dp_server_start(struct dp_server *server);

/* Lends a connection, a non-blocking socket. `id`: the caller's, of no other connection. Returns 0 or an errno. */
DP_PUBLIC int dp_server_lend(struct dp_server *server, int socket, uint64_t id);

/* Has a connection come back once what it has asked for is answered. */
DP_PUBLIC void dp_server_recall(struct dp_server *server, uint64_t id);

/* After this call the server does not touch the connection, which does not come back. */
DP_PUBLIC void dp_server_end(struct dp_server *server, uint64_t id);

/* Whether a connection waits for nothing, and when (CLOCK_MONOTONIC) it last asked or took in something. 0 where the
 * server does not have it. */
DP_PUBLIC int dp_server_is_idle(struct dp_server *server, uint64_t id, int64_t *used_ns);

/* What the caller's side has queued for others than the server's readers; it counts for `tell_ns` and as much again. */
DP_PUBLIC void dp_server_set_other_load(struct dp_server *server, uint64_t bytes, uint32_t readers);

/* Pieces may be read from now on: nobody writes to them any more. Returns 0 or ENOMEM. */
DP_PUBLIC int dp_server_show(struct dp_server *server, const struct dp_part *part);

/* Once it returns, nothing of a chunk is read because it is arriving. If the catalog has it, answers go on; else the
 * connections of those who read it come back as ended. */
DP_PUBLIC void dp_server_hide(struct dp_server *server, const uint8_t *key);

/* Takes the next connection that has come back; 0: there is none. */
DP_PUBLIC int dp_server_take_returned(struct dp_server *server, struct dp_returned *returned);

DP_PUBLIC void dp_server_drain(struct dp_server *server, struct dp_reads *reads);

/* Ends the thread; connections stay open. */
DP_PUBLIC void dp_server_free(struct dp_server *server);
