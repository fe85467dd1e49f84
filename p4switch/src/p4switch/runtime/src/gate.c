/* The gate that packets and control plane pass in turn, and the clock. */
#include <time.h>

#include "switch.h"

/* The turnstile keeps order: a thread that waits for the gate goes before one that has just left it. */
void ps_gate_enter(struct ps_switch *sw) {
    pthread_mutex_lock(&sw->turnstile);
    pthread_mutex_lock(&sw->gate);
    pthread_mutex_unlock(&sw->turnstile);
}

void ps_gate_leave(struct ps_switch *sw) { pthread_mutex_unlock(&sw->gate); }

uint64_t ps_clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void ps_clock_update(struct ps_switch *sw) {
    if (sw->config.virtual_clock) return;
    uint64_t now_us = (ps_clock_ns(CLOCK_MONOTONIC) - sw->started_ns) / 1000;
    if (now_us > sw->now_us) sw->now_us = now_us;
    sw->ctx.now_us = sw->now_us;
}
