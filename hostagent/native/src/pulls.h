/* Asks peers for ranges of chunks and puts the answers where they belong (hostagent/transport/read_protocol.py), in a
 * thread of its own.
 *
 * The caller makes connections and lends them. It decides what is asked for, and learns what came when it drains. Any
 * thread may call any function, but `dp_puller_free`, which comes last. */
#pragma once

#include <stdint.h>

#include "datapath.h"

#define DP_PULL_ANSWER_BYTES 24
#define DP_PULL_MAGIC_BYTES 4

struct dp_puller;

struct dp_puller_config {
    int32_t wake;                       /* an eventfd; written to when the caller should drain */
    uint32_t window;                    /* requests of a connection that may be unanswered; more wait in order */
    uint32_t low_water_bytes;           /* of a large range, at least so much is received at a time */
    uint32_t turn_bytes;                /* received from one connection before others have their turn */
    uint64_t tell_bytes;                /* of a range that has come in part, the caller hears in steps of so much, */
    int64_t tell_ns;                    /* when it has heard nothing of the connection for so long */
    uint8_t magic[DP_PULL_MAGIC_BYTES]; /* what an answer begins with */
    uint8_t version;                    /* what follows */
    uint8_t provers;                    /* threads that hash what came; 0: nobody does */
    uint8_t reserved[2];
};

/* One request. */
struct dp_pull {
    uint64_t number; /* as in the request; of no other on the connection */
    uint8_t *into;   /* `size_bytes`, which nobody else writes to until the pull is over or cancelled */
    uint64_t size_bytes;
    uint8_t *leaves;      /* where the BLAKE3 of each of its pieces (`hostagent.tree`) goes; NULL: nobody wants them.
                            * Nobody writes there once the pull is over or cancelled */
    const uint8_t *bytes; /* to be sent: the request, and before it what the caller likes */
    uint32_t bytes_count;
    uint32_t reserved;
};

enum dp_pulled_what {
    DP_PULLED_PART, /* `have_bytes` are there; more will come */
    DP_PULLED_ALL,
    DP_PULLED_REFUSED,   /* by the peer, with `status`, which is not 0 */
    DP_PULLED_MALFORMED, /* from here on: of the connection, on which nothing comes any more */
    DP_PULLED_VERSION,   /* the peer answers with another version, `status` */
    DP_PULLED_ENDED,
};

struct dp_pulled {
    uint64_t connection;
    uint64_t number;
    uint64_t have_bytes;
    uint16_t load; /* from the answer */
    uint8_t what;
    uint8_t status;
    uint32_t is_proven; /* of DP_PULLED_ALL: the leaves that were wanted are there */
};

/* Of a connection, at this moment. */
struct dp_pulls {
    uint64_t received_bytes; /* of ranges, in all */
    int64_t progress_ns;     /* CLOCK_MONOTONIC: when something was last received, or asked for after a pause */
    uint64_t unwanted_bytes; /* to come, where nobody wants any of them */
    uint32_t unanswered;     /* requests, sent or not */
    uint32_t reserved;
};

/* Returns NULL when there is no memory or no descriptor. */
DP_PUBLIC struct dp_puller *dp_puller_new(const struct dp_puller_config *config);

/* Begins in its own thread. Returns 0 or an errno. */
DP_PUBLIC int dp_puller_start(struct dp_puller *puller);

/* Lends a connected, non-blocking socket. `id`: the caller's, of no other connection, not 0. Returns 0 or an errno. */
DP_PUBLIC int dp_puller_lend(struct dp_puller *puller, int socket, uint64_t id);

/* Asks for all of them, in order. Returns 0, or ENOMEM: for none. A connection that is over has told so, and nothing
 * comes of it. */
DP_PUBLIC int dp_puller_ask(struct dp_puller *puller, uint64_t id, const struct dp_pull *pulls, uint32_t count);

/* After this call nothing of a pull is told, and nobody writes to where it goes. */
DP_PUBLIC void dp_puller_cancel(struct dp_puller *puller, uint64_t id, uint64_t number);

DP_PUBLIC void dp_puller_look(struct dp_puller *puller, uint64_t id, struct dp_pulls *pulls);

/* After this call the socket is the caller's again, and nothing of its pulls is told or written. */
DP_PUBLIC void dp_puller_end(struct dp_puller *puller, uint64_t id);

/* Takes what there is to tell, at most `room`; returns how many. What is over is told once, in order. */
DP_PUBLIC uint32_t dp_puller_drain(struct dp_puller *puller, struct dp_pulled *pulled, uint32_t room);

/* Ends the thread; connections stay open. */
DP_PUBLIC void dp_puller_free(struct dp_puller *puller);
