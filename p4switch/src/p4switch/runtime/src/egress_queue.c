/* Strict priorities, each first come, first served; one bound for all of a port. */
#include "egress_queue.h"

#include <stdlib.h>

#include "switch.h"
#include "traffic.h"

void ps_egress_queue_init(struct ps_egress_queue *q) {
    q->packets_max = PS_EGRESS_QUEUE_DEFAULT;
    q->bytes_max = PS_BACKLOG_BYTES;
    q->priorities = 1;
}

static uint32_t cells_of(uint32_t bytes) { return (bytes + PS_CELL_BYTES - 1) / PS_CELL_BYTES; }

static struct ps_waiting *push(struct ps_switch *sw, struct ps_egress_queue *q, uint32_t priority, uint32_t bytes,
                               size_t state_bytes) {
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

static struct ps_waiting *first(const struct ps_egress_queue *q) { return q->count ? q->head[first_level(q)] : NULL; }

static struct ps_waiting *pop(struct ps_egress_queue *q) {
    struct ps_waiting *w = first(q);
    q->head[w->level] = w->next;
    q->count--;
    q->bytes -= w->bytes;
    q->cells[w->level] -= cells_of(w->bytes);
    return w;
}

/* Whether the port would send a packet of `bytes` at once. */
static bool ready(struct ps_port *port, uint32_t bytes) {
    return port->backlog.count == 0 && (!port->shape.rate_bits || ps_shape_ready(port, bytes));
}

bool ps_egress_wait(struct ps_switch *sw, uint32_t number, uint32_t priority, uint32_t bytes, size_t state_bytes,
                    struct ps_waiting **w) {
    struct ps_port *port = number < PS_PORTS_MAX ? sw->ports[number] : NULL;
    ps_clock_update(sw);
    if (!port || !port->up || (port->waiting.count == 0 && ready(port, bytes))) return false;
    *w = push(sw, &port->waiting, priority, bytes, state_bytes);
    if (!*w) {
        port->stats.tx_queue_dropped++;
        TRACE(sw, "port %u: queue full", number);
        return true;
    }
    TRACE(sw, "port %u: waits behind %u packets", number, (*w)->enq_qdepth);
    if (port->backlog.count == 0) ps_shape_await(port, first(&port->waiting)->bytes);
    return true;
}

void ps_egress_has_room(struct ps_port *port) {
    struct ps_egress_queue *q = &port->waiting;
    for (struct ps_waiting *w; (w = first(q));) {
        if (!ready(port, w->bytes)) {
            if (port->backlog.count == 0) ps_shape_await(port, w->bytes);
            return;
        }
        w = pop(q);
        ps_clock_update(port->sw);
        port->sw->ctx.now_us = port->sw->now_us;
        w->leave(port, w);
        free(w);
    }
}

void ps_egress_queue_clear(struct ps_switch *sw, struct ps_egress_queue *q) {
    while (q->count) {
        struct ps_waiting *w = pop(q);
        ps_buffer_put(&sw->pool, w->in.frame);
        free(w);
    }
}
