/* The functions that Python calls to make, feed and read a switch. */
#include <stdlib.h>
#include <time.h>

#include "groups.h"
#include "loop.h"
#include "port_kinds.h"
#include "ports.h"
#include "tna.h"
#include "traffic.h"
#include "v1model.h"

/* ------------------------------------------------------------------ frames that arrive */

/* By the architecture of the program that runs. */
static void (*const INGRESS[])(struct ps_switch *sw, struct ps_buffer *frame, uint32_t port) = {
    [PS_V1MODEL] = ps_v1model_ingress,
    [PS_TNA] = ps_tna_ingress,
};

static void arrived(struct ps_switch *sw, struct ps_buffer *frame, uint32_t port) {
    if (PS_UNLIKELY(!sw->pipeline)) {
        sw->stats.no_pipeline++;
        ps_buffer_put(&sw->pool, frame);
        return;
    }
    INGRESS[sw->pipeline->program->architecture](sw, frame, port);
}

/* ------------------------------------------------------------------ life */

PS_EXPORT void ps_switch_free(struct ps_switch *sw);

PS_EXPORT struct ps_switch *ps_switch_new(const struct ps_switch_config *config) {
    struct ps_switch *sw = aligned_alloc(64, (sizeof *sw + 63) / 64 * 64);
    if (!sw) return NULL;
    memset(sw, 0, sizeof *sw);
    sw->config = *config;
    sw->arrived = arrived;
    pthread_mutex_init(&sw->turnstile, NULL);
    pthread_mutex_init(&sw->gate, NULL);
    ps_events_init(&sw->events);
    sw->started_ns = ps_clock_ns(CLOCK_MONOTONIC);
    sw->epoch_us = ps_clock_ns(CLOCK_REALTIME) / 1000;
    sw->timers = calloc(PS_TIMERS_MAX, sizeof *sw->timers);
    sw->ctx.api = &ps_runtime_api;
    sw->ctx.runtime = sw;
    sw->ctx.log_enabled = 1;
    sw->ctx.trace_enabled = config->trace != 0;
    struct ps_rng seeder = {config->seed};
    for (int i = 0; i < 4; i++) sw->ctx.rng[i] = ps_rng_next(&seeder);
    bool opened = ps_loop_open(sw) == 0;
    if (ps_pool_init(&sw->pool) != 0 || !sw->timers || !opened) {
        ps_switch_free(sw);
        return NULL;
    }
    ps_recirculation_init(sw);
    return sw;
}

/* The owner of the pipelines frees them before this. */
PS_EXPORT void ps_switch_free(struct ps_switch *sw) {
    ps_stop(sw);
    for (uint32_t i = 0; i < PS_PORTS_MAX; i++)
        if (sw->ports[i]) (void)ps_remove_port(sw, i);
    ps_loop_close(sw);
    free(sw->timers);
    ps_recirculation_free(sw);
    ps_events_free(&sw->events);
    ps_pool_free(&sw->pool);
    pthread_mutex_destroy(&sw->turnstile);
    pthread_mutex_destroy(&sw->gate);
    free(sw);
}

/* ------------------------------------------------------------------ pipeline */

/* From the next packet on, packets run through `p`. NULL: the switch drops them. */
PS_EXPORT void ps_commit(struct ps_switch *sw, struct ps_pipeline *p) {
    ps_gate_enter(sw);
    ps_v1model_flush_pending(sw);
    ps_recirculation_flush(sw);
    sw->pipeline = p;
    if (p) {
        sw->ctx.tables = p->tables;
        sw->ctx.registers = p->registers;
        sw->ctx.counters = p->counters;
        sw->ctx.meters = p->meters;
        sw->ctx.scratch = p->scratch;
        for (uint32_t i = 0; i < PS_PORTS_MAX; i++)
            if (sw->ports[i] && ps_port_is_packet(sw->ports[i])) ps_packet_port_size_kernel_queue(sw->ports[i]);
        ps_pipeline_port_changed(p, PS_ANY_PORT); /* ports may have come and gone since it was prepared */
    }
    ps_gate_leave(sw);
}

/* ------------------------------------------------------------------ clock */

PS_EXPORT uint64_t ps_now_us(struct ps_switch *sw) {
    ps_gate_enter(sw);
    ps_clock_update(sw);
    uint64_t now_us = sw->now_us;
    ps_gate_leave(sw);
    return now_us;
}

/* ------------------------------------------------------------------ frames from Python */

