/* Lanes of one level: included once by each blake3_*.c, whose flags say which instructions there are. */
#include "blake3_rounds.h"

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

/* Lanes of `a`, which are numbered from 0, and of `b`, which follow. */
#ifdef __clang__
#define PICK(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define PICK_BYTES(a, ...) __builtin_shufflevector(a, a, __VA_ARGS__)
#else
#define PICK(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#define PICK_BYTES(a, ...) __builtin_shuffle(a, (__typeof__(a)){__VA_ARGS__})
#endif

#define FOUR(at) (at), (at) + 1, (at) + 2, (at) + 3
#define OF_WORD(at, a, b, c, d) (at) + (a), (at) + (b), (at) + (c), (at) + (d)
#define OF_FOUR(at, ...)                                                                      \
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
                      size_t count, uint32_t values[][8]) {
#if LANES_MAX == 16
    if (count > 8) {
        hash_16(mode, kind, bytes, first, count, values);
        return;
    }
#endif
    hash_8(mode, kind, bytes, first, count, values);
}

const struct blake3_lanes BLAKE3_LANES_OF_LEVEL = {.lanes_max = LANES_MAX, .hash = hash_wide};
