/* Injected faults and rate shaping of a port, and the timers for them. All randomness comes from the seed of the
 * port: the same packets suffer the same faults. The order is that of a link: first an output queue with a rate, then
 * a wire that loses, damages, repeats, delays and reorders. */
#include <stdlib.h>

#include "switch.h"

enum {
    HELD_MAX_US = 5000,     /* longest wait of a reordered packet for others to overtake it */
    SHAPE_QUANTUM_US = 200, /* least pause of a shaper; its burst makes up for it */
};
#define MICRO 1000000u

/* ------------------------------------------------------------------ timers */

static bool earlier(const struct ps_timer *a, const struct ps_timer *b) {
    return a->due_us != b->due_us ? a->due_us < b->due_us : a->serial < b->serial;
}

int ps_timer_add(struct ps_switch *sw, uint64_t due_us, uint32_t port, uint32_t kind, uint64_t cookie,
                 const struct ps_tx *tx) {
    if (sw->timer_count == PS_TIMERS_MAX || (tx && sw->pool.free_count < PS_BUFFERS_UNDELAYED)) return -1;
    struct ps_timer timer = {due_us, sw->timer_serial++, port, kind, cookie, {0}};
    if (tx) timer.tx = *tx;
    uint32_t i = sw->timer_count++;
    for (; i > 0 && earlier(&timer, &sw->timers[(i - 1) / 2]); i = (i - 1) / 2) sw->timers[i] = sw->timers[(i - 1) / 2];
    sw->timers[i] = timer;
    return 0;
}

static struct ps_timer timer_pop(struct ps_switch *sw) {
    struct ps_timer first = sw->timers[0], last = sw->timers[--sw->timer_count];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= sw->timer_count) break;
        if (child + 1 < sw->timer_count && earlier(&sw->timers[child + 1], &sw->timers[child])) child++;
        if (!earlier(&sw->timers[child], &last)) break;
        sw->timers[i] = sw->timers[child];
        i = child;
    }
    sw->timers[i] = last;
    return first;
}

static void release_to(struct ps_port *port, enum ps_direction direction, const struct ps_tx *tx) {
    if (direction == PS_TX)
        ps_port_emit(port, tx);
    else
        ps_port_deliver(port, tx->head);
}

static void run_timer(struct ps_switch *sw, struct ps_timer *timer) {
    struct ps_port *port = sw->ports[timer->port];
    if (timer->kind == PS_TIMER_FORGOTTEN) return;
    if (timer->kind == PS_TIMER_DELIVER || timer->kind == PS_TIMER_EMIT) {
        enum ps_direction direction = timer->kind == PS_TIMER_EMIT ? PS_TX : PS_RX;
        if (port && port->up)
            release_to(port, direction, &timer->tx);
        else
            ps_tx_put(&sw->pool, &timer->tx);
    } else if (timer->kind == PS_TIMER_SHAPE) {
        if (port && timer->cookie == port->shape.serial) ps_shape_release(port);
    } else if (port) { /* PS_TIMER_HELD; the cookie says which packet of which direction */
        enum ps_direction direction = timer->cookie & 1 ? PS_TX : PS_RX;
        struct ps_held *held = &port->faults[direction].held;
        if (!held->full || held->serial != timer->cookie >> 1) return;
        held->full = false;
        release_to(port, direction, &held->tx);
    }
}

/* Packets that wait for a port go when the port goes: another port with its number gets none of them. */
void ps_timers_forget(struct ps_switch *sw, uint32_t port) {
    for (uint32_t i = 0; i < sw->timer_count; i++) {
        struct ps_timer *timer = &sw->timers[i];
        if (timer->port != port) continue;
        if (timer->kind == PS_TIMER_DELIVER || timer->kind == PS_TIMER_EMIT) ps_tx_put(&sw->pool, &timer->tx);
        timer->kind = PS_TIMER_FORGOTTEN;
    }
}

int ps_timers_run(struct ps_switch *sw) {
    int done = 0;
    while (sw->timer_count && sw->timers[0].due_us <= sw->now_us) {
        struct ps_timer timer = timer_pop(sw);
        run_timer(sw, &timer);
        done++;
    }
    return done;
}

/* ------------------------------------------------------------------ faults */

static bool chance(struct ps_fault_state *f, uint32_t probability) {
    return probability && (uint32_t)(ps_rng_next(&f->rng) >> 32) < probability;
}

