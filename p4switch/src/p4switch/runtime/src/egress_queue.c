/* Strict priorities, each first come, first served; one bound for all of a port. */
#include "egress_queue.h"

#include <stdlib.h>

#include "switch.h"

void ps_egress_queue_init(struct ps_egress_queue *q) {
    q->packets_max = PS_EGRESS_QUEUE_DEFAULT;
    q->bytes_max = PS_BACKLOG_BYTES;
    q->priorities = 1;
}

struct ps_waiting *ps_egress_queue_push(struct ps_switch *sw, struct ps_egress_queue *q, uint32_t priority,
                                        uint32_t bytes) {
    if (q->count >= q->packets_max || q->bytes + bytes > q->bytes_max || q->count >= sw->pool.free_count) return NULL;
    struct ps_waiting *w = aligned_alloc(64, sizeof *w + sw->pipeline->program->phv_bytes);
    if (!w) return NULL;
    uint32_t level = priority < q->priorities ? priority : q->priorities - 1;
    w->next = NULL;
    w->bytes = bytes;
    w->enq_qdepth = q->count++;
    q->bytes += bytes;
    if (q->head[level])
        q->tail[level]->next = w;
    else
        q->head[level] = w;
    q->tail[level] = w;
    return w;
}

static int first_level(const struct ps_egress_queue *q) {
    int level = PS_PRIORITIES_MAX - 1;
    while (level >= 0 && !q->head[level]) level--;
    return level;
}

struct ps_waiting *ps_egress_queue_first(const struct ps_egress_queue *q) {
    return q->count ? q->head[first_level(q)] : NULL;
}

void ps_egress_queue_pop(struct ps_egress_queue *q) {
    int level = first_level(q);
    struct ps_waiting *w = q->head[level];
    q->head[level] = w->next;
    q->count--;
    q->bytes -= w->bytes;
}

void ps_waiting_free(struct ps_switch *sw, struct ps_waiting *w) {
    ps_buffer_put(&sw->pool, w->in.frame);
    free(w);
}

void ps_egress_queue_clear(struct ps_switch *sw, struct ps_egress_queue *q) {
    for (struct ps_waiting *w; (w = ps_egress_queue_first(q));) {
        ps_egress_queue_pop(q);
        ps_waiting_free(sw, w);
    }
}
