#include "leases.h"

#include <string.h>

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

void leases_begin(struct leases *leases, const uint64_t *catalog, uint64_t *table, uint64_t pool_bytes) {
    uint8_t salt[TAG_SALT_BYTES];
    memcpy(salt, catalog + 4, sizeof salt);
    tags_begin(&leases->tags, salt);
    leases->catalog = catalog;
    leases->table = table;
    leases->mask = catalog[2] - 1;
    leases->pool_bytes = pool_bytes;
    leases->free_count = DP_LEASES;
    for (uint32_t i = 0; i < DP_LEASES; i++) leases->free[i] = (uint16_t)(DP_LEASES - 1 - i);
}

uint32_t leases_take(struct leases *leases, const uint8_t *key, uint64_t *offset, uint64_t *size_bytes) {
    if (!leases->free_count) return NO_LEASE;
    uint8_t tag[TAG_BYTES];
    uint64_t low, high;
    tags_of(&leases->tags, key, tag);
    memcpy(&low, tag, sizeof low);
    memcpy(&high, tag + sizeof low, sizeof high);
    uint32_t lease = leases->free[leases->free_count - 1];
    uint64_t *place = leases->table + DP_LEASES_AT + lease;
    uint64_t first = (low & leases->mask) * DP_CATALOG_WAYS;
    for (uint64_t entry = first; entry < first + DP_CATALOG_WAYS; entry++) {
        const uint64_t *words = leases->catalog + DP_CATALOG_HEADER_BYTES / sizeof *words + entry * DP_CATALOG_WORDS;
        uint64_t generation = load(words);
        if (!(generation & 1) || load(words + 1) != low || load(words + 2) != high) continue;
        __atomic_store_n(place, (generation & DP_GENERATION_MASK) << DP_ENTRY_BITS | entry, __ATOMIC_SEQ_CST);
        /* The lease is to be seen before the generation is read again. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        *offset = load(words + 3);
        *size_bytes = load(words + 4);
        int fits = *offset <= leases->pool_bytes && *size_bytes <= leases->pool_bytes - *offset;
        if (load(words) == generation && fits) {
            leases->free_count--;
            return lease;
        }
        __atomic_store_n(place, 0, __ATOMIC_RELEASE);
    }
    return NO_LEASE;
}

void leases_give_back(struct leases *leases, uint32_t lease) {
    __atomic_store_n(leases->table + DP_LEASES_AT + lease, 0, __ATOMIC_RELEASE);
    leases->free[leases->free_count++] = (uint16_t)lease;
}
