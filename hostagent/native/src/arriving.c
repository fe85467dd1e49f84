#include "arriving.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct arriving **bucket(struct arrivings *arrivings, const uint8_t *key) {
    return &arrivings->buckets[key[DP_KEY_BYTES - 1] % ARRIVING_BUCKETS];
}

struct arriving *arriving_find(const struct arrivings *arrivings, const uint8_t *key) {
    struct arriving *chunk = arrivings->buckets[key[DP_KEY_BYTES - 1] % ARRIVING_BUCKETS];
    while (chunk && memcmp(chunk->key, key, DP_KEY_BYTES)) chunk = chunk->next;
    return chunk;
}

static uint64_t pieces_in(uint64_t bytes) { return (bytes + DP_PIECE_BYTES - 1) / DP_PIECE_BYTES; }

int arriving_has(const struct arriving *chunk, uint64_t offset, uint64_t bytes) {
    if (offset > chunk->size_bytes || bytes > chunk->size_bytes - offset) return 0;
    for (uint64_t piece = offset / DP_PIECE_BYTES; piece < pieces_in(offset + bytes); piece++)
        if (!(chunk->proven[piece / 64] >> piece % 64 & 1)) return 0;
    return 1;
}

int arriving_show(struct arrivings *arrivings, const struct arriving *chunk, uint64_t first, uint64_t count) {
    uint64_t pieces = pieces_in(chunk->size_bytes);
    struct arriving *known = arriving_find(arrivings, chunk->key);
    if (!known) {
        known = calloc(1, sizeof *known + (pieces + 63) / 64 * sizeof *known->proven);
        if (!known) return ENOMEM;
        *known = *chunk;
        struct arriving **link = bucket(arrivings, chunk->key);
        known->next = *link;
        *link = known;
    }
    for (uint64_t piece = first; piece < first + count && piece < pieces; piece++)
        known->proven[piece / 64] |= (uint64_t)1 << piece % 64;
    return 0;
}

struct arriving *arriving_take(struct arrivings *arrivings, const uint8_t *key) {
    struct arriving **link = bucket(arrivings, key);
    while (*link && memcmp((*link)->key, key, DP_KEY_BYTES)) link = &(*link)->next;
    struct arriving *chunk = *link;
    if (chunk) *link = chunk->next;
    return chunk;
}

void arriving_free_all(struct arrivings *arrivings) {
    for (uint32_t i = 0; i < ARRIVING_BUCKETS; i++) {
        while (arrivings->buckets[i]) {
            struct arriving *chunk = arrivings->buckets[i];
            arrivings->buckets[i] = chunk->next;
            free(chunk);
        }
    }
}
