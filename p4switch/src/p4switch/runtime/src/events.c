/* Digests, packet-ins and notices for Python. The packet thread fills byte rings; a thread of the control plane
 * sleeps on a condition and drains them. A full ring drops the newest record and counts it. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "switch.h"

static const uint64_t RING_BYTES[3] = {2u << 20, 8u << 20, 1u << 20};

static int ring_of(uint32_t kind) { return kind == PS_EVENT_DIGEST ? 0 : kind == PS_EVENT_PACKET_IN ? 1 : 2; }

void ps_events_init(struct ps_events *e) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->ready, &attr);
    pthread_condattr_destroy(&attr);
    for (int i = 0; i < 3; i++) {
        e->rings[i].capacity = RING_BYTES[i];
        e->rings[i].bytes = malloc(RING_BYTES[i]);
        if (!e->rings[i].bytes) e->rings[i].capacity = 0;
    }
}

void ps_events_free(struct ps_events *e) {
    for (int i = 0; i < 3; i++) free(e->rings[i].bytes);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->ready);
}

static void ring_write(struct ps_event_ring *r, uint64_t at, const void *bytes, size_t length) {
    size_t offset = at % r->capacity, first = ps_min64(length, r->capacity - offset);
    memcpy(r->bytes + offset, bytes, first);
    memcpy(r->bytes, (const uint8_t *)bytes + first, length - first);
}

static void ring_read(const struct ps_event_ring *r, uint64_t at, void *bytes, size_t length) {
    size_t offset = at % r->capacity, first = ps_min64(length, r->capacity - offset);
    memcpy(bytes, r->bytes + offset, first);
    memcpy((uint8_t *)bytes + first, r->bytes, length - first);
}

void ps_events_post(struct ps_events *e, uint32_t kind, uint64_t pipeline, uint64_t at_us, uint32_t a, uint32_t b,
                    const struct iovec *parts, int part_count) {
    struct ps_event event = {.kind = kind, .pipeline = pipeline, .at_us = at_us, .a = a, .b = b};
    for (int i = 0; i < part_count; i++) event.length += (uint32_t)parts[i].iov_len;
    event.total = (uint32_t)((sizeof event + event.length + 7) / 8 * 8);
    struct ps_event_ring *r = &e->rings[ring_of(kind)];
    pthread_mutex_lock(&e->lock);
    if (r->tail - r->head + event.total > r->capacity) {
        e->dropped[kind]++;
    } else {
        bool was_empty = r->tail == r->head;
        uint64_t at = r->tail;
        ring_write(r, at, &event, sizeof event);
        at += sizeof event;
        for (int i = 0; i < part_count; i++) {
            ring_write(r, at, parts[i].iov_base, parts[i].iov_len);
            at += parts[i].iov_len;
        }
        r->tail += event.total;
        e->written[kind]++;
        if (was_empty) pthread_cond_broadcast(&e->ready);
    }
    pthread_mutex_unlock(&e->lock);
}

static bool any_ready(const struct ps_events *e) {
    for (int i = 0; i < 3; i++)
        if (e->rings[i].tail != e->rings[i].head) return true;
    return false;
}

/* Copies whole records, from each ring in turn. */
static size_t drain(struct ps_events *e, uint8_t *out, size_t capacity) {
    size_t used = 0;
    for (int i = 0; i < 3; i++) {
        struct ps_event_ring *r = &e->rings[i];
        while (r->tail != r->head) {
            struct ps_event event;
            ring_read(r, r->head, &event, sizeof event);
            if (used + event.total > capacity) break;
            ring_read(r, r->head, out + used, event.total);
            r->head += event.total;
            used += event.total;
        }
    }
    return used;
}

/* Waits up to timeout_ms (negative: without end) for events. Returns the bytes written, 0 after a timeout, -1 once
 * the queue is closed. */
PS_EXPORT int64_t ps_events_wait(struct ps_switch *sw, uint8_t *out, uint64_t capacity, int64_t timeout_ms) {
    struct ps_events *e = &sw->events;
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    if (timeout_ms > 0) {
        deadline.tv_sec += timeout_ms / 1000;
        deadline.tv_nsec += timeout_ms % 1000 * 1000000;
        if (deadline.tv_nsec >= 1000000000) {
            deadline.tv_sec++;
            deadline.tv_nsec -= 1000000000;
        }
    }
    pthread_mutex_lock(&e->lock);
    while (!any_ready(e) && !e->closed && timeout_ms != 0) {
        int error = timeout_ms < 0 ? pthread_cond_wait(&e->ready, &e->lock)
                                   : pthread_cond_timedwait(&e->ready, &e->lock, &deadline);
        if (error == ETIMEDOUT) break;
    }
    int64_t used = (int64_t)drain(e, out, capacity);
    if (used == 0 && e->closed) used = -1;
    pthread_mutex_unlock(&e->lock);
    return used;
}

PS_EXPORT void ps_events_close(struct ps_switch *sw) {
    pthread_mutex_lock(&sw->events.lock);
    sw->events.closed = true;
    pthread_cond_broadcast(&sw->events.ready);
    pthread_mutex_unlock(&sw->events.lock);
}
