/* Loops of the codecs. `kvcodec.loops` says what each does. */
#pragma once

#include <stdint.h>

#define KC_API __attribute__((visibility("default")))

enum {
    KC_LANES = 32,     /* streams of one rANS segment, side by side */
    KC_PROB_BITS = 12, /* frequencies of a table sum to 1 << KC_PROB_BITS */
    KC_PROBS = 1 << KC_PROB_BITS,
    KC_ESCAPE = 255, /* the number stands beside the symbols */
    KC_ZERO = 127,   /* the symbol of 0 */
};

#define KC_STATE_LOW (1u << 16) /* a state is never below; each lane begins and ends here */

enum kc_element { KC_BF16 = 0, KC_FP32 = 1 };

/* Where the numbers of one layer's K or V lie in the chunk, in elements from its first one. */
struct kc_place {
    const int64_t *token_at; /* by token */
    const int64_t *head_at;  /* by head; a head's numbers are side by side */
    uint64_t tokens, heads, head_numbers;
};

/* The planes of `count` numbers of `width` bytes, 2 or 4, each number turned left by a bit: `planes` one after the
 * other, the most significant first. */
KC_API void kc_split(const uint8_t *words, uint64_t count, uint32_t width, uint8_t *planes);

/* The reverse. `planes`: `width` pointers. */
KC_API void kc_join(const uint8_t *const *planes, uint64_t count, uint32_t width, uint8_t *words);

/* `frequency`: of the 256 symbols, summing to KC_PROBS. `states`: KC_LANES. Writes words from the end of `words` on;
 * returns how many, or -1: there is no room. */
KC_API int64_t kc_rans_encode(const uint8_t *symbols, uint64_t count, const uint32_t *frequency, uint32_t *states,
                              uint16_t *words, uint64_t room);

/* Returns how many words were used, or -1: there are too few. `states` are left as they are at the end. Each frequency
 * is below KC_PROBS. */
KC_API int64_t kc_rans_decode(const uint8_t *words, uint64_t words_count, uint32_t *states, const uint32_t *frequency,
                              uint8_t *symbols, uint64_t count);

/* The largest absolute value of each channel, as bits of fp32: what is not a number is above all numbers. */
KC_API void kc_largest(const void *chunk, enum kc_element element, const struct kc_place *place, uint32_t *largest);

/* Returns how many symbols escaped, or -1: more than there is room for. No multiple is beyond 16383. `scratch`: three
 * rows of channels. */
KC_API int64_t kc_quantise(const void *chunk, enum kc_element element, const struct kc_place *place, const float *steps,
                           uint64_t group, uint8_t *anchors, uint8_t *deltas, int16_t *escapes, uint64_t room,
                           int32_t *scratch);

/* Returns how many escapes were used, or -1: there are too few. `scratch`: two rows of channels. */
KC_API int64_t kc_restore(const uint8_t *anchors, const uint8_t *deltas, const uint8_t *escapes, uint64_t escapes_count,
                          const float *steps, uint64_t group, const struct kc_place *place, enum kc_element element,
                          void *chunk, int32_t *scratch);

/* Uses the loops of this enum cpu_level (cpu.h), or of the highest below it that the processor has; returns which.
 * The object does so itself when it is loaded: this is for tests, while nothing else is called. */
KC_API int kc_use_level(int level);
