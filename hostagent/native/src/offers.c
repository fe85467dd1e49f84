/* See offers.h. */
#include "offers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define BUCKET_BITS 14

static struct offer **bucket_of(const struct offers *offers, const uint8_t *key) {
    uint64_t words[2];
    memcpy(words, key, sizeof words);
    uint64_t mixed = (words[0] ^ offers->seeds[0]) * (offers->seeds[1] | 1);
    mixed = (mixed ^ mixed >> 32 ^ words[1]) * (offers->seeds[2] | 1);
    return &offers->buckets[mixed >> (64 - BUCKET_BITS)];
}

int offers_begin(struct offers *offers) {
    offers->buckets = calloc((size_t)1 << BUCKET_BITS, sizeof *offers->buckets);
    offers->count = 0;
    if (!offers->buckets) return ENOMEM;
    return getrandom(offers->seeds, sizeof offers->seeds, 0) == sizeof offers->seeds ? 0 : ENOMEM;
}

void offers_end(struct offers *offers) {
    for (uint32_t i = 0; offers->buckets && i < 1u << BUCKET_BITS; i++) {
        while (offers->buckets[i]) {
            struct offer *offer = offers->buckets[i];
            offers->buckets[i] = offer->next;
            free(offer);
        }
    }
    free(offers->buckets);
}

struct offer *offers_find(const struct offers *offers, const uint8_t *key) {
    struct offer *offer = *bucket_of(offers, key);
    while (offer && memcmp(offer->key, key, DP_KEY_BYTES)) offer = offer->next;
    return offer;
}

struct offer *offers_add(struct offers *offers, const uint8_t *key) {
    struct offer *offer = offers_find(offers, key), **bucket = bucket_of(offers, key);
    if (offer) return offer;
    offer = calloc(1, sizeof *offer);
    if (!offer) return NULL;
    memcpy(offer->key, key, DP_KEY_BYTES);
    offer->next = *bucket;
    *bucket = offer;
    offers->count++;
    return offer;
}

void offers_remove(struct offers *offers, const uint8_t *key) {
    struct offer **link = bucket_of(offers, key);
    while (*link && memcmp((*link)->key, key, DP_KEY_BYTES)) link = &(*link)->next;
    struct offer *offer = *link;
    if (!offer) return;
    *link = offer->next;
    free(offer);
    offers->count--;
}
