/* The switch: its gate, its clock, the packet thread, and the functions that Python calls. */
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

enum {
    TICK_US = 100000,
    AGE_US = 10000,
    AGE_ENTRIES = 1024,     /* looked at a time, each table */
    PENDING_BUDGET = 64,    /* recirculated packets between two bursts */
    STEP_PASSES_MAX = 65536,
    EPOLL_EVENTS = 128,
};

enum special { WAKE = UINT32_MAX, TIMER = UINT32_MAX - 1, LINK = UINT32_MAX - 2 };

/* ------------------------------------------------------------------ gate and clock */

/* The turnstile keeps order: who waits for the gate goes before who has just left it. */
void ps_gate_enter(struct ps_switch *sw) {
    pthread_mutex_lock(&sw->turnstile);
    pthread_mutex_lock(&sw->gate);
    pthread_mutex_unlock(&sw->turnstile);
}

void ps_gate_leave(struct ps_switch *sw) { pthread_mutex_unlock(&sw->gate); }

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void ps_clock_update(struct ps_switch *sw) {
    if (sw->config.virtual_clock) return;
    uint64_t now_us = (clock_ns(CLOCK_MONOTONIC) - sw->started_ns) / 1000;
    if (now_us > sw->now_us) sw->now_us = now_us;
    sw->ctx.now_us = sw->now_us;
}

static void wake(struct ps_switch *sw) {
    uint64_t one = 1;
    (void)!write(sw->wake_fd, &one, sizeof one);
}

/* ------------------------------------------------------------------ work between two waits */

static void regular_work(struct ps_switch *sw) {
    if (sw->pipeline && sw->pipeline->ages && sw->now_us >= sw->aged_us + AGE_US) {
        sw->aged_us = sw->now_us;
        ps_pipeline_age(sw->pipeline, sw->now_us, AGE_ENTRIES);
    }
    if (sw->now_us < sw->tick_due_us) return;
    sw->tick_due_us = sw->now_us + TICK_US;
    for (uint32_t i = 0; i < PS_PORTS_MAX; i++)
        if (sw->ports[i]) sw->ports[i]->ops->tick(sw->ports[i]);
}

bool ps_port_is_packet(const struct ps_port *port);

static void link_changed(struct ps_switch *sw) {
    uint8_t message[16384];
    while (recv(sw->link_fd, message, sizeof message, MSG_DONTWAIT) > 0) {}
    for (uint32_t i = 0; i < PS_PORTS_MAX; i++)
        if (sw->ports[i] && ps_port_is_packet(sw->ports[i])) ps_packet_port_link_changed(sw->ports[i]);
}

static void drain_fd(int fd) {
    uint64_t count;
    (void)!read(fd, &count, sizeof count);
}

static void handle_event(struct ps_switch *sw, const struct epoll_event *event) {
    uint64_t id = event->data.u64;
    if (id == WAKE || id == TIMER) {
        drain_fd(id == WAKE ? sw->wake_fd : sw->timer_fd);
    } else if (id == LINK) {
        link_changed(sw);
    } else {
        struct ps_port *port = id >> 1 < PS_PORTS_MAX ? sw->ports[id >> 1] : NULL;
        if (!port) return;
        bool tx_only = id & 1;
        if ((event->events & EPOLLOUT) || (tx_only && (event->events & (EPOLLERR | EPOLLHUP)))) ps_port_writable(port);
        if (!tx_only && (event->events & (EPOLLIN | EPOLLERR | EPOLLHUP))) (void)port->ops->receive(port);
    }
}

