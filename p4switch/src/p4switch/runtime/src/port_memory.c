/* Ports inside the process, for tests and benchmarks: one function injects frames, another one collects them. */
#include <stdlib.h>

#include "port_kinds.h"
#include "switch.h"

enum { MEMORY_BYTES_MAX = 256 << 20 };

struct record {
    uint64_t serial; /* over all memory ports */
    uint32_t port;
    uint32_t length;
};

struct memory_port {
    uint8_t *bytes;
    size_t used, room;
    bool discard;
};

static int memory_receive(struct ps_port *port) {
    (void)port;
    return 0;
}

static bool reserve(struct memory_port *m, size_t more) {
    if (m->used + more > MEMORY_BYTES_MAX) return false;
    if (m->used + more <= m->room) return true;
    size_t room = m->room ? m->room : 65536;
    while (room < m->used + more) room *= 2;
    uint8_t *bytes = realloc(m->bytes, room);
    if (!bytes) return false;
    m->bytes = bytes;
    m->room = room;
    return true;
}

static int memory_send(struct ps_port *port, const struct ps_tx *items, int count) {
    struct memory_port *m = port->impl;
    for (int i = 0; i < count; i++) {
        const struct ps_tx *tx = &items[i];
        uint32_t length = ps_tx_bytes(tx);
        if (!m->discard) {
            size_t total = (sizeof(struct record) + length + 7) / 8 * 8;
            if (!reserve(m, total)) {
                port->stats.tx_queue_dropped++;
                continue;
            }
            struct record r = {port->sw->memory_serial++, port->id, length};
            uint8_t *to = m->bytes + m->used;
            memcpy(to, &r, sizeof r);
            memcpy(to + sizeof r, tx->head->bytes, tx->head_bytes);
            if (tx->payload_bytes) memcpy(to + sizeof r + tx->head_bytes, tx->payload, tx->payload_bytes);
            m->used += total;
        }
        port->stats.tx_packets++;
        port->stats.tx_bytes += length;
    }
    return count;
}

static void memory_close(struct ps_port *port) {
    struct memory_port *m = port->impl;
    if (m) free(m->bytes);
    free(m);
    port->impl = NULL;
}

static void memory_tick(struct ps_port *port) { (void)port; }

static const struct ps_port_ops MEMORY_OPS = {memory_receive, memory_send, memory_close, memory_tick};

int ps_memory_port_open(struct ps_port *port, bool discard) {
    struct memory_port *m = calloc(1, sizeof *m);
    if (!m) return -1;
    m->discard = discard;
    port->impl = m;
    port->ops = &MEMORY_OPS;
    return 0;
}

/* Collects what the port has sent since the last call. Returns how many bytes that takes; if there is room for them,
 * copies the records and forgets them. */
PS_EXPORT int64_t ps_collect(struct ps_switch *sw, uint32_t id, uint8_t *out, uint64_t capacity) {
    int64_t used = -1;
    ps_gate_enter(sw);
    struct ps_port *port = id < PS_PORTS_MAX ? sw->ports[id] : NULL;
    if (port && port->ops == &MEMORY_OPS) {
        struct memory_port *m = port->impl;
        used = (int64_t)m->used;
        if (m->used <= capacity) {
            if (m->used) memcpy(out, m->bytes, m->used);
            m->used = 0;
        }
    }
    ps_gate_leave(sw);
    return used;
}
