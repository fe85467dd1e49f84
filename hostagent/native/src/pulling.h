/* One connection of the thread that asks for reads: its requests, its answers, and what the caller is told. The lock is
 * the puller's, held by whoever calls, and let go of while bytes of a range are received. */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "blake3.h"
#include "pulls.h"

#define PROVERS_MAX 8
#define SCRATCH_BYTES 65536

struct told {
    struct told *next;
    struct dp_pulled pulled;
};

struct pull {
    struct pull *next;
    struct told *end; /* room to tell that it is over */
    uint64_t connection;
    uint64_t number;
    uint8_t *into; /* NULL: nobody wants it any more */
    uint64_t size_bytes;
    uint8_t *leaves; /* NULL: nobody wants them; else see proving.h, as all up to `next_proof` */
    uint32_t pieces; /* that it has, and of these: */
    uint32_t ready_pieces, taken_pieces, proven_pieces; /* here, given to a thread, hashed */
    uint32_t users;                                     /* threads that hash some of it */
    int is_held;                                        /* by its connection */
    int is_whole;                                       /* all of it came, and it waits for its leaves */
    int is_listed;
    struct pull *next_proof;
    uint32_t count;
    uint32_t sent; /* of `bytes` */
    uint8_t bytes[];
};

struct connection {
    struct connection *next;
    uint64_t id;
    int socket;
    int over;                   /* nothing is received or sent any more */
    uint32_t interest;          /* what epoll watches for */
    int low_water;              /* of the socket */
    struct pull *first, **last; /* in the order of asking; the first is the one that is being answered */
    struct pull *unsent;        /* the first of those that are not sent, whole or in part */
    uint32_t on_wire;           /* pulls before `unsent` */
    int receiving;              /* the thread writes into the first pull, without the lock */
    uint32_t head_have;
    int in_body;
    uint64_t have_bytes; /* of the first pull */
    uint64_t told_bytes;
    int64_t told_ns; /* when something was last told */
    uint64_t received_bytes;
    int64_t progress_ns;
    uint16_t load;    /* from the head of the first pull's answer */
    struct told *end; /* room to tell that it is over */
    uint8_t head[DP_PULL_ANSWER_BYTES];
};

struct dp_puller {
    struct dp_puller_config config;
    int epoll, interrupt;
    pthread_t thread;
    int started, stop;

    pthread_mutex_t lock;
    pthread_cond_t received, resumed;
    int waiting; /* threads that wait until the thread writes to nothing; it lets them go first */
    struct connection *connections;
    struct told *told, **told_last;
    int woken;
    int is_kicked; /* `interrupt` was written to since the thread last looked for requests to send */
    pthread_t provers[PROVERS_MAX];
    uint32_t provers_count;
    pthread_cond_t provable;
    struct pull *proofs;      /* of which something has come, and whose leaves are wanted */
    uint32_t unproven_pieces; /* of these, that are here and no thread has taken */
    struct blake3_mode plain;
    uint8_t scratch[SCRATCH_BYTES];
};

/* `told`: room for it, which is the puller's from here on. */
void pulling_tell(struct dp_puller *puller, struct told *told, const struct dp_pulled *pulled);

/* NULL is fine, too. */
void pulling_free_pull(struct pull *pull);

/* Sends as many requests as may be on the wire. */
void pulling_send_requests(struct dp_puller *puller, struct connection *connection);

/* NULL: there is none with this number. */
struct connection *pulling_find(const struct dp_puller *puller, uint64_t id);

/* Receives what has come, within its turn. */
void pulling_serve(struct dp_puller *puller, uint64_t id);
