/* What all ports have in common: counting, capture, output batches, the backlog while a socket takes no more, and software
 * offloads for ports that cannot carry super-packets. */
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime.h"

/* ------------------------------------------------------------------ queues */

/* -1: no room. A queue holds no more packets than there are free buffers, so that ports which take nothing any more, however
 * many, leave something to the others (dynamic thresholds: Choudhury and Hahne, 1998). */
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

static void queue_clear(struct ps_buffer_pool *pool, struct ps_tx_queue *q) {
    struct ps_tx tx;
    while (ps_queue_pop(q, &tx)) ps_tx_put(pool, &tx);
}

/* ------------------------------------------------------------------ offloads */

void ps_port_soften(struct ps_buffer_pool *pool, struct ps_buffer *b, void (*each)(void *, struct ps_buffer *), void *arg) {
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

void ps_port_deliver(struct ps_port *port, struct ps_buffer *b) {
    ps_arrived(port->sw, b, port->id);
}

static void receive_one(void *arg, struct ps_buffer *b) {
    struct ps_port *port = arg;
    if (PS_UNLIKELY(port->faults[PS_RX].config.enabled)) {
        struct ps_tx tx = {.head = b, .head_bytes = b->length, .vnet = b->vnet};
        if (ps_faults_apply(port, PS_RX, &tx)) return;
    }
    ps_port_deliver(port, b);
}

enum { GSO_UDP_L4 = 5 };

void ps_port_received(struct ps_port *port, struct ps_buffer *b) {
    port->stats.rx_packets++;
    port->stats.rx_bytes += b->length;
    port->sw->stats.received++;
    if (PS_UNLIKELY(port->pcap[PS_RX] != NULL)) {
        struct iovec part = {b->bytes, b->length};
        ps_pcap_write(port->pcap[PS_RX], port->sw->epoch_us + port->sw->now_us, &part, 1);
    }
    /* A program must see every datagram of a UDP super-packet; a fault must hit frames, not a whole TCP train. */
    if (PS_UNLIKELY(b->vnet.gso_type != VIRTIO_NET_HDR_GSO_NONE) &&
        (b->vnet.gso_type == GSO_UDP_L4 || port->faults[PS_RX].config.enabled))
        ps_port_soften(&port->sw->pool, b, receive_one, port);
    else
        receive_one(port, b);
}

/* ------------------------------------------------------------------ sending */

static void transmit_soft(void *arg, struct ps_buffer *b) {
    struct ps_tx tx = {.head = b, .head_bytes = b->length};
    ps_port_transmit(arg, &tx);
}

void ps_port_transmit(struct ps_port *port, const struct ps_tx *tx) {
    struct ps_buffer_pool *pool = &port->sw->pool;
    if (PS_UNLIKELY(!port->up)) {
        port->stats.tx_dropped++;
        ps_tx_put(pool, tx);
        return;
    }
    bool shaped = port->shape.rate_bits != 0, faulty = port->faults[PS_TX].config.enabled;
    if (PS_UNLIKELY(!ps_vnet_plain(&tx->vnet)) && (!port->carries_vnet || shaped || faulty)) {
        struct ps_buffer *b = ps_tx_flatten(pool, tx);
        ps_tx_put(pool, tx);
        if (b)
            ps_port_soften(pool, b, transmit_soft, port);
        else
            port->sw->stats.no_buffer++;
        return;
    }
    if (PS_UNLIKELY(shaped))
        ps_shape_send(port, tx);
    else if (PS_UNLIKELY(faulty)) {
        if (!ps_faults_apply(port, PS_TX, tx)) ps_port_emit(port, tx);
    } else
        ps_port_emit(port, tx);
}

void ps_port_emit(struct ps_port *port, const struct ps_tx *tx) {
    if (PS_UNLIKELY(port->pcap[PS_TX] != NULL)) {
        struct iovec parts[2] = {{tx->head->bytes, tx->head_bytes}, {(void *)(uintptr_t)tx->payload, tx->payload_bytes}};
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
    if (!up) queue_clear(&port->sw->pool, &port->backlog);
    if (port->sw->pipeline) ps_pipeline_port_changed(port->sw->pipeline, port->id);
    ps_events_post(&port->sw->events, PS_EVENT_PORT, 0, port->sw->now_us, port->id, up, NULL, 0);
}

static void port_destroy(struct ps_port *port) {
    struct ps_switch *sw = port->sw;
    ps_port_unregister(port);
    if (port->ops) port->ops->close(port);
    for (int i = 0; i < port->out_count; i++) ps_tx_put(&sw->pool, &port->out[i]);
    for (int i = 0; i < sw->dirty_count; i++)
        if (sw->dirty[i] == port) sw->dirty[i--] = sw->dirty[--sw->dirty_count];
    queue_clear(&sw->pool, &port->backlog);
    queue_clear(&sw->pool, &port->shape.queue);
    free(port->backlog.items);
    free(port->shape.queue.items);
    ps_faults_drop_held(port);
    ps_timers_forget(sw, port->id);
    for (int d = 0; d < 2; d++)
        if (port->pcap[d]) fclose(port->pcap[d]);
    free(port);
}

static struct ps_port *port_create(struct ps_switch *sw, uint32_t id, char *error, size_t error_bytes) {
    if (id >= PS_PORTS_MAX || id == sw->config.drop_port || id == sw->config.cpu_port) {
        snprintf(error, error_bytes, "port %u cannot be used: ports are 0 to %d, without the drop port and the CPU port", id,
                 PS_PORTS_MAX - 1);
        return NULL;
    }
    if (sw->ports[id]) {
        snprintf(error, error_bytes, "port %u is already in use", id);
        return NULL;
    }
    struct ps_port *port = calloc(1, sizeof *port);
    if (!port) {
        snprintf(error, error_bytes, "out of memory");
        return NULL;
    }
    port->sw = sw;
    port->id = id;
    port->rx_fd = port->tx_fd = -1;
    port->backlog.bytes_max = PS_BACKLOG_BYTES;
    return port;
}

static int port_install(struct ps_port *port, int opened, char *error, size_t error_bytes) {
    struct ps_switch *sw = port->sw;
    if (opened == 0 && ps_port_register(port) != 0) {
        snprintf(error, error_bytes, "port %u cannot be watched", port->id);
        opened = -1;
    }
    if (opened != 0) {
        port_destroy(port);
        return -1;
    }
    sw->ports[port->id] = port;
    ps_port_set_up(port, true);
    return 0;
}

PS_EXPORT int ps_add_interface(struct ps_switch *sw, uint32_t id, const char *name, char *error, uint64_t error_bytes) {
    ps_gate_enter(sw);
    struct ps_port *port = port_create(sw, id, error, error_bytes);
    int result = port ? port_install(port, ps_packet_port_open(port, name, error, error_bytes), error, error_bytes) : -1;
    if (result == 0) ps_packet_port_link_changed(port);
    ps_gate_leave(sw);
    return result;
}

PS_EXPORT int ps_add_unix(struct ps_switch *sw, uint32_t id, const char *local, const char *peer, char *error, uint64_t error_bytes) {
    ps_gate_enter(sw);
    struct ps_port *port = port_create(sw, id, error, error_bytes);
    int result = port ? port_install(port, ps_unix_port_open(port, local, peer, error, error_bytes), error, error_bytes) : -1;
    ps_gate_leave(sw);
    return result;
}

PS_EXPORT int ps_add_udp(struct ps_switch *sw, uint32_t id, const char *local_host, uint16_t *local_port, const char *peer_host,
                         uint16_t peer_port, char *error, uint64_t error_bytes) {
    ps_gate_enter(sw);
    struct ps_port *port = port_create(sw, id, error, error_bytes);
    int result = -1;
    if (port) {
        int opened = ps_udp_port_open(port, local_host, local_port, peer_host, peer_port, error, error_bytes);
        result = port_install(port, opened, error, error_bytes);
    }
    ps_gate_leave(sw);
    return result;
}

PS_EXPORT int ps_add_memory(struct ps_switch *sw, uint32_t id, int discard, char *error, uint64_t error_bytes) {
    ps_gate_enter(sw);
    struct ps_port *port = port_create(sw, id, error, error_bytes);
    int result = port ? port_install(port, ps_memory_port_open(port, discard != 0), error, error_bytes) : -1;
    ps_gate_leave(sw);
    return result;
}

PS_EXPORT int ps_remove_port(struct ps_switch *sw, uint32_t id) {
    int result = -1;
    ps_gate_enter(sw);
    struct ps_port *port = id < PS_PORTS_MAX ? sw->ports[id] : NULL;
    if (port) {
        ps_port_set_up(port, false);
        sw->ports[id] = NULL;
        port_destroy(port);
        result = 0;
    }
    ps_gate_leave(sw);
    return result;
}

/* ------------------------------------------------------------------ settings */

static struct ps_port *enter_port(struct ps_switch *sw, uint32_t id) {
    ps_gate_enter(sw);
    if (id < PS_PORTS_MAX && sw->ports[id]) return sw->ports[id];
    ps_gate_leave(sw);
    return NULL;
}

PS_EXPORT int ps_set_faults(struct ps_switch *sw, uint32_t id, int direction, const struct ps_faults *config) {
    struct ps_port *port = enter_port(sw, id);
    if (!port) return -1;
    ps_faults_set(port, direction ? PS_TX : PS_RX, config);
    ps_gate_leave(sw);
    return 0;
}

PS_EXPORT int ps_set_shape(struct ps_switch *sw, uint32_t id, uint64_t rate_bits, uint64_t burst_bytes, uint64_t queue_bytes) {
    struct ps_port *port = enter_port(sw, id);
    if (!port) return -1;
    ps_clock_update(sw);
    ps_shape_set(port, rate_bits, burst_bytes, queue_bytes);
    ps_engine_flush(sw);
    ps_gate_leave(sw);
    return 0;
}

/* path NULL ends the capture. -1: no such port; -2: the file cannot be written. */
PS_EXPORT int ps_set_pcap(struct ps_switch *sw, uint32_t id, int direction, const char *path) {
    FILE *f = path ? ps_pcap_open(path) : NULL;
    if (path && !f) return -2;
    struct ps_port *port = enter_port(sw, id);
    if (!port) {
        if (f) fclose(f);
        return -1;
    }
    FILE *old = port->pcap[direction ? PS_TX : PS_RX];
    port->pcap[direction ? PS_TX : PS_RX] = f;
    ps_gate_leave(sw);
    if (old) fclose(old);
    return 0;
}

PS_EXPORT int ps_port_stats_read(struct ps_switch *sw, uint32_t id, struct ps_port_stats *out) {
    struct ps_port *port = enter_port(sw, id);
    if (!port) return -1;
    *out = port->stats;
    ps_gate_leave(sw);
    return 0;
}
