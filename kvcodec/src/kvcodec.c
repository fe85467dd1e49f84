/* See kvcodec.h: checks what callers promise, then runs the loops that were chosen when the object was loaded. */
#include "kvcodec.h"

#include <assert.h>

#include "cpu.h"
#include "loops.h"

_Static_assert(KC_LANES % 8 == 0, "lanes go through registers eight at a time");
_Static_assert(KC_PROB_BITS + 16 <= 32, "a state takes a word of 16 bits before it is coded with");
_Static_assert(2 * KC_ZERO < KC_ESCAPE && KC_ESCAPE < 256, "a symbol is a byte, and only one of them escapes");

static const struct kc_loops *loops;

int kc_use_level(int level) {
    assert(level >= CPU_BASE && level <= CPU_AVX512);
    enum cpu_level found = cpu_level_up_to((enum cpu_level)level);
    static const struct kc_loops *const by_level[] = {
        [CPU_BASE] = &kc_loops_base,
#if defined(__x86_64__)
        [CPU_AVX2] = &kc_loops_avx2,
        [CPU_AVX512] = &kc_loops_avx512,
#endif
    };
    assert(found < sizeof by_level / sizeof *by_level);
    loops = by_level[found];
    loops->prepare();
    return (int)found;
}

__attribute__((constructor)) static void choose(void) { kc_use_level(CPU_AVX512); }

static void check_place(enum kc_element element, const struct kc_place *place) {
    assert(element == KC_BF16 || element == KC_FP32);
    assert(place && place->token_at && place->head_at);
    assert(place->tokens && place->heads && place->head_numbers);
}

/* Without this the decoder's table has room for less than is written. */
static void check_frequency(const uint32_t *frequency) {
    uint64_t sum = 0;
    assert(frequency);
    for (int symbol = 0; symbol < 256; symbol++) sum += frequency[symbol];
    assert(sum == KC_PROBS);
}

void kc_split(const uint8_t *words, uint64_t count, uint32_t width, uint8_t *planes) {
    assert((words && planes) || !count);
    assert(width == 2 || width == 4);
    loops->split(words, count, width, planes);
}

void kc_join(const uint8_t *const *planes, uint64_t count, uint32_t width, uint8_t *words) {
    assert(planes && (words || !count));
    assert(width == 2 || width == 4);
    loops->join(planes, count, width, words);
}

int64_t kc_rans_encode(const uint8_t *symbols, uint64_t count, const uint32_t *frequency, uint32_t *states,
                       uint16_t *words, uint64_t room) {
    assert((symbols || !count) && states && (words || !room));
    check_frequency(frequency);
    return loops->rans_encode(symbols, count, frequency, states, words, room);
}

int64_t kc_rans_decode(const uint8_t *words, uint64_t words_count, uint32_t *states, const uint32_t *frequency,
                       uint8_t *symbols, uint64_t count) {
    assert((words || !words_count) && states && (symbols || !count));
    check_frequency(frequency);
    return loops->rans_decode(words, words_count, states, frequency, symbols, count);
}

void kc_largest(const void *chunk, enum kc_element element, const struct kc_place *place, uint32_t *largest) {
    assert(chunk && largest);
    check_place(element, place);
    loops->largest(chunk, element, place, largest);
}

int64_t kc_quantise(const void *chunk, enum kc_element element, const struct kc_place *place, const float *steps,
                    uint64_t group, uint8_t *anchors, uint8_t *deltas, int16_t *escapes, uint64_t room,
                    int32_t *scratch) {
    assert(chunk && steps && group && anchors && deltas && escapes && scratch);
    check_place(element, place);
    return loops->quantise(chunk, element, place, steps, group, anchors, deltas, escapes, room, scratch);
}

int64_t kc_restore(const uint8_t *anchors, const uint8_t *deltas, const uint8_t *escapes, uint64_t escapes_count,
                   const float *steps, uint64_t group, const struct kc_place *place, enum kc_element element,
                   void *chunk, int32_t *scratch) {
    assert(anchors && deltas && (escapes || !escapes_count) && steps && group && chunk && scratch);
    check_place(element, place);
    return loops->restore(anchors, deltas, escapes, escapes_count, steps, group, place, element, chunk, scratch);
}
