/* See blake3.h. Whole chunks of 1 KiB are compressed many at a time, each in a lane of vectors: as many as the processor
 * has registers for. */
#include "blake3.h"

#include <assert.h>
#include <string.h>

#include "blake3_rounds.h"

#define CHUNK_BYTES 1024
#define CHUNK_BLOCKS (CHUNK_BYTES / BLOCK_BYTES)
#define CHUNKS_MAX (BLAKE3_BYTES_MAX / CHUNK_BYTES)

#define CHUNK_START 1
#define CHUNK_END 2
#define PARENT 4
#define ROOT 8
#define DERIVE_KEY_CONTEXT 32
#define DERIVE_KEY_MATERIAL 64

_Static_assert(WORDS * 4 == BLOCK_BYTES, "a block is 16 words");

static const struct blake3_lanes *lanes_of_level;

void blake3_use_level(enum cpu_level level) {
    static const struct blake3_lanes *const by_level[] = {
        [CPU_BASE] = &blake3_lanes_base,
#if defined(__x86_64__)
        [CPU_AVX2] = &blake3_lanes_avx2,
        [CPU_AVX512] = &blake3_lanes_avx512,
#endif
    };
    assert(level < sizeof by_level / sizeof *by_level);
    lanes_of_level = by_level[level];
}

static uint32_t get32le(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void put32le(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++, value >>= 8) at[i] = (uint8_t)value;
}

static void compress(uint32_t value[8], const uint32_t block[WORDS], uint64_t counter, uint32_t size, uint32_t flags) {
    uint32_t v[WORDS];
    memcpy(v, value, 8 * sizeof *v);
    memcpy(v + 8, START, 4 * sizeof *v);
    v[12] = (uint32_t)counter;
    v[13] = (uint32_t)(counter >> 32);
    v[14] = size;
    v[15] = flags;
#pragma GCC unroll 7
    for (int round = 0; round < 7; round++) ROUND(v, block, ORDER[round], ROTATE_16, ROTATE_8);
    for (int i = 0; i < 8; i++) value[i] = v[i] ^ v[i + 8];
}

/* One chunk, the last one or the only one; `last`: flags of its last block. */
static void hash_chunk(const struct blake3_mode *mode, const uint8_t *bytes, size_t count, uint64_t number,
                       uint32_t last, uint32_t value[8]) {
    memcpy(value, mode->key, sizeof mode->key);
    size_t at = 0;
    do {
        uint8_t padded[BLOCK_BYTES] = {0};
        uint32_t block[WORDS];
        size_t size = count - at < BLOCK_BYTES ? count - at : BLOCK_BYTES;
        if (size) memcpy(padded, bytes + at, size);
        for (int i = 0; i < WORDS; i++) block[i] = get32le(padded + 4 * i);
        uint32_t flags = mode->flags | (at ? 0 : CHUNK_START) | (at + size == count ? CHUNK_END | last : 0);
        compress(value, block, number, (uint32_t)size, flags);
        at += size;
    } while (at < count);
}

static const struct kind CHUNKS = {CHUNK_BYTES, CHUNK_BLOCKS, 0, CHUNK_START, CHUNK_END, 1, 0};
static const struct kind PARENTS = {BLOCK_BYTES, 1, PARENT, 0, 0, 0, 1};

/* The value of a tree of at least two chunks, made in place: level by level, each two neighbours become one, and who has
 * none goes up as it is. */
static void join(const struct blake3_mode *mode, uint32_t values[][8], size_t count, uint32_t root[8]) {
    for (; count > 2; count = count / 2 + count % 2) {
        size_t pairs = count / 2;
        for (size_t done = 0, lanes; done < pairs; done += lanes) {
            lanes = pairs - done < lanes_of_level->lanes_max ? pairs - done : lanes_of_level->lanes_max;
            lanes_of_level->hash(mode, &PARENTS, (const uint8_t *)(values + 2 * done), 0, lanes, values + done);
        }
        if (count % 2) memcpy(values[pairs], values[count - 1], sizeof values[pairs]);
    }
    uint32_t block[WORDS];
    memcpy(block, values, sizeof block);
    memcpy(root, mode->key, sizeof mode->key);
    compress(root, block, 0, BLOCK_BYTES, mode->flags | PARENT | ROOT);
}

void blake3_hash(const struct blake3_mode *mode, const uint8_t *bytes, size_t count, uint8_t out[BLAKE3_OUT_BYTES]) {
    assert(lanes_of_level && count <= BLAKE3_BYTES_MAX);
    uint32_t values[CHUNKS_MAX][8], root[8];
    size_t chunks = count ? (count + CHUNK_BYTES - 1) / CHUNK_BYTES : 1, done = 0;
    /* All but the last chunk are whole; one alone is quicker by itself, and the only one is the root. */
    size_t whole = chunks > 1 ? count / CHUNK_BYTES : 0;
    while (whole - done > 1) {
        size_t lanes = whole - done < lanes_of_level->lanes_max ? whole - done : lanes_of_level->lanes_max;
        lanes_of_level->hash(mode, &CHUNKS, bytes + done * CHUNK_BYTES, done, lanes, values + done);
        done += lanes;
    }
    for (; done < chunks; done++) {
        size_t at = done * CHUNK_BYTES, size = count - at < CHUNK_BYTES ? count - at : CHUNK_BYTES;
        hash_chunk(mode, bytes + at, size, done, chunks == 1 ? ROOT : 0, values[done]);
    }
    if (chunks > 1) join(mode, values, chunks, root);
    for (int i = 0; i < 8; i++) put32le(out + 4 * i, chunks > 1 ? root[i] : values[0][i]);
}

struct blake3_mode blake3_plain(void) {
    struct blake3_mode mode = {.flags = 0};
    memcpy(mode.key, START, sizeof mode.key);
    return mode;
}

struct blake3_mode blake3_of_context(const uint8_t *context, size_t count) {
    struct blake3_mode mode = blake3_plain();
    uint8_t key[BLAKE3_OUT_BYTES];
    mode.flags = DERIVE_KEY_CONTEXT;
    blake3_hash(&mode, context, count, key);
    for (int i = 0; i < 8; i++) mode.key[i] = get32le(key + 4 * i);
    mode.flags = DERIVE_KEY_MATERIAL;
    return mode;
}