void ps_faults_drop_held(struct ps_port *port) {
    for (int d = 0; d < 2; d++) {
        struct ps_held *held = &port->faults[d].held;
        if (held->full) ps_tx_put(&port->sw->pool, &held->tx);
        held->full = false;
    }
}

void ps_faults_set(struct ps_port *port, enum ps_direction direction, const struct ps_faults *config) {
    struct ps_fault_state *f = &port->faults[direction];
    if (f->held.full) {
        f->held.full = false;
        release_to(port, direction, &f->held.tx);
    }
    f->config = *config;
    f->rng.s = config->seed;
    f->last_due_us = 0;
}

static void later(struct ps_port *port, enum ps_direction direction, const struct ps_tx *tx, uint64_t *counted) {
    struct ps_fault_state *f = &port->faults[direction];
    if (f->config.delay_us == 0 && f->config.jitter_us == 0) {
        release_to(port, direction, tx);
        return;
    }
    uint64_t due = port->sw->now_us + f->config.delay_us;
    if (f->config.jitter_us) due += ps_rng_next(&f->rng) % (f->config.jitter_us + 1u);
    if (due < f->last_due_us) due = f->last_due_us; /* a link keeps order; only the reordering fault changes it */
    if (ps_timer_add(port->sw, due, port->id, direction == PS_TX ? PS_TIMER_EMIT : PS_TIMER_DELIVER, 0, tx) == 0) {
        f->last_due_us = due;
        (*counted)++;
        return;
    }
    if (direction == PS_TX)
        port->stats.tx_queue_dropped++;
    else
        port->stats.rx_dropped++;
    ps_tx_put(&port->sw->pool, tx);
}

static bool corrupt(struct ps_port *port, struct ps_fault_state *f, struct ps_tx *tx) {
    struct ps_buffer *b = ps_tx_flatten(&port->sw->pool, tx);
    if (!b || b->length == 0) {
        if (b) ps_buffer_put(&port->sw->pool, b);
        return false;
    }
    ps_tx_put(&port->sw->pool, tx);
    uint64_t bit = ps_rng_next(&f->rng) % ((uint64_t)b->length * 8);
    b->bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    *tx = (struct ps_tx){.head = b, .head_bytes = b->length, .vnet = tx->vnet};
    return true;
}

static void pass_held(struct ps_port *port, enum ps_direction direction, uint64_t *delayed) {
    struct ps_held *held = &port->faults[direction].held;
    if (!held->full || --held->left > 0) return;
    held->full = false;
    later(port, direction, &held->tx, delayed);
}

/* Decides the fate of a packet. False: it is untouched, and the caller sends it. True: this function has taken it
 * over. */
bool ps_faults_apply(struct ps_port *port, enum ps_direction direction, const struct ps_tx *original) {
    struct ps_fault_state *f = &port->faults[direction];
    struct ps_port_stats *s = &port->stats;
    bool out = direction == PS_TX;
    uint64_t *delayed = out ? &s->tx_delayed : &s->rx_delayed;
    if (chance(f, f->config.loss)) {
        (*(out ? &s->tx_lost : &s->rx_lost))++;
        ps_tx_put(&port->sw->pool, original);
        pass_held(port, direction, delayed);
        return true;
    }
    struct ps_tx tx = *original;
    if (chance(f, f->config.corrupt) && corrupt(port, f, &tx)) (*(out ? &s->tx_corrupted : &s->rx_corrupted))++;
    bool twice = chance(f, f->config.duplicate);
    if (chance(f, f->config.reorder) && !f->held.full) {
        uint64_t serial = ++f->held.serial;
        uint64_t cookie = serial << 1 | (out ? 1 : 0);
        if (ps_timer_add(port->sw, port->sw->now_us + HELD_MAX_US, port->id, PS_TIMER_HELD, cookie, NULL) == 0) {
            (*(out ? &s->tx_reordered : &s->rx_reordered))++;
            f->held.tx = tx;
            f->held.left = f->config.reorder_gap ? f->config.reorder_gap : 1;
            f->held.full = true;
            return true;
        }
    }
    if (twice) {
        struct ps_tx copy = tx;
        bool have = true;
        if (out) {
            ps_tx_ref(&tx);
        } else { /* the switch may write into a frame that it receives, so each copy needs a buffer of its own */
            copy.head = ps_tx_flatten(&port->sw->pool, &tx);
            have = copy.head != NULL;
        }
        if (have) {
            (*(out ? &s->tx_duplicated : &s->rx_duplicated))++;
            later(port, direction, &copy, delayed);
        }
    }
    later(port, direction, &tx, delayed);
    pass_held(port, direction, delayed);
    return true;
}

