/* What one lane and many have in common. */
#pragma once

#include <string.h>

#include "blake3.h"

#define WORDS 16
#define BLOCK_BYTES 64

static const uint32_t START[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

/* The words of a block, in the order in which each round takes them. */
static const uint8_t ORDER[7][WORDS] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1}, {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4}, {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13},
};

/* To the right. */
#define ROTATE(x, bits) ((x) >> (bits) | (x) << (32 - (bits)))

#define ROTATE_16(x) ROTATE(x, 16)
#define ROTATE_8(x) ROTATE(x, 8)

#define MIX(a, b, c, d, first, second, rotate_16, rotate_8) \
    do {                                                    \
        (a) = (a) + (b) + (first);                          \
        (d) = rotate_16((d) ^ (a));                         \
        (c) = (c) + (d);                                    \
        (b) = ROTATE((b) ^ (c), 12);                        \
        (a) = (a) + (b) + (second);                         \
        (d) = rotate_8((d) ^ (a));                          \
        (c) = (c) + (d);                                    \
        (b) = ROTATE((b) ^ (c), 7);                         \
    } while (0)
/* `v`: the state, `m`: the block; of words or of vectors of words, as the two rotations are. */
#define ROUND(v, m, o, ...)                                             \
    do {                                                                \
        MIX(v[0], v[4], v[8], v[12], m[o[0]], m[o[1]], __VA_ARGS__);    \
        MIX(v[1], v[5], v[9], v[13], m[o[2]], m[o[3]], __VA_ARGS__);    \
        MIX(v[2], v[6], v[10], v[14], m[o[4]], m[o[5]], __VA_ARGS__);   \
        MIX(v[3], v[7], v[11], v[15], m[o[6]], m[o[7]], __VA_ARGS__);   \
        MIX(v[0], v[5], v[10], v[15], m[o[8]], m[o[9]], __VA_ARGS__);   \
        MIX(v[1], v[6], v[11], v[12], m[o[10]], m[o[11]], __VA_ARGS__); \
        MIX(v[2], v[7], v[8], v[13], m[o[12]], m[o[13]], __VA_ARGS__);  \
        MIX(v[3], v[4], v[9], v[14], m[o[14]], m[o[15]], __VA_ARGS__);  \
    } while (0)

/* What is compressed in lanes. */
struct kind {
    size_t stride; /* from one lane's first byte to the next one's */
    int blocks;
    uint32_t flags, first, last; /* of all blocks, of the first one, of the last one */
    int is_counted;              /* each lane has its number */
    int is_words;                /* of the machine's own order, not little-endian bytes */
};

/* Compression of one level (kvcodec/src/cpu.h). */
struct blake3_lanes {
    size_t lanes_max;
    /* `count` chunks or parents that follow each other, at most `lanes_max`. `values` may be where the parents' children
     * are. */
    void (*hash)(const struct blake3_mode *mode, const struct kind *kind, const uint8_t *bytes, uint64_t first,
                 size_t count, uint32_t values[][8]);
};

extern const struct blake3_lanes blake3_lanes_base;
#if defined(__x86_64__)
extern const struct blake3_lanes blake3_lanes_avx2, blake3_lanes_avx512;
#endif
