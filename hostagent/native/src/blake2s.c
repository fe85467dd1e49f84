/* BLAKE2s for one use: a key of one block, then one block of data. RFC 7693, 3.1 and 3.2. */
#include "blake2s.h"

#include <string.h>

#define WORDS 16
#define BLOCK_BYTES 64
#define ROUNDS 10

static const uint32_t start[8] = {
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
};

static const uint8_t order[ROUNDS][WORDS] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint32_t turn(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

static void mix(uint32_t *v, int a, int b, int c, int d, uint32_t x, uint32_t y) {
    v[a] += v[b] + x;
    v[d] = turn(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = turn(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = turn(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = turn(v[b] ^ v[c], 7);
}

/* `bytes`: of the input so far, this block's included. */
static void compress(uint32_t hash[8], const uint8_t block[BLOCK_BYTES], uint32_t bytes, int is_last) {
    uint32_t m[WORDS], v[WORDS];
    for (int i = 0; i < WORDS; i++)
        m[i] = block[4 * i] | (uint32_t)block[4 * i + 1] << 8 | (uint32_t)block[4 * i + 2] << 16 |
               (uint32_t)block[4 * i + 3] << 24;
    memcpy(v, hash, 8 * sizeof *v);
    memcpy(v + 8, start, sizeof start);
    v[12] ^= bytes;
    v[14] ^= is_last ? ~(uint32_t)0 : 0;
    for (int round = 0; round < ROUNDS; round++) {
        const uint8_t *s = order[round];
        for (int i = 0; i < 4; i++) mix(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
        for (int i = 0; i < 4; i++)
            mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++) hash[i] ^= v[i] ^ v[i + 8];
}

void tags_begin(struct tags *tags, const uint8_t salt[TAG_SALT_BYTES]) {
    uint8_t block[BLOCK_BYTES] = {0};
    memcpy(tags->keyed, start, sizeof start);
    tags->keyed[0] ^= 0x01010000 ^ TAG_SALT_BYTES << 8 ^ TAG_BYTES;
    memcpy(block, salt, TAG_SALT_BYTES);
    compress(tags->keyed, block, BLOCK_BYTES, 0);
}

void tags_of(const struct tags *tags, const uint8_t key[TAG_KEY_BYTES], uint8_t tag[TAG_BYTES]) {
    uint8_t block[BLOCK_BYTES] = {0};
    uint32_t hash[8];
    memcpy(hash, tags->keyed, sizeof hash);
    memcpy(block, key, TAG_KEY_BYTES);
    compress(hash, block, BLOCK_BYTES + TAG_KEY_BYTES, 1);
    for (int i = 0; i < TAG_BYTES; i++) tag[i] = (uint8_t)(hash[i / 4] >> 8 * (i % 4));
}
