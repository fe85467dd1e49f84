/* Strict priorities, each first come, first served; one bound for all of a port. */
#include "egress_queue.h"

#include <stdlib.h>

#include "switch.h"

void ps_egress_queue_init(struct ps_egress_queue *q) {
    q->packets_max = PS_EGRESS_QUEUE_DEFAULT;
    q->bytes_max = PS_BACKLOG_BYTES;
    q->priorities = 1;
}

static uint32_t cells_of(uint32_t bytes) { return (bytes + PS_CELL_BYTES - 1) / PS_CELL_BYTES; }

struct ps_waiting *ps_egress_queue_push(struct ps_switch *sw, struct ps_egress_queue *q, uint32_t priority,
                                        uint32_t bytes, size_t state_bytes) {
    if (q->count >= q->packets_max || q->bytes + bytes > q->bytes_max || q->count >= sw->pool.free_count) return NULL;
    struct ps_waiting *w = aligned_alloc(64, (sizeof *w + state_bytes + 63) / 64 * 64);
    if (!w) return NULL;
    uint32_t level = priority < q->priorities ? priority : q->priorities - 1;
    w->next = NULL;
    w->bytes = bytes;
    w->level = level;
    w->enq_timestamp = (uint32_t)sw->now_us;
    w->enq_qdepth = q->count++;
    w->enq_cells = q->cells[level];
    q->bytes += bytes;
    q->cells[level] += cells_of(bytes);
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

struct ps_waiting *ps_egress_queue_pop(struct ps_egress_queue *q) {
    struct ps_waiting *w = ps_egress_queue_first(q);
    q->head[w->level] = w->next;
    q->count--;
    q->bytes -= w->bytes;
    q->cells[w->level] -= cells_of(w->bytes);
    return w;
}

void ps_egress_queue_clear(struct ps_switch *sw, struct ps_egress_queue *q) {
    while (q->count) {
        struct ps_waiting *w = ps_egress_queue_pop(q);
        ps_buffer_put(&sw->pool, w->in.frame);
        free(w);
    }
}
