/* egress_queue.c: packets that wait for a busy port before its egress.
 *
 * Only for programs that look at queues (PS_PROGRAM_WAITS_FOR_PORTS): egress of such a packet runs when it is its turn
 * to leave, as on a switch with output queues, so depths and times are those that it met. All other programs run
 * egress at once, and what waits for a port are finished packets. */
#ifndef P4SWITCH_EGRESS_QUEUE_H
#define P4SWITCH_EGRESS_QUEUE_H

#include "buffer.h"

struct ps_port;
struct ps_switch;

enum {
    PS_PRIORITIES_MAX = 8,            /* 3-bit priorities */
    PS_EGRESS_QUEUE_DEFAULT = 64,     /* packets, as in bmv2 */
    PS_EGRESS_QUEUE_MAX = 1024,       /* what an operator may ask for */
    PS_KERNEL_BYTES_WAITING = 106496, /* of packets that the kernel may hold for such a port; it doubles the number */
    PS_CELL_BYTES = 80,               /* of a Tofino's packet buffer: what its depths count */
};

/* A packet on its way from ingress to the ports. */
struct ps_passage {
    struct ps_buffer *frame; /* as it arrived */
    uint32_t consumed;
    int32_t length_change;
    uint32_t truncate_inverse;
    uint32_t ingress_port;
    uint32_t depth; /* of clones */
    bool last;      /* the frame is not needed after this pass: its bytes may be overwritten */
};

struct ps_queueing { /* what a packet met in the queue of its port */
    uint32_t enq_timestamp, enq_qdepth, deq_timedelta, deq_qdepth;
};

struct ps_waiting {
    struct ps_waiting *next;
    /* Runs egress. The packet stands in no queue any more. */
    void (*leave)(struct ps_port *port, struct ps_waiting *w);
    struct ps_passage in; /* owns a reference to the frame */
    uint32_t rid, enq_timestamp, enq_qdepth, enq_cells, bytes, level;
    _Alignas(64) uint8_t state[]; /* the architecture's */
};

struct ps_egress_queue {
    struct ps_waiting *head[PS_PRIORITIES_MAX], *tail[PS_PRIORITIES_MAX];
    uint32_t count, cells[PS_PRIORITIES_MAX];
    uint64_t bytes;
    uint32_t packets_max, priorities;
    uint64_t bytes_max;
};

void ps_egress_queue_init(struct ps_egress_queue *q);
/* A place for a packet of `bytes` at the end of its priority's queue, or NULL where there is no room. */
struct ps_waiting *ps_egress_queue_push(struct ps_switch *sw, struct ps_egress_queue *q, uint32_t priority,
                                        uint32_t bytes, size_t state_bytes);
struct ps_waiting *ps_egress_queue_first(const struct ps_egress_queue *q); /* NULL: none waits */
struct ps_waiting *ps_egress_queue_pop(struct ps_egress_queue *q);         /* the first one; the caller owns it */
void ps_egress_queue_clear(struct ps_switch *sw, struct ps_egress_queue *q);

#endif
