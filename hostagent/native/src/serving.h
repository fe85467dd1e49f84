/* One connection of the thread that answers reads: its requests, its answers, and what readers wait for. The lock is
 * the server's, and held by whoever calls. */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "arriving.h"
#include "leases.h"
#include "reads.h"

#define ANSWERS 64 /* of a connection: being sent, and kept until acknowledged; more stay in its socket */

struct answer {
    uint64_t request;
    uint64_t offset; /* in the pool, of what is to be sent */
    uint64_t left_bytes;
    uint64_t end_bytes;        /* of the connection, when all of this had been handed to the socket */
    const struct arriving *of; /* a chunk that is arriving; its bytes are copied. NULL: a leased one */
    uint32_t lease;
    uint8_t head_sent;
    uint8_t copied;
    uint8_t head[DP_ANSWER_BYTES];
};

struct connection {
    struct connection *next;
    uint64_t id;
    int socket;
    int returning; /* nothing more is read */
    enum dp_returned_why why;
    uint32_t interest;           /* what epoll watches for */
    uint32_t have_bytes;         /* in `bytes` */
    uint32_t first, unsent, end; /* answers first..unsent are kept, unsent..end are to be sent; modulo ANSWERS */
    uint64_t sent_bytes, acknowledged_bytes;
    uint64_t asked_bytes, queued_bytes;
    int64_t used_ns;
    struct answer answers[ANSWERS];
    uint8_t bytes[DP_READ_BYTES];
};

struct dp_server {
    struct dp_server_config config;
    int epoll, interrupt;
    pthread_t thread;
    int started, stop;

    pthread_mutex_t lock;
    struct leases leases;
    struct arrivings arrivings;
    struct connection *connections;
    struct connection *returned;
    struct dp_reads reads;
    uint64_t other_bytes;
    uint32_t other_readers;
    int64_t other_ns; /* when those were said */
    int64_t since_ns; /* since when something waits to be drained, 0: nothing */
    int64_t tick_ns;  /* of the next look at all connections */
    int woken;
};

/* Nothing more is read from a connection, which goes back to the caller when its time has come. */
void serving_give_back(struct connection *connection, enum dp_returned_why why);

/* Lets go of what the reader has. */
void serving_look_at_acknowledged(struct dp_server *server, struct connection *connection);

/* A chunk is no longer arriving: answers with its bytes go on if it is there whole, and else end with their
 * connections. */
void serving_arrived(struct dp_server *server, const struct arriving *chunk);

/* The server has nothing to do with a connection any more. */
void serving_forget(struct dp_server *server, struct connection *connection);

/* Whether a connection has answers that its reader does not have. */
int serving_waits(const struct connection *connection);

/* Has the caller drain. */
void serving_wake(struct dp_server *server);

/* Everything that can be done for a connection now, within its turn. */
void serving_serve(struct dp_server *server, struct connection *connection, int is_readable);
