#include "crc32.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "cpu.h"

#define POLYNOMIAL 0xEDB88320u /* bits reversed */
#define SLICES 8

static uint32_t tables[SLICES][256];
static pthread_once_t tables_made = PTHREAD_ONCE_INIT;

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) value = (value >> 1) ^ (value & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = value;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int slice = 1; slice < SLICES; slice++) {
            uint32_t before = tables[slice - 1][byte];
            tables[slice][byte] = (before >> 8) ^ tables[0][before & 0xFF];
        }
}

/* Leaves out the inversions at both ends: the caller joins parts and inverts once. Eight bytes per step ("slicing"). */
static uint32_t continue_by_tables(uint32_t state, const uint8_t *at, size_t size) {
    pthread_once(&tables_made, make_tables);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; size >= 8; at += 8, size -= 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
        low ^= state;
        state = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^
                tables[4][low >> 24] ^ tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF] ^
                tables[1][high >> 16 & 0xFF] ^ tables[0][high >> 24];
    }
#endif
    while (size--) state = (state >> 8) ^ tables[0][(state ^ *at++) & 0xFF];
    return state;
}

/* What of enum cpu_extra is used. */
static unsigned extras;

void dp_crc32_use(unsigned wanted) { extras = wanted; }

#if defined(__x86_64__)

#include <immintrin.h>

#define FOLD(x, k) _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11))
#define FOLD_WIDE(x, k, more)                                                                                   \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00), _mm512_clmulepi64_epi128(x, k, 0x11), more, \
                              0x96 /* xor of three */)
#define FOLD_PAIR(x, k) _mm256_xor_si256(_mm256_clmulepi64_epi128(x, k, 0x00), _mm256_clmulepi64_epi128(x, k, 0x11))
#define WIDE_BYTES 256 /* folded per step by registers of more than 128 bits */

/* The same as the loop over 512 bits below, sixteen lanes at a time, then four. Returns how much of `size` (at least
 * WIDE_BYTES) it went through, a multiple of 64. */
__attribute__((target("avx512f,vpclmulqdq"))) static size_t fold_wide(__m128i lane[4], uint32_t state,
                                                                      const uint8_t *at, size_t size) {
    const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01322d1430, 0x011542778a));
    const __m512i by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01c6e41596, 0x0154442bd4));
    __m512i wide[4];
    size_t done = WIDE_BYTES;

    for (int i = 0; i < 4; i++) wide[i] = _mm512_loadu_si512(at + 64 * i);
    __m512i begin = _mm512_inserti32x4(_mm512_setzero_si512(), _mm_cvtsi32_si128((int)state), 0);
    wide[0] = _mm512_xor_si512(wide[0], begin);
    for (; size - done >= WIDE_BYTES; done += WIDE_BYTES)
        for (int i = 0; i < 4; i++) wide[i] = FOLD_WIDE(wide[i], by_2048, _mm512_loadu_si512(at + done + 64 * i));
    for (int i = 1; i < 4; i++) wide[i] = FOLD_WIDE(wide[i - 1], by_512, wide[i]);
    _mm512_storeu_si512(lane, wide[3]);
    return done;
}

/* The same by registers of 256 bits, twice as many of them. */
__attribute__((target("avx2,vpclmulqdq"))) static size_t fold_pairs(__m128i lane[4], uint32_t state, const uint8_t *at,
                                                                    size_t size) {
    const __m256i by_2048 = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x01322d1430, 0x011542778a));
    const __m256i by_512 = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x01c6e41596, 0x0154442bd4));
    __m256i pair[8];
    size_t done = WIDE_BYTES;

    for (int i = 0; i < 8; i++) pair[i] = _mm256_loadu_si256((const __m256i *)at + i);
    pair[0] = _mm256_xor_si256(pair[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state)));
    for (; size - done >= WIDE_BYTES; done += WIDE_BYTES)
        for (int i = 0; i < 8; i++)
            pair[i] =
                _mm256_xor_si256(FOLD_PAIR(pair[i], by_2048), _mm256_loadu_si256((const __m256i *)(at + done) + i));
    for (int i = 2; i < 8; i++) pair[i] = _mm256_xor_si256(FOLD_PAIR(pair[i - 2], by_512), pair[i]);
    _mm256_storeu_si256((__m256i *)lane, pair[6]);
    _mm256_storeu_si256((__m256i *)(lane + 2), pair[7]);
    return done;
}

/* V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009: four lanes
 * of 128 bits are folded forward by 512 bits per step, then into one, then reduced (Barrett). `size`: a multiple of 16,
 * at least 64. Without the inversions. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t continue_by_folding(uint32_t state, const uint8_t *at,
                                                                             size_t size) {
    const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i lane[4];
    size_t done = 64;

    if (size >= WIDE_BYTES && extras & CPU_FOLDS_WIDE) {
        done = fold_wide(lane, state, at, size);
    } else if (size >= WIDE_BYTES && extras & CPU_FOLDS_PAIRS) {
        done = fold_pairs(lane, state, at, size);
    } else {
        for (int i = 0; i < 4; i++) lane[i] = _mm_loadu_si128((const __m128i *)at + i);
        lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128((int)state));
    }
    const __m128i *next = (const __m128i *)(at + done);
    for (size -= done; size >= 64; size -= 64)
        for (int i = 0; i < 4; i++) lane[i] = _mm_xor_si128(FOLD(lane[i], by_512), _mm_loadu_si128(next++));

    __m128i all = lane[0];
    for (int i = 1; i < 4; i++) all = _mm_xor_si128(FOLD(all, by_128), lane[i]);
    for (; size >= 16; size -= 16) all = _mm_xor_si128(FOLD(all, by_128), _mm_loadu_si128(next++));

    all = _mm_xor_si128(_mm_srli_si128(all, 8), _mm_clmulepi64_si128(all, by_128, 0x10));
    __m128i high = _mm_srli_si128(all, 4);
    all = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(all, low_words), by_64, 0x00), high);
    __m128i quotient = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(all, low_words), barrett, 0x10), low_words);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(all, _mm_clmulepi64_si128(quotient, barrett, 0x00)), 1);
}

#elif defined(__aarch64__)

#include <arm_acle.h>

/* The architecture's own instruction has this polynomial. Without the inversions. */
__attribute__((target("+crc"))) static uint32_t continue_by_folding(uint32_t state, const uint8_t *at, size_t size) {
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        state = __crc32d(state, word);
    }
    return state;
}

#else

static uint32_t continue_by_folding(uint32_t state, const uint8_t *at, size_t size) {
    return continue_by_tables(state, at, size);
}

#endif

uint32_t dp_crc32(uint32_t crc, const void *bytes, size_t size) {
    assert(bytes || !size);
    const uint8_t *at = bytes;
    uint32_t state = ~crc;
    size_t folded = size & ~(size_t)15;

    if (folded >= 64 && extras & CPU_FOLDS) {
        state = continue_by_folding(state, at, folded);
        at += folded;
        size -= folded;
    }
    return ~continue_by_tables(state, at, size);
}
