/* Attaches, sets, reads and detaches the ports of a switch, for Python. */
#include "ports.h"

#include <stdlib.h>
#include <unistd.h>

#include "port_kinds.h"
#include "traffic.h"

/* ------------------------------------------------------------------ life */

static void port_destroy(struct ps_port *port) {
    struct ps_switch *sw = port->sw;
    ps_port_unregister(port);
    if (port->ops) port->ops->close(port);
    for (int i = 0; i < port->out_count; i++) ps_tx_put(&sw->pool, &port->out[i]);
    for (int i = 0; i < sw->dirty_count; i++)
        if (sw->dirty[i] == port) sw->dirty[i--] = sw->dirty[--sw->dirty_count];
    ps_queue_clear(&sw->pool, &port->backlog);
    ps_queue_clear(&sw->pool, &port->shape.queue);
    ps_egress_queue_clear(sw, &port->waiting);
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
        snprintf(error, error_bytes,
                 "port %u cannot be used: ports are 0 to %d, without the drop port and the CPU port", id,
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
    ps_egress_queue_init(&port->waiting);
    port->has_room = ps_egress_has_room;
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
    int result =
        port ? port_install(port, ps_packet_port_open(port, name, error, error_bytes), error, error_bytes) : -1;
    if (result == 0) ps_packet_port_link_changed(port);
    ps_gate_leave(sw);
    return result;
}

PS_EXPORT int ps_add_unix(struct ps_switch *sw, uint32_t id, const char *local, const char *peer, char *error,
                          uint64_t error_bytes) {
    ps_gate_enter(sw);
    struct ps_port *port = port_create(sw, id, error, error_bytes);
    int result =
        port ? port_install(port, ps_unix_port_open(port, local, peer, error, error_bytes), error, error_bytes) : -1;
    ps_gate_leave(sw);
    return result;
}

PS_EXPORT int ps_add_udp(struct ps_switch *sw, uint32_t id, const char *local_host, uint16_t *local_port,
                         const char *peer_host, uint16_t peer_port, char *error, uint64_t error_bytes) {
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

PS_EXPORT int ps_set_shape(struct ps_switch *sw, uint32_t id, uint64_t rate_bits, uint64_t burst_bytes,
                           uint64_t queue_bytes) {
    struct ps_port *port = enter_port(sw, id);
    if (!port) return -1;
    ps_clock_update(sw);
    ps_shape_set(port, rate_bits, burst_bytes, queue_bytes);
    ps_flush(sw);
    ps_gate_leave(sw);
    return 0;
}

/* The queue before egress, for programs that look at it. -1: no such port. */
PS_EXPORT int ps_set_queue(struct ps_switch *sw, uint32_t id, uint32_t packets, uint64_t bytes, uint32_t priorities) {
    struct ps_port *port = enter_port(sw, id);
    if (!port) return -1;
    port->waiting.packets_max = packets;
    port->waiting.bytes_max = bytes;
    port->waiting.priorities = priorities;
    ps_gate_leave(sw);
    return 0;
}

/* Begins a capture; with path NULL, ends it. -1: no such port; -2: the file cannot be written. */
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
