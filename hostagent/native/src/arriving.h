/* Chunks that are still arriving, and which pieces of them are proven: those may be read. The lock is the server's. */
#pragma once

#include <stdint.h>

#include "datapath.h"

#define ARRIVING_BUCKETS 256

struct arriving {
    struct arriving *next;
    uint8_t key[DP_KEY_BYTES];
    uint64_t offset; /* in the pool */
    uint64_t size_bytes;
    uint64_t proven[]; /* a bit for each piece */
};

struct arrivings {
    struct arriving *buckets[ARRIVING_BUCKETS];
};

/* NULL: it is not known. */
struct arriving *arriving_find(const struct arrivings *arrivings, const uint8_t *key);

/* Whether all of a range, which has bytes, is proven. */
int arriving_has(const struct arriving *chunk, uint64_t offset, uint64_t bytes);

/* Pieces of a chunk are proven from now on; whole ones, or up to its end. Returns 0 or ENOMEM. */
int arriving_show(struct arrivings *arrivings, const struct arriving *chunk, uint64_t first, uint64_t count);

/* Takes a chunk out, which is the caller's to free; NULL: it was not known. */
struct arriving *arriving_take(struct arrivings *arrivings, const uint8_t *key);

void arriving_free_all(struct arrivings *arrivings);
