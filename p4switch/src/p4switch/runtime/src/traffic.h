/* traffic.c: from traffic managers (v1model.c, tna.c) to ports, for both architectures. */
#ifndef P4SWITCH_TRAFFIC_H
#define P4SWITCH_TRAFFIC_H

#include "link.h"
#include "switch.h"

extern const struct ps_api ps_runtime_api; /* what programs call */

void ps_send_elsewhere(struct ps_switch *sw, uint32_t port,
                       const struct ps_tx *tx); /* owns tx; for the CPU or no port */
void ps_flush(struct ps_switch *sw);            /* sends what the ports hold back for batches */

/* Owns tx. The CPU port is never one of the attached ports. */
static inline void ps_send(struct ps_switch *sw, uint32_t port, const struct ps_tx *tx) {
    if (PS_LIKELY(port < PS_PORTS_MAX && sw->ports[port]))
        ps_port_transmit(sw->ports[port], tx);
    else
        ps_send_elsewhere(sw, port, tx);
}

void ps_trace(struct ps_switch *sw, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define TRACE(sw, ...)                                                       \
    do {                                                                     \
        if (PS_UNLIKELY((sw)->ctx.trace_enabled)) ps_trace(sw, __VA_ARGS__); \
    } while (0)

/* False: the port would send a packet of `bytes` at once. Else `*w` is a place for it at the end of its priority's
 * queue, with `state_bytes` of state; NULL: the queue is full, and the packet lost. */
bool ps_egress_wait(struct ps_switch *sw, uint32_t port, uint32_t priority, uint32_t bytes, size_t state_bytes,
                    struct ps_waiting **w);
void ps_egress_has_room(struct ps_port *port); /* runs egress for what waits, as far as the port has room */

#endif
