/* Leases chunks as an engine does: finds them in the catalog, and says in a table of its own which are being read.
 *
 * The layout and why this is safe are in `kvclient.catalog`; its sizes come with the build. One thread at a time. */
#pragma once

#include <stdint.h>

#include "blake2s.h"
#include "facts.h"

#define NO_LEASE UINT32_MAX

struct leases {
    const uint64_t *catalog;
    uint64_t *table;
    uint64_t mask; /* of sets */
    uint64_t pool_bytes;
    struct tags tags;
    uint32_t free_count;
    uint16_t free[DP_LEASES];
};

void leases_begin(struct leases *leases, const uint64_t *catalog, uint64_t *table, uint64_t pool_bytes);

/* Returns the lease of a chunk and where it lies in the pool; NO_LEASE: it is not there, or too much is leased. */
uint32_t leases_take(struct leases *leases, const uint8_t *key, uint64_t *offset, uint64_t *size_bytes);

/* The chunk may go. */
void leases_give_back(struct leases *leases, uint32_t lease);
