/* events.c: what Python drains. The only part with locks of its own (switch.h). */
#ifndef P4SWITCH_EVENTS_H
#define P4SWITCH_EVENTS_H

#include <pthread.h>
#include <sys/uio.h>

#include "common.h"

enum ps_event_kind {
    PS_EVENT_DIGEST = 1,
    PS_EVENT_PACKET_IN = 2,
    PS_EVENT_IDLE = 3,
    PS_EVENT_LOG = 4,
    PS_EVENT_PORT = 5,
};

/* The header that Python reads; `length` bytes follow, padded to 8. */
struct ps_event {
    uint32_t total; /* bytes of this record with padding */
    uint32_t kind;
    uint64_t pipeline; /* serial */
    uint64_t at_us;
    uint32_t a;
    uint32_t b;
    uint32_t length;
    uint32_t pad;
};

struct ps_event_ring {
    uint8_t *bytes;
    uint64_t capacity, head, tail; /* head: the next record to read; monotonic */
    uint64_t dropped;
};

struct ps_events {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    struct ps_event_ring rings[3]; /* for digests, packet-ins and the rest: a flood of one pushes out no other */
    uint64_t written[6];           /* by kind */
    uint64_t dropped[6];
    bool closed;
};

void ps_events_init(struct ps_events *e);
void ps_events_free(struct ps_events *e);
void ps_events_post(struct ps_events *e, uint32_t kind, uint64_t pipeline, uint64_t at_us, uint32_t a, uint32_t b,
                    const struct iovec *parts, int part_count);

#endif
