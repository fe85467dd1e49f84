/* See blake3.h. Whole chunks of 1 KiB are compressed up to LANES_MAX at a time, each in a lane of vectors. */
#include "blake3.h"

#include <string.h>

/* With AVX-512 there are registers for 16 lanes, and every rotation is one instruction. */
#ifdef __AVX512F__
#define LANES_MAX 16
#else
#define LANES_MAX 8
#endif
#ifdef __AVX512VL__
#define HAS_ROTATION 1
#else
#define HAS_ROTATION 0
#endif
#define WORDS 16
#define BLOCK_BYTES 64
#define CHUNK_BYTES 1024
#define CHUNK_BLOCKS (CHUNK_BYTES / BLOCK_BYTES)
#define CHUNKS_MAX (BLAKE3_BYTES_MAX / CHUNK_BYTES)

#define CHUNK_START 1
#define CHUNK_END 2
#define PARENT 4
#define ROOT 8
#define DERIVE_KEY_CONTEXT 32
#define DERIVE_KEY_MATERIAL 64

/* Lanes of `a`, which are numbered from 0, and of `b`, which follow. */
#ifdef __clang__
#define PICK(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define PICK_BYTES(a, ...) __builtin_shufflevector(a, a, __VA_ARGS__)
#else
#define PICK(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#define PICK_BYTES(a, ...) __builtin_shuffle(a, (__typeof__(a)){__VA_ARGS__})
#endif

static const uint32_t START[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

/* The words of a block, in the order in which each round takes them. */
static const uint8_t ORDER[7][WORDS] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1},
    {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4},
    {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13},
};

/* To the right. */
#define ROTATE(x, bits) ((x) >> (bits) | (x) << (32 - (bits)))

#define ROTATE_16(x) ROTATE(x, 16)
#define ROTATE_8(x) ROTATE(x, 8)

#define MIX(a, b, c, d, first, second, rotate_16, rotate_8) \
    do { \
        (a) = (a) + (b) + (first); \
        (d) = rotate_16((d) ^ (a)); \
        (c) = (c) + (d); \
        (b) = ROTATE((b) ^ (c), 12); \
        (a) = (a) + (b) + (second); \
        (d) = rotate_8((d) ^ (a)); \
        (c) = (c) + (d); \
        (b) = ROTATE((b) ^ (c), 7); \
    } while (0)
/* `v`: the state, `m`: the block; of words or of vectors of words, as the two rotations are. */
#define ROUND(v, m, o, ...) \
    do { \
        MIX(v[0], v[4], v[8], v[12], m[o[0]], m[o[1]], __VA_ARGS__); \
        MIX(v[1], v[5], v[9], v[13], m[o[2]], m[o[3]], __VA_ARGS__); \
        MIX(v[2], v[6], v[10], v[14], m[o[4]], m[o[5]], __VA_ARGS__); \
        MIX(v[3], v[7], v[11], v[15], m[o[6]], m[o[7]], __VA_ARGS__); \
        MIX(v[0], v[5], v[10], v[15], m[o[8]], m[o[9]], __VA_ARGS__); \
        MIX(v[1], v[6], v[11], v[12], m[o[10]], m[o[11]], __VA_ARGS__); \
        MIX(v[2], v[7], v[8], v[13], m[o[12]], m[o[13]], __VA_ARGS__); \
        MIX(v[3], v[4], v[9], v[14], m[o[14]], m[o[15]], __VA_ARGS__); \
    } while (0)

static uint32_t get32le(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void put32le(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++, value >>= 8)
        at[i] = (uint8_t)value;
}

static void compress(uint32_t value[8], const uint32_t block[WORDS], uint64_t counter, uint32_t size, uint32_t flags)
{
    uint32_t v[WORDS];
    memcpy(v, value, 8 * sizeof *v);
    memcpy(v + 8, START, 4 * sizeof *v);
    v[12] = (uint32_t)counter;
    v[13] = (uint32_t)(counter >> 32);
    v[14] = size;
    v[15] = flags;
#pragma GCC unroll 7
    for (int round = 0; round < 7; round++)
        ROUND(v, block, ORDER[round], ROTATE_16, ROTATE_8);
    for (int i = 0; i < 8; i++)
        value[i] = v[i] ^ v[i + 8];
}

/* One chunk, the last one or the only one; `last`: flags of its last block. */
static void hash_chunk(const struct blake3_mode *mode, const uint8_t *bytes, size_t count, uint64_t number,
                       uint32_t last, uint32_t value[8])
{
    memcpy(value, mode->key, sizeof mode->key);
    size_t at = 0;
    do {
        uint8_t padded[BLOCK_BYTES] = {0};
        uint32_t block[WORDS];
        size_t size = count - at < BLOCK_BYTES ? count - at : BLOCK_BYTES;
        if (size)
            memcpy(padded, bytes + at, size);
        for (int i = 0; i < WORDS; i++)
            block[i] = get32le(padded + 4 * i);
        uint32_t flags = mode->flags | (at ? 0 : CHUNK_START) | (at + size == count ? CHUNK_END | last : 0);
        compress(value, block, number, (uint32_t)size, flags);
        at += size;
    } while (at < count);
}

/* What is compressed in lanes. */
struct kind {
    size_t stride;            /* from one lane's first byte to the next one's */
    int blocks;
    uint32_t flags, first, last; /* of all blocks, of the first one, of the last one */
    int is_counted;           /* each lane has its number */
    int is_words;             /* of the machine's own order, not little-endian bytes */
};

