/* Recirculation ports: what leaves through one enters again, after its turn.
 *
 * The line has a rate in bits on the wire, so packets that recirculate take the time that this rate gives them, and
 * not the whole processor. Its tokens accumulate for GATHER_US, so a packet that comes alone passes at once. Under
 * load packets move in small groups, with a sleep of TURN_US in between. Waiting packets are limited in bytes and in
 * number; the line drops what exceeds the limits. */
#include <stdlib.h>

#include "recirculation.h"
#include "traffic.h"

enum {
    WIRE_BYTES = 24, /* FCS, preamble and gap of a frame */
    TURN_US = 500,
    GATHER_US = 4000, /* longer than a busy machine lets a thread oversleep */
};

void ps_recirculation_init(struct ps_switch *sw) {
    for (int i = 0; i < PS_RECIRCULATION_PORTS; i++) {
        if (sw->config.recirculation_ports[i] == UINT32_MAX) continue;
        struct ps_recirculation *r = &sw->recirculations[sw->recirculation_count++];
        r->port = sw->config.recirculation_ports[i];
        r->free_node = PS_NO_NODE;
    }
}

/* Made on first use: most switches run no program that recirculates. */
static void make_nodes(struct ps_recirculation *r) {
    r->nodes = calloc(PS_RECIRCULATING_MAX, sizeof *r->nodes);
    if (!r->nodes) return;
    for (uint32_t n = 0; n < PS_RECIRCULATING_MAX; n++)
        r->nodes[n].next = n + 1 < PS_RECIRCULATING_MAX ? n + 1 : PS_NO_NODE;
    r->free_node = 0;
}

void ps_recirculation_free(struct ps_switch *sw) {
    ps_recirculation_flush(sw);
    for (uint32_t i = 0; i < sw->recirculation_count; i++) free(sw->recirculations[i].nodes);
    sw->recirculation_count = 0;
}

struct ps_recirculation *ps_recirculation_at(struct ps_switch *sw, uint32_t port) {
    for (uint32_t i = 0; i < sw->recirculation_count; i++)
        if (sw->recirculations[i].port == port) return &sw->recirculations[i];
    return NULL;
}

/* ------------------------------------------------------------------ the queues */

void ps_recirculation_put(struct ps_switch *sw, struct ps_recirculation *r, uint32_t queue, const struct ps_tx *tx) {
    uint32_t bytes = ps_tx_bytes(tx);
    if (PS_UNLIKELY(!r->nodes)) make_nodes(r);
    if (r->free_node == PS_NO_NODE || r->bytes + bytes > sw->config.recirculation_queue_bytes) {
        sw->stats.recirculation_lost++;
        TRACE(sw, "port %u: recirculation queue full, %u bytes lost", r->port, bytes);
        ps_tx_put(&sw->pool, tx);
        return;
    }
    TRACE(sw, "port %u: goes round, %u bytes", r->port, bytes);
    queue %= PS_RECIRCULATION_QUEUES;
    uint32_t n = r->free_node;
    r->free_node = r->nodes[n].next;
    r->nodes[n] = (struct ps_recirculating){*tx, PS_NO_NODE};
    if (r->busy & 1u << queue)
        r->nodes[r->queues[queue].last].next = n;
    else
        r->queues[queue].first = n;
    r->queues[queue].last = n;
    r->busy |= 1u << queue;
    r->count++;
    r->bytes += bytes;
    sw->stats.recirculated++;
}

static struct ps_tx take(struct ps_recirculation *r) {
    uint32_t queue = (r->turn + 1) % PS_RECIRCULATION_QUEUES;
    while (!(r->busy & 1u << queue)) queue = (queue + 1) % PS_RECIRCULATION_QUEUES;
    r->turn = queue;
    uint32_t n = r->queues[queue].first;
    struct ps_tx tx = r->nodes[n].tx;
    if (n == r->queues[queue].last)
        r->busy &= ~(1u << queue);
    else
        r->queues[queue].first = r->nodes[n].next;
    r->nodes[n].next = r->free_node;
    r->free_node = n;
    r->count--;
    r->bytes -= ps_tx_bytes(&tx);
    return tx;
}

void ps_recirculation_flush(struct ps_switch *sw) {
    for (uint32_t i = 0; i < sw->recirculation_count; i++)
        while (sw->recirculations[i].count) {
            struct ps_tx tx = take(&sw->recirculations[i]);
            ps_tx_put(&sw->pool, &tx);
        }
}

/* ------------------------------------------------------------------ the line */

/* Joins a packet in one piece, without other references to it where that is cheap. */
static struct ps_buffer *whole(struct ps_switch *sw, struct ps_tx *tx) {
    struct ps_buffer *head = tx->head, *tail = tx->tail;
    if (!tail) {
        head->length = tx->head_bytes;
        return head;
    }
    if (tail->refs == 1 && tx->payload - tail->storage >= (int64_t)tx->head_bytes + PS_BUFFER_HEADROOM / 2) {
        tail->bytes = tail->storage + (tx->payload - tail->storage) - tx->head_bytes;
        memcpy(tail->bytes, head->bytes, tx->head_bytes);
        tail->length = ps_tx_bytes(tx);
        ps_buffer_put(&sw->pool, head);
        return tail;
    }
    memcpy(head->bytes + tx->head_bytes, tx->payload, tx->payload_bytes);
    head->length = ps_tx_bytes(tx);
    ps_buffer_put(&sw->pool, tail);
    return head;
}

static void refill(const struct ps_switch *sw, struct ps_recirculation *r) {
    uint64_t rate = sw->config.recirculation_rate_bits;
    uint64_t elapsed_us = sw->now_us - r->refilled_us;
    r->refilled_us = sw->now_us;
    if (elapsed_us > 1000000) elapsed_us = 1000000;
    int64_t most = (int64_t)(rate * GATHER_US / 1000000);
    r->credit_bits += (int64_t)(rate * elapsed_us / 1000000);
    if (r->credit_bits > most) r->credit_bits = most;
}

int ps_recirculation_run(struct ps_switch *sw, int budget) {
    bool paced = sw->config.recirculation_rate_bits != 0;
    int done = 0;
    for (uint32_t i = 0; i < sw->recirculation_count; i++) {
        struct ps_recirculation *r = &sw->recirculations[i];
        if (paced && r->refilled_us != sw->now_us) refill(sw, r);
        while (r->count && done < budget && (!paced || r->credit_bits >= 0)) {
            struct ps_tx tx = take(r);
            r->credit_bits -= paced ? (int64_t)(ps_tx_bytes(&tx) + WIRE_BYTES) * 8 : 0;
            sw->arrived(sw, whole(sw, &tx), r->port);
            done++;
        }
    }
    return done;
}

uint64_t ps_recirculation_due_us(const struct ps_switch *sw) {
    uint64_t due_us = UINT64_MAX, rate = sw->config.recirculation_rate_bits;
    for (uint32_t i = 0; i < sw->recirculation_count; i++) {
        const struct ps_recirculation *r = &sw->recirculations[i];
        if (!r->count) continue;
        uint64_t due = sw->now_us;
        if (rate && r->credit_bits < 0) {
            uint64_t wait_us = ((uint64_t)-r->credit_bits * 1000000 + rate - 1) / rate;
            due = r->refilled_us + (wait_us > TURN_US ? wait_us : TURN_US);
        }
        if (due < due_us) due_us = due;
    }
    return due_us;
}
