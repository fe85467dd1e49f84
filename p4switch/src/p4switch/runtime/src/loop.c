/* The packet thread: what it waits for and what it does in between. Without that thread a caller's thread does the
 * same work. */
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "loop.h"
#include "port_kinds.h"
#include "traffic.h"

enum {
    TICK_US = 100000,
    AGE_US = 10000,
    AGE_ENTRIES = 1024, /* entries of each table checked per round */
    STEP_PASSES_MAX = 65536,
    EPOLL_EVENTS = 128,
};

enum special { WAKE = UINT32_MAX, TIMER = UINT32_MAX - 1, LINK = UINT32_MAX - 2 };

void ps_loop_wake(struct ps_switch *sw) {
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

static void link_changed(struct ps_switch *sw) {
    uint8_t message[16384];
    while (recv(sw->link_fd, message, sizeof message, MSG_DONTWAIT) > 0) {
    }
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

int ps_loop_rounds(struct ps_switch *sw) {
    return ps_v1model_pending(sw, PS_PENDING_BUDGET) + ps_recirculation_run(sw, PS_PENDING_BUDGET);
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
        (void)ps_loop_rounds(sw);
        regular_work(sw);
        ps_flush(sw);
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
    if (bind(sw->link_fd, (struct sockaddr *)&address, sizeof address) == 0 && watch(sw, sw->link_fd, LINK) == 0)
        return;
    close(sw->link_fd); /* without it the ticks of the ports notice changes, a little later */
    sw->link_fd = -1;
}

static void close_fd(int fd) {
    if (fd >= 0) close(fd);
}

int ps_loop_open(struct ps_switch *sw) {
    sw->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    sw->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sw->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    sw->link_fd = -1;
    if (watch(sw, sw->wake_fd, WAKE) != 0 || watch(sw, sw->timer_fd, TIMER) != 0) return -1;
    open_link_watch(sw);
    return 0;
}

void ps_loop_close(struct ps_switch *sw) {
    close_fd(sw->epoll_fd);
    close_fd(sw->wake_fd);
    close_fd(sw->timer_fd);
    close_fd(sw->link_fd);
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
    ps_loop_wake(sw);
    pthread_join(sw->thread, NULL);
    sw->running = false;
    drain_fd(sw->wake_fd);
}

/* ------------------------------------------------------------------ without the thread */

static int passes(struct ps_switch *sw) {
    int done = 0, some;
    do {
        some = ps_timers_run(sw);
        some += ps_loop_rounds(sw);
        ps_flush(sw);
        done += some;
    } while (some && done < STEP_PASSES_MAX);
    return done;
}

/* Processes, on the caller's thread, everything that waits: sockets, timers that are due, recirculated packets. */
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
    ps_flush(sw);
    ps_gate_leave(sw);
    return done;
}

/* Moves the virtual clock. What falls due in between happens in order, each at its own time. */
PS_EXPORT int ps_advance(struct ps_switch *sw, uint64_t us) {
    if (!sw->config.virtual_clock) return -1;
    ps_gate_enter(sw);
    uint64_t end_us = sw->now_us + us;
    int done = 0;
    for (;;) {
        uint64_t next_us = end_us;
        if (sw->timer_count && sw->timers[0].due_us < next_us) next_us = sw->timers[0].due_us;
        uint64_t round_us = ps_recirculation_due_us(sw);
        if (round_us > sw->now_us && round_us < next_us) next_us = round_us; /* an endless loop stops no clock */
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