/* ------------------------------------------------------------------ shaping: a token bucket, a bounded queue behind it */

static void refill(struct ps_port *port) {
    struct ps_shape_state *s = &port->shape;
    uint64_t full = s->burst_bytes * 8 * MICRO, elapsed_us = port->sw->now_us - s->updated_us;
    s->updated_us = port->sw->now_us;
    unsigned __int128 tokens = (unsigned __int128)s->rate_bits * elapsed_us + s->tokens;
    s->tokens = tokens > full ? full : (uint64_t)tokens;
}

static uint64_t cost_of(const struct ps_shape_state *s, uint32_t bytes) {
    return ps_min64(bytes, s->burst_bytes) * 8 * MICRO; /* a frame larger than the burst waits for a full bucket */
}

static void onto_wire(struct ps_port *port, const struct ps_tx *tx) {
    if (port->faults[PS_TX].config.enabled && ps_faults_apply(port, PS_TX, tx)) return;
    ps_port_emit(port, tx);
}

void ps_shape_await(struct ps_port *port, uint32_t bytes) {
    struct ps_shape_state *s = &port->shape;
    if (s->timer_armed) return;
    uint64_t cost = cost_of(s, bytes);
    uint64_t wait_us = cost > s->tokens ? (cost - s->tokens + s->rate_bits - 1) / s->rate_bits : 0;
    uint64_t quantum_us = ps_min64(SHAPE_QUANTUM_US, s->burst_bytes * 8 * (MICRO / 2) / s->rate_bits);
    if (wait_us < quantum_us) wait_us = quantum_us;
    s->timer_armed = ps_timer_add(port->sw, port->sw->now_us + wait_us, port->id, PS_TIMER_SHAPE, s->serial, NULL) == 0;
}

static void arm(struct ps_port *port) {
    struct ps_shape_state *s = &port->shape;
    if (s->queue.count) ps_shape_await(port, ps_tx_bytes(&s->queue.items[s->queue.head]));
}

bool ps_shape_ready(struct ps_port *port, uint32_t bytes) {
    refill(port);
    return port->shape.queue.count == 0 && port->shape.tokens >= cost_of(&port->shape, bytes);
}

void ps_shape_send(struct ps_port *port, const struct ps_tx *tx) {
    struct ps_shape_state *s = &port->shape;
    refill(port);
    uint64_t cost = cost_of(s, ps_tx_bytes(tx));
    if (s->queue.count == 0 && s->tokens >= cost) {
        s->tokens -= cost;
        onto_wire(port, tx);
        return;
    }
    if (ps_queue_push(&port->sw->pool, &s->queue, tx) != 0) {
        port->stats.tx_queue_dropped++;
        ps_tx_put(&port->sw->pool, tx);
    }
    arm(port);
}

void ps_shape_release(struct ps_port *port) {
    struct ps_shape_state *s = &port->shape;
    struct ps_tx tx;
    s->timer_armed = false;
    refill(port);
    while (s->queue.count) {
        uint64_t cost = cost_of(s, ps_tx_bytes(&s->queue.items[s->queue.head]));
        if (s->rate_bits && s->tokens < cost) break;
        if (s->rate_bits) s->tokens -= cost;
        ps_queue_pop(&s->queue, &tx);
        onto_wire(port, &tx);
    }
    if (s->rate_bits) arm(port);
    port->has_room(port);
}

void ps_shape_set(struct ps_port *port, uint64_t rate_bits, uint64_t burst_bytes, uint64_t queue_bytes) {
    struct ps_shape_state *s = &port->shape;
    s->serial++;
    s->rate_bits = rate_bits;
    s->burst_bytes = burst_bytes ? burst_bytes : 1;
    s->queue.bytes_max = queue_bytes;
    s->updated_us = port->sw->now_us;
    s->tokens = s->burst_bytes * 8 * MICRO; /* the bucket starts full */
    ps_shape_release(port);
}