static const struct kind CHUNKS = {CHUNK_BYTES, CHUNK_BLOCKS, 0, CHUNK_START, CHUNK_END, 1, 0};
static const struct kind PARENTS = {BLOCK_BYTES, 1, PARENT, 0, 0, 0, 1};

#define FOUR(at) (at), (at) + 1, (at) + 2, (at) + 3
#define OF_WORD(at, a, b, c, d) (at) + (a), (at) + (b), (at) + (c), (at) + (d)
#define OF_FOUR(at, ...) \
    OF_WORD(at, __VA_ARGS__), OF_WORD((at) + 4, __VA_ARGS__), OF_WORD((at) + 8, __VA_ARGS__), \
    OF_WORD((at) + 12, __VA_ARGS__)

#define LANES 8
#define OF_WIDTH(name) name##_8
#define OF_WORDS(...) OF_FOUR(0, __VA_ARGS__), OF_FOUR(16, __VA_ARGS__)
#define LOW_WORDS 0, 8, 1, 9, 4, 12, 5, 13
#define HIGH_WORDS 2, 10, 3, 11, 6, 14, 7, 15
#define LOW_PAIRS 0, 1, 8, 9, 4, 5, 12, 13
#define HIGH_PAIRS 2, 3, 10, 11, 6, 7, 14, 15
#include "blake3_lanes.h"

#if LANES_MAX == 16
#undef LANES
#undef OF_WIDTH
#undef OF_WORDS
#undef LOW_WORDS
#undef HIGH_WORDS
#undef LOW_PAIRS
#undef HIGH_PAIRS
#define LANES 16
#define OF_WIDTH(name) name##_16
#define OF_WORDS(...) \
    OF_FOUR(0, __VA_ARGS__), OF_FOUR(16, __VA_ARGS__), OF_FOUR(32, __VA_ARGS__), OF_FOUR(48, __VA_ARGS__)
#define LOW_WORDS 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define HIGH_WORDS 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define LOW_PAIRS 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_PAIRS 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#include "blake3_lanes.h"
#endif

/* See hash_8; `count`: at most LANES_MAX. */
static void hash_wide(const struct blake3_mode *mode, const struct kind *kind, const uint8_t *bytes, uint64_t first,
                      size_t count, uint32_t values[][8])
{
#if LANES_MAX == 16
    if (count > 8) {
        hash_16(mode, kind, bytes, first, count, values);
        return;
    }
#endif
    hash_8(mode, kind, bytes, first, count, values);
}

/* The value of a tree of at least two chunks, made in place: level by level, each two neighbours become one, and who has
 * none goes up as it is. */
static void join(const struct blake3_mode *mode, uint32_t values[][8], size_t count, uint32_t root[8])
{
    for (; count > 2; count = count / 2 + count % 2) {
        size_t pairs = count / 2;
        for (size_t done = 0, lanes; done < pairs; done += lanes) {
            lanes = pairs - done < LANES_MAX ? pairs - done : LANES_MAX;
            hash_wide(mode, &PARENTS, (const uint8_t *)(values + 2 * done), 0, lanes, values + done);
        }
        if (count % 2)
            memcpy(values[pairs], values[count - 1], sizeof values[pairs]);
    }
    uint32_t block[WORDS];
    memcpy(block, values, sizeof block);
    memcpy(root, mode->key, sizeof mode->key);
    compress(root, block, 0, BLOCK_BYTES, mode->flags | PARENT | ROOT);
}

void blake3_hash(const struct blake3_mode *mode, const uint8_t *bytes, size_t count, uint8_t out[BLAKE3_OUT_BYTES])
{
    uint32_t values[CHUNKS_MAX][8], root[8];
    size_t chunks = count ? (count + CHUNK_BYTES - 1) / CHUNK_BYTES : 1, done = 0;
    /* All but the last chunk are whole; one alone is quicker by itself, and the only one is the root. */
    size_t whole = chunks > 1 ? count / CHUNK_BYTES : 0;
    while (whole - done > 1) {
        size_t lanes = whole - done < LANES_MAX ? whole - done : LANES_MAX;
        hash_wide(mode, &CHUNKS, bytes + done * CHUNK_BYTES, done, lanes, values + done);
        done += lanes;
    }
    for (; done < chunks; done++) {
        size_t at = done * CHUNK_BYTES, size = count - at < CHUNK_BYTES ? count - at : CHUNK_BYTES;
        hash_chunk(mode, bytes + at, size, done, chunks == 1 ? ROOT : 0, values[done]);
    }
    if (chunks > 1)
        join(mode, values, chunks, root);
    for (int i = 0; i < 8; i++)
        put32le(out + 4 * i, chunks > 1 ? root[i] : values[0][i]);
}

struct blake3_mode blake3_plain(void)
{
    struct blake3_mode mode = {.flags = 0};
    memcpy(mode.key, START, sizeof mode.key);
    return mode;
}

struct blake3_mode blake3_of_context(const uint8_t *context, size_t count)
{
    struct blake3_mode mode = blake3_plain();
    uint8_t key[BLAKE3_OUT_BYTES];
    mode.flags = DERIVE_KEY_CONTEXT;
    blake3_hash(&mode, context, count, key);
    for (int i = 0; i < 8; i++)
        mode.key[i] = get32le(key + 4 * i);
    mode.flags = DERIVE_KEY_MATERIAL;
    return mode;
}
