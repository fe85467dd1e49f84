/* The loops of one level: what kvcodec.h declares, as functions to choose from. */
#pragma once

#include "kvcodec.h"

struct kc_loops {
    void (*prepare)(void); /* once, before the others */
    void (*split)(const uint8_t *words, uint64_t count, uint32_t width, uint8_t *planes);
    void (*join)(const uint8_t *const *planes, uint64_t count, uint32_t width, uint8_t *words);
    int64_t (*rans_encode)(const uint8_t *symbols, uint64_t count, const uint32_t *frequency, uint32_t *states,
                           uint16_t *words, uint64_t room);
    int64_t (*rans_decode)(const uint8_t *words, uint64_t words_count, uint32_t *states, const uint32_t *frequency,
                           uint8_t *symbols, uint64_t count);
    void (*largest)(const void *chunk, enum kc_element element, const struct kc_place *place, uint32_t *largest);
    int64_t (*quantise)(const void *chunk, enum kc_element element, const struct kc_place *place, const float *steps,
                        uint64_t group, uint8_t *anchors, uint8_t *deltas, int16_t *escapes, uint64_t room,
                        int32_t *scratch);
    int64_t (*restore)(const uint8_t *anchors, const uint8_t *deltas, const uint8_t *escapes, uint64_t escapes_count,
                       const float *steps, uint64_t group, const struct kc_place *place, enum kc_element element,
                       void *chunk, int32_t *scratch);
};

extern const struct kc_loops kc_loops_base;
#if defined(__x86_64__)
extern const struct kc_loops kc_loops_avx2, kc_loops_avx512;
#endif
