/* BLAKE3 of LANES chunks or parents at a time, each in a lane of vectors. blake3.c includes this for each width. */

typedef uint32_t OF_WIDTH(words) __attribute__((vector_size(4 * LANES)));
typedef uint8_t OF_WIDTH(bytes) __attribute__((vector_size(4 * LANES)));

#define WORDS_OF_LANES OF_WIDTH(words)

/* Rotations to the right by whole bytes: byte `i` of each word is its byte `a`, `b`, `c` or `d`. */
#if HAS_ROTATION
#define ROTATE_LANES_16(x) ROTATE(x, 16)
#define ROTATE_LANES_8(x) ROTATE(x, 8)
#else
#define ROTATE_LANES_16(x) ((WORDS_OF_LANES)PICK_BYTES((OF_WIDTH(bytes))(x), OF_WORDS(2, 3, 0, 1)))
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ROTATE_LANES_8(x) ((WORDS_OF_LANES)PICK_BYTES((OF_WIDTH(bytes))(x), OF_WORDS(1, 2, 3, 0)))
#else
#define ROTATE_LANES_8(x) ((WORDS_OF_LANES)PICK_BYTES((OF_WIDTH(bytes))(x), OF_WORDS(3, 0, 1, 2)))
#endif
#endif

/* Rows become columns: word `i` of all lanes in one vector. */
static inline void OF_WIDTH(transpose)(WORDS_OF_LANES rows[LANES]) {
    WORDS_OF_LANES pairs[LANES], fours[LANES];
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = PICK(WORDS_OF_LANES, rows[i], rows[i + 1], LOW_WORDS);
        pairs[i + 1] = PICK(WORDS_OF_LANES, rows[i], rows[i + 1], HIGH_WORDS);
    }
    for (int i = 0; i < LANES; i += 4) {
        for (int half = 0; half < 2; half++) {
            fours[i + 2 * half] = PICK(WORDS_OF_LANES, pairs[i + half], pairs[i + half + 2], LOW_PAIRS);
            fours[i + 2 * half + 1] = PICK(WORDS_OF_LANES, pairs[i + half], pairs[i + half + 2], HIGH_PAIRS);
        }
    }
    for (int i = 0; i < 4; i++) {
#if LANES == 8
        rows[i] = PICK(WORDS_OF_LANES, fours[i], fours[i + 4], FOUR(0), FOUR(8));
        rows[i + 4] = PICK(WORDS_OF_LANES, fours[i], fours[i + 4], FOUR(4), FOUR(12));
#else
        WORDS_OF_LANES even[2], odd[2];
        for (int half = 0; half < 2; half++) {
            WORDS_OF_LANES low = fours[i + 8 * half], high = fours[i + 8 * half + 4];
            even[half] = PICK(WORDS_OF_LANES, low, high, FOUR(0), FOUR(8), FOUR(16), FOUR(24));
            odd[half] = PICK(WORDS_OF_LANES, low, high, FOUR(4), FOUR(12), FOUR(20), FOUR(28));
        }
        rows[i] = PICK(WORDS_OF_LANES, even[0], even[1], FOUR(0), FOUR(8), FOUR(16), FOUR(24));
        rows[i + 4] = PICK(WORDS_OF_LANES, odd[0], odd[1], FOUR(0), FOUR(8), FOUR(16), FOUR(24));
        rows[i + 8] = PICK(WORDS_OF_LANES, even[0], even[1], FOUR(4), FOUR(12), FOUR(20), FOUR(28));
        rows[i + 12] = PICK(WORDS_OF_LANES, odd[0], odd[1], FOUR(4), FOUR(12), FOUR(20), FOUR(28));
#endif
    }
}

/* `count` chunks or parents that follow each other, at most LANES. The lanes that are left over take the first one,
 * too. `values` may be where the parents' children are. */
static void OF_WIDTH(hash)(const struct blake3_mode *mode, const struct kind *kind, const uint8_t *bytes,
                           uint64_t first, size_t count, uint32_t values[][8]) {
    const WORDS_OF_LANES zero = {0};
    const uint8_t *lanes[LANES];
    WORDS_OF_LANES value[LANES], number = zero;
    for (int i = 0; i < 8; i++) value[i] = zero + mode->key[i];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        lanes[lane] = bytes + (lane < count ? lane * kind->stride : 0);
        if (kind->is_counted) number[lane] = (uint32_t)first + lane;
    }
    for (int at = 0; at < kind->blocks; at++) {
        WORDS_OF_LANES block[WORDS], v[WORDS];
        /* A row is as much of a lane's block as a vector takes. */
        for (int part = 0; part < WORDS; part += LANES) {
            for (int lane = 0; lane < LANES; lane++)
                memcpy(&block[part + lane], lanes[lane] + at * BLOCK_BYTES + 4 * part, sizeof block[lane]);
            OF_WIDTH(transpose)(block + part);
        }
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
        for (int i = 0; i < WORDS && !kind->is_words; i++)
            block[i] = (WORDS_OF_LANES)PICK_BYTES((OF_WIDTH(bytes))block[i], OF_WORDS(3, 2, 1, 0));
#endif
        uint32_t flags = mode->flags | kind->flags | (at ? 0 : kind->first) | (at + 1 == kind->blocks ? kind->last : 0);
        for (int i = 0; i < 8; i++) v[i] = value[i];
        for (int i = 0; i < 4; i++) v[8 + i] = zero + START[i];
        v[12] = number;
        v[13] = zero;
        v[14] = zero + BLOCK_BYTES;
        v[15] = zero + flags;
#pragma GCC unroll 7
        for (int round = 0; round < 7; round++) ROUND(v, block, ORDER[round], ROTATE_LANES_16, ROTATE_LANES_8);
        for (int i = 0; i < 8; i++) value[i] = v[i] ^ v[i + 8];
    }
    /* Of wide lanes, half of the columns stand for nothing. */
    for (int i = 8; i < LANES; i++) value[i] = zero;
    OF_WIDTH(transpose)(value);
    for (size_t lane = 0; lane < count; lane++) memcpy(values[lane], &value[lane], sizeof values[lane]);
}

#undef WORDS_OF_LANES
#undef ROTATE_LANES_16
#undef ROTATE_LANES_8
