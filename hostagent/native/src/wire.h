/* One data datagram: what kvproto/wire/data.py checks, in the same order, counted by the same names. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "datapath.h"

/* Where a datagram comes from and goes to. */
struct wire_ends {
    uint32_t source;
    uint32_t destination; /* 0: the fabric's group */
    uint16_t port;        /* of the source */
};

struct wire {
    uint32_t qkey;
    uint32_t source_qpn;
    uint32_t segment_bytes;
    uint32_t identification[DP_IDENTIFICATION_BITS][2];
    uint8_t masked[DP_MASKED_BYTES];
    struct wire_ends seed_ends; /* those that `seed` is for */
    uint32_t seed;
};

static inline uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint32_t get24(const uint8_t *at) { return (uint32_t)at[0] << 16 | (uint32_t)at[1] << 8 | at[2]; }

static inline uint32_t get16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }

static inline void put32(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}

static inline void put24(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 16);
    at[1] = (uint8_t)(value >> 8);
    at[2] = (uint8_t)value;
}

static inline void put16(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline uint32_t wire_datagram_bytes(const struct wire *wire) {
    return DP_HEADER_BYTES + wire->segment_bytes + DP_ICRC_BYTES;
}

/* What an IP identification other than 0 changes in the CRC of the bytes before the BTH. A CRC is linear, so XOR with it
 * makes one from the other. `identification`: below DP_BUFFER_SEGMENTS_MAX. */
uint32_t wire_seed_difference(uint16_t identification);

/* Returns why a datagram is refused, or DP_RECEIVED. `row` has room for a whole datagram; the byte that the ICRC masks
 * is overwritten there. */
enum dp_count wire_check(struct wire *wire, uint8_t *row, uint32_t length, struct wire_ends ends);

/* The same for a message whose BTH, DETH and ICRC an RDMA NIC has checked and taken off: `row` is where its BTH would
 * be, `length` counts from there. */
enum dp_count wire_check_message(const struct wire *wire, const uint8_t *row, uint32_t length);
