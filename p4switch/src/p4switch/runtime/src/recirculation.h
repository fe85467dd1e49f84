/* recirculation.c: ports of TNA that lead from egress back to ingress. */
#ifndef P4SWITCH_RECIRCULATION_H
#define P4SWITCH_RECIRCULATION_H

#include "buffer.h"

struct ps_switch;

/* A port of TNA that leads from egress back to ingress: queues with a common limit, in front of a line with a limited
 * rate. The line takes from each queue that has packets in turn. */
enum { PS_RECIRCULATION_QUEUES = 32, PS_NO_NODE = UINT32_MAX };

struct ps_recirculating {
    struct ps_tx tx;
    uint32_t next; /* node in the same queue, or free */
};

struct ps_recirculation {
    uint32_t port;
    struct ps_recirculating *nodes; /* PS_RECIRCULATING_MAX; NULL until one is needed */
    uint32_t free_node, count;
    struct {
        uint32_t first, last;
    } queues[PS_RECIRCULATION_QUEUES];
    uint32_t busy;       /* a bit for each queue with packets */
    uint32_t turn;       /* the queue that was served last */
    uint64_t bytes;      /* packets that wait */
    int64_t credit_bits; /* tokens: what may pass now; negative: wait */
    uint64_t refilled_us;
};

void ps_recirculation_init(struct ps_switch *sw);
void ps_recirculation_free(struct ps_switch *sw);
/* The recirculation port of that number, or NULL. */
struct ps_recirculation *ps_recirculation_at(struct ps_switch *sw, uint32_t port);
void ps_recirculation_put(struct ps_switch *sw, struct ps_recirculation *r, uint32_t queue,
                          const struct ps_tx *tx); /* owns tx */
/* Runs up to `budget` packets whose time has come. Returns how many. */
int ps_recirculation_run(struct ps_switch *sw, int budget);
/* When the next packet may enter. now_us or earlier: at once; UINT64_MAX: no packet waits. */
uint64_t ps_recirculation_due_us(const struct ps_switch *sw);
void ps_recirculation_flush(struct ps_switch *sw);

#endif
