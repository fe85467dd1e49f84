#include "expected.h"

#include <stdlib.h>
#include <string.h>

/* Keys are hashes themselves. */
static struct expected **bucket_of(struct expected_table *table, const uint8_t *key) {
    return &table->buckets[key[0] % EXPECTED_BUCKETS];
}

static void unlink_one(struct expected **link) {
    struct expected *gone = *link;
    *link = gone->next;
    free(gone);
}

struct expected *expected_find(struct expected_table *table, const uint8_t *key) {
    struct expected *chunk = *bucket_of(table, key);
    while (chunk && memcmp(chunk->key, key, DP_KEY_BYTES)) chunk = chunk->next;
    return chunk;
}

struct expected *expected_add(struct expected_table *table, const uint8_t *key, uint8_t *place, uint64_t size_bytes,
                              uint32_t segment_bytes, const uint8_t *missing) {
    struct expected *known = expected_find(table, key);
    if (known) expected_remove(table, known->ticket);

    uint32_t segments = (uint32_t)((size_bytes + segment_bytes - 1) / segment_bytes);
    struct expected *chunk = calloc(1, sizeof *chunk + segments);
    if (!chunk) return NULL;
    chunk->ticket = ++table->last_ticket;
    memcpy(chunk->key, key, DP_KEY_BYTES);
    chunk->place = place;
    chunk->size_bytes = size_bytes;
    chunk->segments = segments;
    chunk->missing = missing;
    for (uint32_t segment = 0; segment < segments; segment++) chunk->left += missing[segment] != 0;

    struct expected **bucket = bucket_of(table, key);
    chunk->next = *bucket;
    *bucket = chunk;
    return chunk;
}

void expected_remove(struct expected_table *table, uint64_t ticket) {
    for (int i = 0; i < EXPECTED_BUCKETS; i++)
        for (struct expected **link = &table->buckets[i]; *link; link = &(*link)->next)
            if ((*link)->ticket == ticket) {
                unlink_one(link);
                return;
            }
}

void expected_clear(struct expected_table *table) {
    for (int i = 0; i < EXPECTED_BUCKETS; i++)
        while (table->buckets[i]) unlink_one(&table->buckets[i]);
}

int expected_place(struct expected *chunk, uint32_t segment, uint32_t segment_bytes, const uint8_t *payload) {
    if (chunk->placed[segment] || !__atomic_load_n(&chunk->missing[segment], __ATOMIC_RELAXED)) return 0;
    uint64_t start = (uint64_t)segment * segment_bytes;
    uint64_t rest = chunk->size_bytes - start;
    memcpy(chunk->place + start, payload, rest < segment_bytes ? rest : segment_bytes);
    chunk->placed[segment] = 1;
    if (chunk->left) chunk->left--;
    return 1;
}
