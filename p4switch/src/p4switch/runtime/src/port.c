/* What all ports share: output batches, the backlog while a socket is full, and software offloads for ports that
 * cannot carry super-packets. */
#include <stdlib.h>
#include <sys/epoll.h>

#include "groups.h"
#include "offload.h"
#include "switch.h"

/* ------------------------------------------------------------------ queues */

/* Returns -1 when there is no room. A queue holds no more packets than there are free buffers. So ports that stopped
 * taking packets leave buffers for the others, however many such ports there are (dynamic thresholds: Choudhury and
 * Hahne, 1998). */
int ps_queue_push(const struct ps_buffer_pool *pool, struct ps_tx_queue *q, const struct ps_tx *tx) {
    uint32_t bytes = ps_tx_bytes(tx);
    if (q->bytes + bytes > q->bytes_max || q->count == PS_BACKLOG_ITEMS || q->count >= pool->free_count) return -1;
    if (!q->items) {
        q->items = malloc(PS_BACKLOG_ITEMS * sizeof *q->items);
        if (!q->items) return -1;
    }
    q->items[(q->head + q->count) % PS_BACKLOG_ITEMS] = *tx;
    q->count++;
    q->bytes += bytes;
    return 0;
}

bool ps_queue_pop(struct ps_tx_queue *q, struct ps_tx *tx) {
    if (q->count == 0) return false;
    *tx = q->items[q->head];
    q->head = (q->head + 1) % PS_BACKLOG_ITEMS;
    q->count--;
    q->bytes -= ps_tx_bytes(tx);
    return true;
}

void ps_queue_clear(struct ps_buffer_pool *pool, struct ps_tx_queue *q) {
    struct ps_tx tx;
    while (ps_queue_pop(q, &tx)) ps_tx_put(pool, &tx);
}

/* ------------------------------------------------------------------ offloads */

void ps_port_soften(struct ps_buffer_pool *pool, struct ps_buffer *b, void (*each)(void *, struct ps_buffer *),
                    void *arg) {
    if (b->vnet.gso_type == VIRTIO_NET_HDR_GSO_NONE) {
        if (!(b->vnet.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) || ps_complete_checksum(b)) {
            each(arg, b);
            return;
        }
    } else {
        (void)ps_segment(pool, b, each, arg);
    }
    ps_buffer_put(pool, b);
}

/* ------------------------------------------------------------------ receiving */

void ps_port_deliver(struct ps_port *port, struct ps_buffer *b) { port->sw->arrived(port->sw, b, port->id); }

/* ------------------------------------------------------------------ sending */

void ps_port_emit(struct ps_port *port, const struct ps_tx *tx) {
    if (PS_UNLIKELY(port->pcap[PS_TX] != NULL)) {
        struct iovec parts[2] = {{tx->head->bytes, tx->head_bytes},
                                 {(void *)(uintptr_t)tx->payload, tx->payload_bytes}};
        ps_pcap_write(port->pcap[PS_TX], port->sw->epoch_us + port->sw->now_us, parts, tx->payload_bytes ? 2 : 1);
    }
    if (!port->dirty) {
        port->dirty = true;
        port->sw->dirty[port->sw->dirty_count++] = port;
    }
    port->out[port->out_count++] = *tx;
    if (port->out_count == PS_TX_BATCH) ps_port_flush(port);
}

static void watch_writable(struct ps_port *port, bool on) {
    if (port->tx_watched == on || port->tx_fd < 0) return;
    struct epoll_event event = {.events = (port->tx_fd == port->rx_fd ? EPOLLIN : 0u) | (on ? EPOLLOUT : 0u)};
    event.data.u64 = (uint64_t)port->id << 1 | (port->tx_fd != port->rx_fd);
    int op = port->tx_fd == port->rx_fd ? EPOLL_CTL_MOD : on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
    if (epoll_ctl(port->sw->epoll_fd, op, port->tx_fd, &event) == 0) port->tx_watched = on;
}

static int send_now(struct ps_port *port, const struct ps_tx *items, int count) {
    int taken = port->ops->send(port, items, count);
    for (int i = 0; i < taken; i++) ps_tx_put(&port->sw->pool, &items[i]);
    return taken;
}

void ps_port_flush(struct ps_port *port) {
    int count = port->out_count, taken = 0;
    port->out_count = 0;
    if (count == 0) return;
    if (port->backlog.count == 0) taken = send_now(port, port->out, count);
    for (int i = taken; i < count; i++) {
        if (ps_queue_push(&port->sw->pool, &port->backlog, &port->out[i]) == 0) continue;
        port->stats.tx_queue_dropped++;
        ps_tx_put(&port->sw->pool, &port->out[i]);
    }
    if (port->backlog.count) watch_writable(port, true);
}

void ps_port_writable(struct ps_port *port) {
    while (port->backlog.count) {
        struct ps_tx_queue *q = &port->backlog;
        int run = (int)ps_min64(ps_min64(q->count, PS_TX_BATCH), PS_BACKLOG_ITEMS - q->head);
        int taken = send_now(port, &q->items[q->head], run);
        for (int i = 0; i < taken; i++) {
            q->bytes -= ps_tx_bytes(&q->items[q->head]);
            q->head = (q->head + 1) % PS_BACKLOG_ITEMS;
            q->count--;
        }
        if (taken < run) return;
    }
    watch_writable(port, false);
    port->has_room(port);
}

/* ------------------------------------------------------------------ life */

int ps_port_register(struct ps_port *port) {
    if (port->rx_fd < 0) return 0;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)port->id << 1};
    if (epoll_ctl(port->sw->epoll_fd, EPOLL_CTL_ADD, port->rx_fd, &event) != 0) return -1;
    port->rx_registered = true;
    return 0;
}

void ps_port_unregister(struct ps_port *port) {
    watch_writable(port, false);
    if (port->rx_registered) (void)epoll_ctl(port->sw->epoll_fd, EPOLL_CTL_DEL, port->rx_fd, NULL);
    port->rx_registered = false;
    port->tx_watched = false;
}

void ps_port_set_up(struct ps_port *port, bool up) {
    if (port->up == up) return;
    port->up = up;
    port->stats.up = up;
    if (!up) {
        ps_queue_clear(&port->sw->pool, &port->backlog);
        ps_egress_queue_clear(port->sw, &port->waiting);
    }
    if (port->sw->pipeline) ps_pipeline_port_changed(port->sw->pipeline, port->id);
    ps_events_post(&port->sw->events, PS_EVENT_PORT, 0, port->sw->now_us, port->id, up, NULL, 0);
}
