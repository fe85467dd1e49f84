/* Numbers as whole multiples of their channel's step, tokens as differences from the first of their group, and back. */

static inline uint32_t bits_of(const void *chunk, enum kc_element element, int64_t at) {
    if (element == KC_BF16) {
        uint16_t half;
        memcpy(&half, (const uint8_t *)chunk + 2 * at, 2);
        return (uint32_t)half << 16;
    }
    uint32_t bits;
    memcpy(&bits, (const uint8_t *)chunk + 4 * at, 4);
    return bits;
}

/* The nearest whole number, of two the even one; what is rounded is far below 2^22. */
static inline float nearest(float number) {
    const float shift = 12582912.0f; /* 3 * 2^22: numbers from here on have no fraction */
    return number + shift - shift;
}

static inline uint16_t bf16_of(float number) {
    uint32_t bits;
    memcpy(&bits, &number, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The largest absolute value of each channel, as bits of fp32: what is not a number is above all numbers. */
static void largest_of(const void *chunk, enum kc_element element, const struct kc_place *place, uint32_t *largest) {
    memset(largest, 0, place->heads * place->head_numbers * sizeof *largest);
    for (uint64_t token = 0; token < place->tokens; token++)
        for (uint64_t head = 0; head < place->heads; head++) {
            int64_t at = place->token_at[token] + place->head_at[head];
            uint32_t *row = largest + head * place->head_numbers;
            for (uint64_t i = 0; i < place->head_numbers; i++) {
                uint32_t bits = bits_of(chunk, element, at + (int64_t)i) & 0x7fffffff;
                row[i] = bits > row[i] ? bits : row[i];
            }
        }
}

/* One head of a token as multiples of the steps. */
static void read_head(const void *chunk, enum kc_element element, int64_t at, const float *restrict steps,
                      uint64_t count, int32_t *restrict multiples) {
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(chunk, element, at + (int64_t)i);
        float number;
        memcpy(&number, &bits, 4);
        multiples[i] = (int32_t)nearest(number / steps[i]);
    }
}

/* What is coded of a token; returns whether some of it escapes. */
static int write_symbols(const int32_t *restrict multiples, const int32_t *restrict anchor, uint64_t count,
                         uint8_t *restrict symbols) {
    uint32_t beyond = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t symbol = (uint32_t)(multiples[i] - anchor[i] + KC_ZERO);
        uint32_t escapes = symbol > 2 * KC_ZERO;
        beyond |= escapes;
        symbols[i] = (uint8_t)(escapes ? KC_ESCAPE : symbol);
    }
    return (int)beyond;
}

/* Returns how many symbols escaped, or -1: more than there is room for. No multiple is beyond 16383. `scratch`: three
 * rows of channels. */
static int64_t quantise(const void *chunk, enum kc_element element, const struct kc_place *place, const float *steps,
                        uint64_t group, uint8_t *anchors, uint8_t *deltas, int16_t *escapes, uint64_t room,
                        int32_t *scratch) {
    uint64_t channels = place->heads * place->head_numbers, escaped = 0;
    int32_t *anchor = scratch, *row = scratch + channels, *zeros = scratch + 2 * channels;
    memset(zeros, 0, channels * sizeof *zeros);
    for (uint64_t token = 0; token < place->tokens; token++) {
        int first = token % group == 0;
        uint8_t *symbols = first ? anchors : deltas;
        int32_t *multiples = first ? anchor : row;
        const int32_t *before = first ? zeros : anchor;
        for (uint64_t head = 0; head < place->heads; head++) {
            uint64_t from = head * place->head_numbers;
            read_head(chunk, element, place->token_at[token] + place->head_at[head], steps + from, place->head_numbers,
                      multiples + from);
        }
        if (write_symbols(multiples, before, channels, symbols))
            for (uint64_t i = 0; i < channels; i++)
                if (symbols[i] == KC_ESCAPE) {
                    if (escaped == room) return -1;
                    escapes[escaped++] = (int16_t)(multiples[i] - before[i]);
                }
        if (first)
            anchors += channels;
        else
            deltas += channels;
    }
    return (int64_t)escaped;
}

static void write_row(const int32_t *restrict multiples, const float *restrict steps, uint64_t count,
                      enum kc_element element, uint8_t *restrict to) {
    if (element == KC_BF16) {
        for (uint64_t i = 0; i < count; i++) {
            uint16_t half = bf16_of((float)multiples[i] * steps[i]);
            memcpy(to + 2 * i, &half, 2);
        }
    } else {
        for (uint64_t i = 0; i < count; i++) {
            float number = (float)multiples[i] * steps[i];
            memcpy(to + 4 * i, &number, 4);
        }
    }
}

/* Returns how many escapes were used, or -1: there are too few. `scratch`: two rows of channels. */
static int64_t restore(const uint8_t *anchors, const uint8_t *deltas, const uint8_t *escapes, uint64_t escapes_count,
                       const float *steps, uint64_t group, const struct kc_place *place, enum kc_element element,
                       void *chunk, int32_t *scratch) {
    uint64_t channels = place->heads * place->head_numbers, used = 0, bytes = element == KC_BF16 ? 2 : 4;
    int32_t *anchor = scratch, *row = scratch + channels;
    for (uint64_t token = 0; token < place->tokens; token++) {
        int first = token % group == 0;
        const uint8_t *symbols = first ? anchors : deltas;
        int32_t *multiples = first ? anchor : row;
        if (first)
            for (uint64_t i = 0; i < channels; i++) multiples[i] = (int32_t)symbols[i] - KC_ZERO;
        else
            for (uint64_t i = 0; i < channels; i++) multiples[i] = anchor[i] + (int32_t)symbols[i] - KC_ZERO;
        const uint8_t *found = symbols, *end = symbols + channels;
        while ((found = memchr(found, KC_ESCAPE, (size_t)(end - found)))) {
            if (used == escapes_count) return -1;
            int16_t coded = (int16_t)(escapes[2 * used] | escapes[2 * used + 1] << 8);
            multiples[found - symbols] = first ? coded : anchor[found - symbols] + coded;
            used++;
            if (++found == end) break;
        }
        for (uint64_t head = 0; head < place->heads; head++) {
            uint8_t *to = (uint8_t *)chunk + bytes * (uint64_t)(place->token_at[token] + place->head_at[head]);
            uint64_t from = head * place->head_numbers;
            write_row(multiples + from, steps + from, place->head_numbers, element, to);
        }
        if (first)
            anchors += channels;
        else
            deltas += channels;
    }
    return (int64_t)used;
}