static struct ps_buffer *buffer_of(struct ps_switch *sw, const uint8_t *frame, uint64_t length) {
    struct ps_buffer *b = length && length <= PS_FRAME_BYTES_MAX ? ps_buffer_get(&sw->pool) : NULL;
    if (!b) return NULL;
    memcpy(b->bytes, frame, length);
    b->length = (uint32_t)length;
    return b;
}

/* Runs a frame as if it had come in at a port, or at the CPU port (a packet-out). It runs at once. -1: no such port;
 * -2: a wrong length. */
PS_EXPORT int ps_inject(struct ps_switch *sw, uint32_t id, const uint8_t *frame, uint64_t length) {
    int result = 0;
    ps_gate_enter(sw);
    ps_clock_update(sw);
    struct ps_port *port = id < PS_PORTS_MAX ? sw->ports[id] : NULL;
    if (!port && id != sw->config.cpu_port) {
        result = -1;
    } else {
        struct ps_buffer *b = buffer_of(sw, frame, length);
        if (!b)
            result = -2;
        else if (port)
            ps_port_received(port, b);
        else
            arrived(sw, b, id);
        (void)ps_loop_rounds(sw);
        ps_flush(sw);
        if (sw->running && (sw->pending_count || sw->timer_count || ps_recirculation_due_us(sw) != UINT64_MAX))
            ps_loop_wake(sw);
    }
    ps_gate_leave(sw);
    return result;
}

/* Runs `count` packets through ingress port `id`: the `frames` in turn, each after its length as uint32_t and padded
 * to 4. Returns the nanoseconds of processor time that it took. */
PS_EXPORT uint64_t ps_bench(struct ps_switch *sw, uint32_t id, const uint8_t *frames, uint64_t bytes, uint64_t count) {
    struct ps_port *port = id < PS_PORTS_MAX ? sw->ports[id] : NULL;
    if (!port || bytes < 4) return 0;
    ps_gate_enter(sw);
    uint64_t started = ps_clock_ns(CLOCK_THREAD_CPUTIME_ID), at = 0;
    for (uint64_t done = 0; done < count;) {
        ps_clock_update(sw);
        for (int i = 0; i < PS_BURST && done < count; i++, done++) {
            uint32_t length;
            memcpy(&length, frames + at, 4);
            struct ps_buffer *b = buffer_of(sw, frames + at + 4, length);
            at += 4 + (length + 3) / 4 * 4;
            if (at + 4 > bytes) at = 0;
            if (b) ps_port_received(port, b);
        }
        while (sw->pending_count) (void)ps_v1model_pending(sw, PS_PENDING_BUDGET);
        (void)ps_recirculation_run(sw, PS_PENDING_BUDGET);
        ps_flush(sw);
    }
    uint64_t taken = ps_clock_ns(CLOCK_THREAD_CPUTIME_ID) - started;
    ps_gate_leave(sw);
    return taken;
}

/* ------------------------------------------------------------------ statistics */

PS_EXPORT void ps_stats_read(struct ps_switch *sw, struct ps_switch_stats *out) {
    ps_gate_enter(sw);
    *out = sw->stats;
    for (uint32_t i = 0; i < sw->recirculation_count; i++) {
        out->recirculating += sw->recirculations[i].count;
        out->recirculating_bytes += sw->recirculations[i].bytes;
    }
    ps_gate_leave(sw);
    pthread_mutex_lock(&sw->events.lock);
    out->digests = sw->events.written[PS_EVENT_DIGEST];
    out->digests_dropped = sw->events.dropped[PS_EVENT_DIGEST];
    out->packet_ins = sw->events.written[PS_EVENT_PACKET_IN];
    out->packet_ins_dropped = sw->events.dropped[PS_EVENT_PACKET_IN];
    pthread_mutex_unlock(&sw->events.lock);
}

/* The ports of a level-2 exclusion id (TNA), one bit per port. -1: no such id. */
PS_EXPORT int ps_set_exclusion(struct ps_switch *sw, uint32_t id, const uint64_t *ports) {
    if (id >= PS_EXCLUSIONS) return -1;
    ps_gate_enter(sw);
    memcpy(sw->exclusions[id], ports, sizeof sw->exclusions[id]);
    ps_gate_leave(sw);
    return 0;
}

PS_EXPORT void ps_set_trace(struct ps_switch *sw, int on) {
    ps_gate_enter(sw);
    sw->ctx.trace_enabled = on != 0;
    ps_gate_leave(sw);
}
