/* Packet buffers: fixed slots in one mapping, which the kernel commits on first use. The last slot freed is the first
 * reused, so the few slots in use stay in the cache. Slots lie an odd number of cache lines apart, so frames in
 * different slots do not compete for the same cache sets. */
#include <stdlib.h>
#include <sys/mman.h>

#include "buffer.h"

enum { SLOT_BYTES = (PS_BUFFER_HEADROOM + PS_FRAME_BYTES_MAX + PS_BUFFER_SLACK + 4095) / 4096 * 4096 + 64 * 3 };

int ps_pool_init(struct ps_buffer_pool *pool) {
    pool->memory_bytes = (size_t)SLOT_BYTES * PS_BUFFERS;
    pool->memory =
        mmap(NULL, pool->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool->memory == MAP_FAILED) {
        pool->memory = NULL;
        return -1;
    }
    pool->headers = calloc(PS_BUFFERS, sizeof *pool->headers);
    if (!pool->headers) return -1;
    pool->free = NULL;
    pool->free_count = PS_BUFFERS;
    for (uint32_t i = PS_BUFFERS; i-- > 0;) {
        pool->headers[i].storage = pool->memory + (size_t)i * SLOT_BYTES;
        pool->headers[i].next = pool->free;
        pool->free = &pool->headers[i];
    }
    return 0;
}

void ps_pool_free(struct ps_buffer_pool *pool) {
    if (pool->memory) munmap(pool->memory, pool->memory_bytes);
    free(pool->headers);
    pool->memory = NULL;
    pool->headers = NULL;
}

struct ps_buffer *ps_tx_flatten(struct ps_buffer_pool *pool, const struct ps_tx *tx) {
    if (ps_tx_bytes(tx) > PS_FRAME_BYTES_MAX) return NULL;
    struct ps_buffer *b = ps_buffer_get(pool);
    if (!b) return NULL;
    memcpy(b->bytes, tx->head->bytes, tx->head_bytes);
    if (tx->payload_bytes) memcpy(b->bytes + tx->head_bytes, tx->payload, tx->payload_bytes);
    b->length = ps_tx_bytes(tx);
    b->vnet = tx->vnet;
    return b;
}
