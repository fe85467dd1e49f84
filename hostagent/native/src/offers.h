/* Which small chunks one peer has: a table of keys. The caller holds a lock. */
#pragma once

#include <stdint.h>

#include "gets.h"

struct offer {
    struct offer *next;
    uint64_t size_bytes;
    uint32_t peer;
    uint8_t key[DP_KEY_BYTES];
    uint8_t digest[DP_GET_DIGEST_BYTES];
};

struct offers {
    struct offer **buckets;
    uint64_t count;
    uint64_t seeds[3]; /* nobody who chooses keys knows where they go */
};

/* Returns 0 or ENOMEM. */
int offers_begin(struct offers *offers);

void offers_end(struct offers *offers);

/* NULL: nobody is known to have it. */
struct offer *offers_find(const struct offers *offers, const uint8_t *key);

/* Returns the offer of this key, new or not; NULL: there is no memory. */
struct offer *offers_add(struct offers *offers, const uint8_t *key);

void offers_remove(struct offers *offers, const uint8_t *key);
