/* faults.c: loss, duplication, reordering, corruption, delay and shaping of a port, and the timers they need. */
#ifndef P4SWITCH_FAULTS_H
#define P4SWITCH_FAULTS_H

#include "buffer.h"

struct ps_port;
struct ps_switch;

enum ps_direction { PS_RX = 0, PS_TX = 1 };

/* As Python fills it. Probabilities are fractions of 2^32. */
struct ps_faults {
    uint64_t seed;
    uint32_t loss, duplicate, reorder, corrupt;
    uint32_t delay_us, jitter_us;
    uint32_t reorder_gap;
    uint32_t enabled;
};

struct ps_held { /* a reordered packet that waits for others to overtake it */
    struct ps_tx tx;
    uint32_t left;
    uint64_t serial;
    bool full;
};

struct ps_fault_state {
    struct ps_faults config;
    struct ps_rng rng;
    struct ps_held held;
    uint64_t last_due_us; /* delayed packets keep their order unless jitter says otherwise */
};

struct ps_tx_queue { /* bounded FIFO of packets */
    struct ps_tx *items;
    uint32_t head, count;
    uint64_t bytes, bytes_max;
};

struct ps_shape_state {
    uint64_t rate_bits; /* 0: unshaped */
    uint64_t burst_bytes;
    uint64_t tokens; /* bits * 1e6 */
    uint64_t updated_us;
    struct ps_tx_queue queue;
    bool timer_armed;
    uint64_t serial; /* generation of the settings: timers of older ones are void */
};

void ps_faults_set(struct ps_port *port, enum ps_direction direction, const struct ps_faults *config);
bool ps_faults_apply(struct ps_port *port, enum ps_direction direction, const struct ps_tx *tx);
void ps_faults_drop_held(struct ps_port *port);
void ps_shape_set(struct ps_port *port, uint64_t rate_bits, uint64_t burst_bytes, uint64_t queue_bytes);
void ps_shape_send(struct ps_port *port, const struct ps_tx *tx);
void ps_shape_release(struct ps_port *port);
bool ps_shape_ready(struct ps_port *port, uint32_t bytes); /* whether a packet of so many bytes would pass at once */
void ps_shape_await(struct ps_port *port, uint32_t bytes); /* ps_shape_release() runs when it would */

/* Timers: a heap of due times. */
enum ps_timer_kind {
    PS_TIMER_FORGOTTEN = 0,
    PS_TIMER_DELIVER = 1,
    PS_TIMER_EMIT = 2,
    PS_TIMER_SHAPE = 3,
    PS_TIMER_HELD = 4
};
struct ps_timer {
    uint64_t due_us;
    uint64_t serial;
    uint32_t port;
    uint32_t kind;
    uint64_t cookie;
    struct ps_tx tx;
};
int ps_timer_add(struct ps_switch *sw, uint64_t due_us, uint32_t port, uint32_t kind, uint64_t cookie,
                 const struct ps_tx *tx);
int ps_timers_run(struct ps_switch *sw);
void ps_timers_forget(struct ps_switch *sw, uint32_t port);

#endif
