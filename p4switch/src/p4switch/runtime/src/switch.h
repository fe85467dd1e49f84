/* The switch: what its threads share.
 *
 * Locking: only the thread that holds the gate (ps_gate_enter) touches what lies below ps_switch. The packet thread
 * holds the gate while it runs one burst, the control plane while it applies one batch. A turnstile in front of the
 * gate keeps each from starving the other. So packets see whole batches, and no table needs atomics. Only the event
 * queues have locks of their own. */
#ifndef P4SWITCH_SWITCH_H
#define P4SWITCH_SWITCH_H

#include <pthread.h>

#include "buffer.h"
#include "events.h"
#include "pipeline.h"
#include "port.h"
#include "recirculation.h"
#include "v1model.h"

/* As Python reads it. */
struct ps_switch_stats {
    uint64_t received, processed;
    uint64_t dropped_ingress, dropped_egress;
    uint64_t no_pipeline, no_group, no_session, no_port, no_buffer;
    uint64_t parser_errors;
    uint64_t recirculated, resubmitted, cloned, replicated, queue_full, clone_too_deep;
    uint64_t digests, digests_dropped, packet_ins, packet_ins_dropped;
    uint64_t wakeups;
    uint64_t recirculation_lost;                 /* packets that found the queue of their recirculation port full */
    uint64_t recirculating, recirculating_bytes; /* of packets that wait there now */
};

struct ps_switch_config {
    uint32_t cpu_port; /* UINT32_MAX: none */
    uint32_t drop_port;
    uint64_t seed;
    uint32_t virtual_clock;
    uint32_t trace;
    uint32_t recirculation_ports[PS_RECIRCULATION_PORTS]; /* UINT32_MAX: none */
    uint64_t recirculation_rate_bits;                     /* a second, each port; 0: as fast as the switch can */
    uint64_t recirculation_queue_bytes;                   /* each port */
};

struct ps_switch {
    pthread_mutex_t turnstile, gate;
    struct ps_switch_config config;
    struct ps_buffer_pool pool;
    /* Takes what ports and recirculation bring: a frame, which it owns. */
    void (*arrived)(struct ps_switch *sw, struct ps_buffer *frame, uint32_t port);
    struct ps_port *ports[PS_PORTS_MAX];
    struct ps_port *dirty[PS_PORTS_MAX];
    int dirty_count;
    struct ps_pipeline *pipeline;
    uint64_t pipeline_serial;
    struct ps_ctx ctx;
    struct ps_switch_stats stats;
    struct ps_events events;

    struct ps_pending pending[PS_PENDING_MAX];
    uint32_t pending_head, pending_count;
    struct ps_recirculation recirculations[PS_RECIRCULATION_PORTS];
    uint32_t recirculation_count;                          /* of ports */
    uint32_t arrival_port;                                 /* TNA: of the packet that is at ingress */
    uint64_t exclusions[PS_EXCLUSIONS][PS_PORTS_MAX / 64]; /* TNA: the ports of each level-2 exclusion id */

    struct ps_timer *timers;
    uint32_t timer_count;
    uint64_t timer_serial;

    uint64_t started_ns;
    uint64_t aged_us;
    uint64_t epoch_us; /* wall clock at start, for capture files */
    uint64_t now_us;
    uint64_t tick_due_us;

    int epoll_fd, wake_fd, timer_fd, link_fd;
    uint64_t timer_armed_us;
    pthread_t thread;
    bool running;
    bool stopping;          /* atomic */
    uint64_t memory_serial; /* gives the frames of all memory ports one order */
};

/* gate.c */
void ps_gate_enter(struct ps_switch *sw);
void ps_gate_leave(struct ps_switch *sw);
void ps_clock_update(struct ps_switch *sw);
uint64_t ps_clock_ns(clockid_t clock);

#endif