static void arm_timer(struct ps_switch *sw) {
    uint64_t due_us = sw->timer_count ? sw->timers[0].due_us : 0;
    uint64_t round_us = ps_recirculation_due_us(sw);
    if (round_us != UINT64_MAX && (due_us == 0 || round_us < due_us)) due_us = round_us ? round_us : 1;
    if (due_us == sw->timer_armed_us) return;
    sw->timer_armed_us = due_us;
    uint64_t at_ns = due_us ? sw->started_ns + due_us * 1000 : 0;
    struct itimerspec when = {.it_value = {(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)}};
    (void)timerfd_settime(sw->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* Packets that come round: resubmitted and recirculated ones. */
static int rounds(struct ps_switch *sw) {
    return ps_engine_pending(sw, PENDING_BUDGET) + ps_recirculation_run(sw, PENDING_BUDGET);
}

static void *packet_thread(void *arg) {
    struct ps_switch *sw = arg;
    struct epoll_event events[EPOLL_EVENTS];
    bool busy = false;
    while (!__atomic_load_n(&sw->stopping, __ATOMIC_ACQUIRE)) {
        int count = epoll_wait(sw->epoll_fd, events, EPOLL_EVENTS, busy ? 0 : TICK_US / 1000);
        ps_gate_enter(sw);
        ps_clock_update(sw);
        sw->stats.wakeups++;
        for (int i = 0; i < count; i++) handle_event(sw, &events[i]);
        (void)ps_timers_run(sw);
        (void)rounds(sw);
        regular_work(sw);
        ps_engine_flush(sw);
        arm_timer(sw);
        busy = sw->pending_count != 0 || ps_recirculation_due_us(sw) <= sw->now_us;
        ps_gate_leave(sw);
    }
    return NULL;
}

/* ------------------------------------------------------------------ life */

static int watch(struct ps_switch *sw, int fd, uint32_t id) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = id};
    return fd < 0 ? -1 : epoll_ctl(sw->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static void open_link_watch(struct ps_switch *sw) {
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    sw->link_fd = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (sw->link_fd < 0) return;
    if (bind(sw->link_fd, (struct sockaddr *)&address, sizeof address) == 0 && watch(sw, sw->link_fd, LINK) == 0) return;
    close(sw->link_fd); /* the tick still notices, a little later */
    sw->link_fd = -1;
}

static void close_fd(int fd) {
    if (fd >= 0) close(fd);
}

PS_EXPORT void ps_switch_free(struct ps_switch *sw);

PS_EXPORT struct ps_switch *ps_switch_new(const struct ps_switch_config *config) {
    struct ps_switch *sw = aligned_alloc(64, (sizeof *sw + 63) / 64 * 64);
    if (!sw) return NULL;
    memset(sw, 0, sizeof *sw);
    sw->config = *config;
    pthread_mutex_init(&sw->turnstile, NULL);
    pthread_mutex_init(&sw->gate, NULL);
    ps_events_init(&sw->events);
    sw->started_ns = clock_ns(CLOCK_MONOTONIC);
    sw->epoch_us = clock_ns(CLOCK_REALTIME) / 1000;
    sw->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    sw->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sw->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    sw->link_fd = -1;
    sw->timers = calloc(PS_TIMERS_MAX, sizeof *sw->timers);
    sw->ctx.api = &ps_runtime_api;
    sw->ctx.runtime = sw;
    sw->ctx.log_enabled = 1;
    sw->ctx.trace_enabled = config->trace != 0;
    struct ps_rng seeder = {config->seed};
    for (int i = 0; i < 4; i++) sw->ctx.rng[i] = ps_rng_next(&seeder);
    if (ps_pool_init(&sw->pool) != 0 || !sw->timers || watch(sw, sw->wake_fd, WAKE) != 0 || watch(sw, sw->timer_fd, TIMER) != 0) {
        ps_switch_free(sw);
        return NULL;
    }
    ps_recirculation_init(sw);
    open_link_watch(sw);
    return sw;
}

PS_EXPORT int ps_start(struct ps_switch *sw) {
    if (sw->running) return 0;
    __atomic_store_n(&sw->stopping, false, __ATOMIC_RELEASE);
    if (pthread_create(&sw->thread, NULL, packet_thread, sw) != 0) return -1;
    (void)pthread_setname_np(sw->thread, "p4switch");
    sw->running = true;
    return 0;
}

PS_EXPORT void ps_stop(struct ps_switch *sw) {
    if (!sw->running) return;
    __atomic_store_n(&sw->stopping, true, __ATOMIC_RELEASE);
    wake(sw);
    pthread_join(sw->thread, NULL);
    sw->running = false;
    drain_fd(sw->wake_fd);
}

PS_EXPORT int ps_remove_port(struct ps_switch *sw, uint32_t id);

/* Pipelines are freed by their owner before this. */
PS_EXPORT void ps_switch_free(struct ps_switch *sw) {
    ps_stop(sw);
    for (uint32_t i = 0; i < PS_PORTS_MAX; i++)
        if (sw->ports[i]) (void)ps_remove_port(sw, i);
    close_fd(sw->epoll_fd);
    close_fd(sw->wake_fd);
    close_fd(sw->timer_fd);
    close_fd(sw->link_fd);
    free(sw->timers);
    ps_recirculation_free(sw);
    ps_events_free(&sw->events);
    ps_pool_free(&sw->pool);
    pthread_mutex_destroy(&sw->turnstile);
    pthread_mutex_destroy(&sw->gate);
    free(sw);
}

/* ------------------------------------------------------------------ pipeline */

/* From the next packet on, packets run through `p` (NULL: are dropped). */
PS_EXPORT void ps_commit(struct ps_switch *sw, struct ps_pipeline *p) {
    ps_gate_enter(sw);
    ps_engine_flush_pending(sw);
    ps_recirculation_flush(sw);
    sw->pipeline = p;
    if (p) {
        sw->ctx.tables = p->tables;
        sw->ctx.registers = p->registers;
        sw->ctx.counters = p->counters;
        sw->ctx.meters = p->meters;
        sw->ctx.scratch = p->scratch;
        ps_pipeline_port_changed(p, PS_ANY_PORT); /* ports came and went since it was prepared */
    }
    ps_gate_leave(sw);
}

/* ------------------------------------------------------------------ without the thread */

static int passes(struct ps_switch *sw) {
    int done = 0, some;
    do {
        some = ps_timers_run(sw);
        some += rounds(sw);
        ps_engine_flush(sw);
        done += some;
    } while (some && done < STEP_PASSES_MAX);
    return done;
}

/* Processes what is waiting on the caller's thread: sockets, timers that are due, recirculated packets. */
PS_EXPORT int ps_step(struct ps_switch *sw) {
    int done = 0;
    ps_gate_enter(sw);
    ps_clock_update(sw);
    for (uint32_t i = 0; i < PS_PORTS_MAX; i++) {
        struct ps_port *port = sw->ports[i];
        if (!port) continue;
        if (port->backlog.count) ps_port_writable(port);
        if (port->rx_fd >= 0) done += port->ops->receive(port);
    }
    done += passes(sw);
    regular_work(sw);
    ps_engine_flush(sw);
    ps_gate_leave(sw);
    return done;
}

/* Moves the virtual clock; what falls due on the way happens at its own time, in order. */
PS_EXPORT int ps_advance(struct ps_switch *sw, uint64_t us) {
    if (!sw->config.virtual_clock) return -1;
    ps_gate_enter(sw);
    uint64_t end_us = sw->now_us + us;
    int done = 0;
    for (;;) {
        uint64_t next_us = end_us;
        if (sw->timer_count && sw->timers[0].due_us < next_us) next_us = sw->timers[0].due_us;
        uint64_t round_us = ps_recirculation_due_us(sw);
        if (round_us > sw->now_us && round_us < next_us) next_us = round_us; /* an endless orbit does not stop the clock */
        if (sw->pipeline && sw->pipeline->ages && sw->aged_us + AGE_US < next_us) next_us = sw->aged_us + AGE_US;
        if (next_us > sw->now_us) sw->now_us = next_us;
        sw->ctx.now_us = sw->now_us;
        done += passes(sw);
        regular_work(sw);
        if (sw->now_us >= end_us) break;
    }
    ps_gate_leave(sw);
    return done;
}

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

/* As if received on a port, or on the CPU port (a packet-out). -1: no such port; -2: no such length; runs at once. */
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
            ps_arrived(sw, b, id);
        (void)rounds(sw);
        ps_engine_flush(sw);
        if (sw->running && (sw->pending_count || sw->timer_count || ps_recirculation_due_us(sw) != UINT64_MAX)) wake(sw);
    }
    ps_gate_leave(sw);
    return result;
}

/* Runs `count` packets, the `frames` in turn (each preceded by its length as uint32_t, padded to 4), through ingress port `id`.
 * Returns the nanoseconds of processor time it took. */
PS_EXPORT uint64_t ps_bench(struct ps_switch *sw, uint32_t id, const uint8_t *frames, uint64_t bytes, uint64_t count) {
    struct ps_port *port = id < PS_PORTS_MAX ? sw->ports[id] : NULL;
    if (!port || bytes < 4) return 0;
    ps_gate_enter(sw);
    uint64_t started = clock_ns(CLOCK_THREAD_CPUTIME_ID), at = 0;
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
        while (sw->pending_count) (void)ps_engine_pending(sw, PENDING_BUDGET);
        (void)ps_recirculation_run(sw, PENDING_BUDGET);
        ps_engine_flush(sw);
    }
    uint64_t taken = clock_ns(CLOCK_THREAD_CPUTIME_ID) - started;
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

/* The ports of a level-2 exclusion id (TNA), a bit each. -1: no such id. */
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
