/* Asks peers' memory for ranges of bytes by RDMA READs, in a thread of its own: takes completions and posts the next
 * pieces of every range, as many as may be in flight. How many those are is the caller's to say, who hears of what
 * came; a peer is a queue pair, and its ranges are read in the order in which they were added.
 *
 * Any thread may call any function. */
#pragma once

#include <stdint.h>

#include "datapath.h"

#define DP_ASK_ROOM_MIN 64

struct dp_asker;

struct dp_asker_config {
    struct dp_completion_queue completions; /* of all peers */
    void *post;                             /* posts sends */
    int32_t wake;                           /* an eventfd; written when there is something to drain */
    uint32_t reserved;
    const uint32_t *local_keys; /* of the memory that reads go to, a key for each step_bytes of it */
    uint64_t into;              /* where that memory begins */
    uint64_t step_bytes;
};

/* What may be in flight from a peer. */
struct dp_allowance {
    uint64_t window_bytes;
    uint32_t piece_bytes; /* at most, of one READ; at most the window */
    uint32_t reserved;
    int64_t quick_ns; /* pieces that were done within this teach the caller nothing: they wait to be drained */
};

/* Bytes of a peer's memory, and where they go. */
struct dp_range {
    uint64_t id; /* the caller's */
    uint64_t into;
    uint64_t from;
    uint64_t size_bytes;
    uint32_t remote_key;
    uint32_t reserved;
};

enum dp_came_what {
    DP_CAME_BYTES,  /* of a range, since the last time */
    DP_CAME_PIECE,  /* that was not quick, with what its delay says; its bytes count there, too */
    DP_CAME_BROKEN, /* the peer's queue pair, and nothing is posted to it any more */
};

struct dp_came {
    uint64_t peer;
    uint64_t id; /* of the range */
    uint64_t bytes;
    uint64_t in_flight_bytes; /* from the peer, until the piece came */
    int64_t posted_ns;
    int64_t done_ns;
    uint32_t what;
    uint32_t status; /* of the completion that broke the queue pair; 0: it took no READ */
};

/* What a peer's NIC has to do. */
struct dp_asked {
    uint64_t in_flight_bytes;
    int64_t oldest_ns; /* when the oldest piece in flight was posted; 0: none is */
    int64_t done_ns;   /* when the last one was done; 0: none was */
};

/* Returns NULL when there is no memory. */
DP_PUBLIC struct dp_asker *dp_asker_new(const struct dp_asker_config *config);

/* Begins to take completions in its own thread. Returns 0 or an errno. */
DP_PUBLIC int dp_asker_start(struct dp_asker *asker);

/* A queue pair, ready to send. Returns its number as a peer, 0 when there is no memory. */
DP_PUBLIC uint64_t dp_asker_begin(struct dp_asker *asker, void *queue_pair, uint32_t number,
                                  const struct dp_allowance *allowance);

/* From now on. */
DP_PUBLIC void dp_asker_allow(struct dp_asker *asker, uint64_t peer, const struct dp_allowance *allowance);

/* Reads a range, after those that were added before. Returns 0 or ENOMEM. */
DP_PUBLIC int dp_asker_add(struct dp_asker *asker, uint64_t peer, const struct dp_range *range);

/* The range is not wanted any more. Returns 0 when the NIC does nothing for it, and never will; else the number of its
 * pieces in flight: only the end of the queue pair ends those. */
DP_PUBLIC uint32_t dp_asker_withdraw(struct dp_asker *asker, uint64_t peer, uint64_t id);

/* After this call nothing is posted to the peer's queue pair, and nothing is told of it. */
DP_PUBLIC void dp_asker_end(struct dp_asker *asker, uint64_t peer);

DP_PUBLIC void dp_asker_look(struct dp_asker *asker, uint64_t peer, struct dp_asked *asked);

/* Takes what has completed, whether there was an event or not. */
DP_PUBLIC void dp_asker_take(struct dp_asker *asker);

/* Tells what came, up to `room` of it (at least DP_ASK_ROOM_MIN), a peer's pieces before its bytes; returns how much, 0:
 * that was all. `broken`: 1 when no completions come any more. */
DP_PUBLIC uint32_t dp_asker_drain(struct dp_asker *asker, struct dp_came *came, uint32_t room, uint32_t *broken);

/* Ends the thread and everything else; the queue pairs are the caller's. */
DP_PUBLIC void dp_asker_free(struct dp_asker *asker);
