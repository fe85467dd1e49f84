/* The chunks whose casts are awaited, by key. Callers hold a lock. */
#pragma once

#include <stdint.h>

#include "datapath.h"

#define EXPECTED_BUCKETS 256

struct expected {
    struct expected *next;
    uint64_t ticket;
    uint8_t key[DP_KEY_BYTES];
    uint8_t *place;
    uint64_t size_bytes;
    uint32_t segments;
    uint32_t left;          /* segments missing at first and not written here; reads may fill some of them */
    const uint8_t *missing; /* the caller's; only these segments may be written */
    uint8_t placed[];       /* for each segment: whether it was written here */
};

struct expected_table {
    struct expected *buckets[EXPECTED_BUCKETS];
    uint64_t last_ticket;
};

/* Replaces an earlier registration of the same key. Returns NULL when there is no memory. */
struct expected *expected_add(struct expected_table *table, const uint8_t *key, uint8_t *place, uint64_t size_bytes,
                              uint32_t segment_bytes, const uint8_t *missing);
void expected_remove(struct expected_table *table, uint64_t ticket);
struct expected *expected_find(struct expected_table *table, const uint8_t *key);
void expected_clear(struct expected_table *table);

/* Writes a segment to its place if it is missing. Returns whether it was. */
int expected_place(struct expected *chunk, uint32_t segment, uint32_t segment_bytes, const uint8_t *payload);
