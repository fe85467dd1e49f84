/* What the traffic managers of both architectures share: packets that leave, traces, and the functions
 * that programs call. */
#include "traffic.h"

#include <stdarg.h>
#include <stdlib.h>

#include "externs.h"
#include "offload.h"

void ps_trace(struct ps_switch *sw, const char *format, ...) {
    char text[256];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    struct iovec part = {text, n < 0 ? 0 : ps_min64((uint64_t)n, sizeof text - 1)};
    ps_events_post(&sw->events, PS_EVENT_LOG, sw->pipeline ? sw->pipeline->serial : 0, sw->now_us, PS_LOG_TRACE, 0,
                   &part, 1);
}

/* ------------------------------------------------------------------ leaving */

static void post_packet_in(void *arg, struct ps_buffer *b) {
    struct ps_switch *sw = arg;
    struct iovec part = {b->bytes, b->length};
    ps_events_post(&sw->events, PS_EVENT_PACKET_IN, sw->pipeline->serial, sw->now_us, 0, 0, &part, 1);
    ps_buffer_put(&sw->pool, b);
}

static void to_controller(struct ps_switch *sw, const struct ps_tx *tx) {
    if (ps_vnet_plain(&tx->vnet)) {
        struct iovec parts[2] = {{tx->head->bytes, tx->head_bytes},
                                 {(void *)(uintptr_t)tx->payload, tx->payload_bytes}};
        ps_events_post(&sw->events, PS_EVENT_PACKET_IN, sw->pipeline->serial, sw->now_us, 0, 0, parts,
                       tx->payload_bytes ? 2 : 1);
    } else {
        struct ps_buffer *b = ps_tx_flatten(&sw->pool, tx);
        if (b) ps_port_soften(&sw->pool, b, post_packet_in, sw);
    }
    ps_tx_put(&sw->pool, tx);
}

void ps_send_elsewhere(struct ps_switch *sw, uint32_t port, const struct ps_tx *tx) {
    if (port == sw->config.cpu_port) {
        to_controller(sw, tx);
    } else {
        TRACE(sw, "port %u: no such port, packet lost", port);
        sw->stats.no_port++;
        ps_tx_put(&sw->pool, tx);
    }
}

void ps_flush(struct ps_switch *sw) {
    for (int i = 0; i < sw->dirty_count; i++) {
        sw->dirty[i]->dirty = false;
        ps_port_flush(sw->dirty[i]);
    }
    sw->dirty_count = 0;
}

/* ------------------------------------------------------------------ what the program calls */

static void api_digest(struct ps_ctx *ctx, uint32_t digest, const void *packed) {
    struct ps_switch *sw = ctx->runtime;
    struct iovec part = {(void *)(uintptr_t)packed, sw->pipeline->program->digests[digest].packed_bytes};
    TRACE(sw, "digest %s", sw->pipeline->program->digests[digest].name);
    ps_events_post(&sw->events, PS_EVENT_DIGEST, sw->pipeline->serial, sw->now_us, digest, 0, &part, 1);
}

static void api_log(struct ps_ctx *ctx, uint32_t kind, const char *text, size_t length) {
    struct ps_switch *sw = ctx->runtime;
    struct iovec part = {(void *)(uintptr_t)text, length};
    ps_events_post(&sw->events, PS_EVENT_LOG, sw->pipeline->serial, sw->now_us, kind, 0, &part, 1);
}

const struct ps_api ps_runtime_api = {
    .meter = ps_meter_run,
    .digest = api_digest,
    .log = api_log,
    .crc32 = ps_crc32,
    .crc32_custom = ps_crc32,
    .crc16 = ps_crc16,
    .crc16_custom = ps_crc16,
    .csum16 = ps_csum16,
    .xor16 = ps_xor16,
};

/* ------------------------------------------------------------------ queues before egress */

/* Whether the port would send a packet of `bytes` at once. */
static bool ready(struct ps_port *port, uint32_t bytes) {
    return port->backlog.count == 0 && (!port->shape.rate_bits || ps_shape_ready(port, bytes));
}

bool ps_egress_wait(struct ps_switch *sw, uint32_t number, uint32_t priority, uint32_t bytes, size_t state_bytes,
                    struct ps_waiting **w) {
    struct ps_port *port = number < PS_PORTS_MAX ? sw->ports[number] : NULL;
    ps_clock_update(sw);
    if (!port || !port->up || (port->waiting.count == 0 && ready(port, bytes))) return false;
    *w = ps_egress_queue_push(sw, &port->waiting, priority, bytes, state_bytes);
    if (!*w) {
        port->stats.tx_queue_dropped++;
        TRACE(sw, "port %u: queue full", number);
        return true;
    }
    TRACE(sw, "port %u: waits behind %u packets", number, (*w)->enq_qdepth);
    if (port->backlog.count == 0) ps_shape_await(port, ps_egress_queue_first(&port->waiting)->bytes);
    return true;
}

void ps_egress_has_room(struct ps_port *port) {
    struct ps_egress_queue *q = &port->waiting;
    for (struct ps_waiting *w; (w = ps_egress_queue_first(q));) {
        if (!ready(port, w->bytes)) {
            if (port->backlog.count == 0) ps_shape_await(port, w->bytes);
            return;
        }
        w = ps_egress_queue_pop(q);
        ps_clock_update(port->sw);
        port->sw->ctx.now_us = port->sw->now_us;
        w->leave(port, w);
        free(w);
    }
}
