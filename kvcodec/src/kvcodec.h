/* Loops of the codecs. `kvcodec.loops` says what each does; `kvcodec.reference` does the same in numpy. */
#pragma once

#include <stdint.h>

#define KC_API __attribute__((visibility("default")))

enum {
    KC_LANES = 32,       /* streams of one rANS segment, side by side */
    KC_PROB_BITS = 12,   /* frequencies of a table sum to 1 << KC_PROB_BITS */
    KC_PROBS = 1 << KC_PROB_BITS,
    KC_ESCAPE = 255,     /* the number stands beside the symbols */
    KC_ZERO = 127,       /* the symbol of 0 */
};

#define KC_STATE_LOW (1u << 16) /* a state is never below; each lane begins and ends here */

enum kc_element { KC_BF16 = 0, KC_FP32 = 1 };

/* Where the numbers of one layer's K or V lie in the chunk, in elements from its first one. */
struct kc_place {
    const int64_t *token_at; /* by token */
    const int64_t *head_at;  /* by head; a head's numbers are side by side */
    uint64_t tokens, heads, head_numbers;
};

KC_API void kc_split(const uint8_t *words, uint64_t count, uint32_t width, uint8_t *planes);
KC_API void kc_join(const uint8_t *const *planes, uint64_t count, uint32_t width, uint8_t *words);
KC_API int64_t kc_rans_encode(const uint8_t *symbols, uint64_t count, const uint32_t *frequency, uint32_t *states,
                              uint16_t *words, uint64_t room);
KC_API int64_t kc_rans_decode(const uint8_t *words, uint64_t words_count, uint32_t *states, const uint32_t *frequency,
                              uint8_t *symbols, uint64_t count);
KC_API void kc_largest(const void *chunk, enum kc_element element, const struct kc_place *place, uint32_t *largest);
KC_API int64_t kc_quantise(const void *chunk, enum kc_element element, const struct kc_place *place, const float *steps,
                           uint64_t group, uint8_t *anchors, uint8_t *deltas, int16_t *escapes, uint64_t room,
                           int32_t *scratch);
KC_API int64_t kc_restore(const uint8_t *anchors, const uint8_t *deltas, const uint8_t *escapes, uint64_t escapes_count,
                          const float *steps, uint64_t group, const struct kc_place *place, enum kc_element element,
                          void *chunk, int32_t *scratch);
