/* Where a receiver's datagrams come from: a socket, or the queue pair of an RDMA NIC. Callers hold a lock. */
#pragma once

#include <stdint.h>

#include "datapath.h"
#include "wire.h"

#define INTAKE_BATCH 64 /* datagrams taken by one call at most */

/* A datagram, until the next `take`. */
struct intake_row {
    uint8_t *bytes;  /* its BTH; where a NIC has taken that off, the place at which it would begin */
    uint32_t length; /* from there */
    uint32_t source;
    uint32_t destination; /* 0: the fabric's group */
    uint16_t port;
    int from_switch;
    enum dp_count verdict;
};

struct intake {
    const struct intake_kind *kind;
    int fd;             /* readable when there may be something to take */
    uint32_t overflows; /* how often something was lost for want of room, as far as that is known; wraps */
    enum dp_broken broken;
    int has_more; /* the last `take` may have left something */
};

struct intake_kind {
    /* Takes up to INTAKE_BATCH datagrams that are there, without waiting; returns how many. */
    uint32_t (*take)(struct intake *intake, struct intake_row *rows);
    enum dp_count (*check)(struct wire *wire, const struct intake_row *row);
    /* Whether nothing is there, and `fd` becomes readable when something comes. */
    int (*may_wait)(struct intake *intake);
    /* `fd` was readable. */
    void (*wake)(struct intake *intake);
    void (*free)(struct intake *intake);
};

/* Both return NULL when there is no memory. */
struct intake *socket_intake_new(int socket, uint32_t from_switch_dscp);
struct intake *queue_intake_new(const struct dp_receive_queue *queue, uint32_t from_switch_dscp);

/* A fresh queue pair, with all rows posted, takes the place of one that broke. */
void queue_intake_renew(struct intake *intake, void *queue_pair, uint32_t number);
