/* buffer.c: packet buffers, and packets that wait to be sent. */
#ifndef P4SWITCH_BUFFER_H
#define P4SWITCH_BUFFER_H

#include <linux/virtio_net.h>

#include "common.h"

/* Of a frame that was cut out of a super-packet, for as long as nothing has changed that its UDP checksum covers. */
struct ps_cut {
    uint32_t of; /* names the super-packet; 0: of none */
    uint32_t place;
};

struct ps_buffer {
    uint32_t refs;
    uint32_t length;            /* of the frame */
    uint8_t *bytes;             /* of the frame */
    struct virtio_net_hdr vnet; /* flags and gso_type 0: a plain, complete frame */
    struct ps_cut cut;
    struct ps_buffer *next;
    uint8_t *storage;
};

struct ps_buffer_pool {
    uint8_t *memory;
    size_t memory_bytes;
    struct ps_buffer *headers;
    struct ps_buffer *free;
    uint32_t free_count;
    uint32_t cut_count; /* super-packets that were cut so far; names the last of them */
};

int ps_pool_init(struct ps_buffer_pool *pool);
void ps_pool_free(struct ps_buffer_pool *pool);

static inline struct ps_buffer *ps_buffer_get(struct ps_buffer_pool *pool) {
    struct ps_buffer *b = pool->free;
    if (PS_UNLIKELY(b == NULL)) return NULL;
    pool->free = b->next;
    pool->free_count--;
    b->refs = 1;
    b->length = 0;
    b->bytes = b->storage + PS_BUFFER_HEADROOM;
    memset(&b->vnet, 0, sizeof b->vnet);
    b->cut = (struct ps_cut){0, 0};
    return b;
}

/* A name for a super-packet that is cut now. */
static inline uint32_t ps_pool_next_cut(struct ps_buffer_pool *pool) {
    if (++pool->cut_count == 0) pool->cut_count = 1;
    return pool->cut_count;
}

static inline void ps_buffer_ref(struct ps_buffer *b) { b->refs++; }

static inline void ps_buffer_put(struct ps_buffer_pool *pool, struct ps_buffer *b) {
    if (--b->refs == 0) {
        b->next = pool->free;
        pool->free = b;
        pool->free_count++;
    }
}

/* A packet to be sent: headers in one buffer, the payload in another or nowhere. It holds a reference to each. */
struct ps_tx {
    struct ps_buffer *head;
    struct ps_buffer *tail; /* NULL: no payload */
    const uint8_t *payload;
    uint32_t head_bytes;
    uint32_t payload_bytes;
    struct virtio_net_hdr vnet;
    struct ps_cut cut;
};

static inline uint32_t ps_tx_bytes(const struct ps_tx *tx) { return tx->head_bytes + tx->payload_bytes; }
static inline void ps_tx_ref(const struct ps_tx *tx) {
    ps_buffer_ref(tx->head);
    if (tx->tail) ps_buffer_ref(tx->tail);
}
static inline void ps_tx_put(struct ps_buffer_pool *pool, const struct ps_tx *tx) {
    ps_buffer_put(pool, tx->head);
    if (tx->tail) ps_buffer_put(pool, tx->tail);
}
/* Joins all bytes of `tx` in one buffer; NULL if no buffer is free. The references of tx stay. */
struct ps_buffer *ps_tx_flatten(struct ps_buffer_pool *pool, const struct ps_tx *tx);

#endif
