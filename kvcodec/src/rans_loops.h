/* Range coding by asymmetric numeral systems (J. Duda, arXiv 1311.2540; F. Giesen, arXiv 1402.3392): KC_LANES states of
 * 32 bits side by side, of which symbol i belongs to lane i % KC_LANES, and one run of 16-bit words for all of them, in
 * the order in which the decoder wants them. */

/* Writes words from the end of `words` on; returns how many, or -1: there is no room. */
static int64_t rans_encode(const uint8_t *symbols, uint64_t count, const uint32_t *frequency, uint32_t *states,
                           uint16_t *words, uint64_t room) {
    uint32_t start[256], sum = 0;
    double inverse[256];
    for (int symbol = 0; symbol < 256; symbol++) {
        start[symbol] = sum;
        sum += frequency[symbol];
        inverse[symbol] = frequency[symbol] ? 1.0 / frequency[symbol] : 0.0;
    }
    for (int lane = 0; lane < KC_LANES; lane++) states[lane] = KC_STATE_LOW;
    uint64_t at = room;
    for (uint64_t i = count; i-- > 0;) {
        uint8_t symbol = symbols[i];
        uint32_t state = states[i % KC_LANES], share = frequency[symbol];
        if (state >= share << (32 - KC_PROB_BITS)) {
            if (at == 0) return -1;
            words[--at] = (uint16_t)state;
            state >>= 16;
        }
        /* state / share: half a unit more keeps the product so far from whole numbers that its rounding is harmless. */
        uint32_t quotient = (uint32_t)((state + 0.5) * inverse[symbol]);
        states[i % KC_LANES] = (quotient << KC_PROB_BITS) + (state - quotient * share) + start[symbol];
    }
    return (int64_t)(room - at);
}

/* By slot: symbol | frequency << 8 | slot's place among the symbol's slots << 20. */
static void fill_table(const uint32_t *frequency, uint32_t *table) {
    uint32_t slot = 0;
    for (uint32_t symbol = 0; symbol < 256; symbol++)
        for (uint32_t place = 0; place < frequency[symbol]; place++)
            table[slot++] = symbol | frequency[symbol] << 8 | place << 20;
}

static inline uint32_t step(uint32_t state, const uint32_t *table, uint8_t *symbol) {
    uint32_t entry = table[state & (KC_PROBS - 1)];
    *symbol = (uint8_t)entry;
    return (entry >> 8 & (KC_PROBS - 1)) * (state >> KC_PROB_BITS) + (entry >> 20);
}

#ifdef __AVX2__
/* Which of eight words each lane takes that wants one, by the mask of those that do. */
static uint32_t lane_words[256][8];

static void prepare(void) {
    for (int mask = 0; mask < 256; mask++) {
        uint32_t next = 0;
        for (int lane = 0; lane < 8; lane++) lane_words[mask][lane] = mask >> lane & 1 ? next++ : 0;
    }
}

static inline __m256i step8(__m256i state, const uint32_t *table, const uint8_t **words, __m256i *symbols) {
    const __m256i slots = _mm256_set1_epi32(KC_PROBS - 1);
    __m256i entry = _mm256_i32gather_epi32((const int *)table, _mm256_and_si256(state, slots), 4);
    *symbols = _mm256_and_si256(entry, _mm256_set1_epi32(255));
    __m256i share = _mm256_and_si256(_mm256_srli_epi32(entry, 8), slots);
    state = _mm256_add_epi32(_mm256_mullo_epi32(share, _mm256_srli_epi32(state, KC_PROB_BITS)),
                             _mm256_srli_epi32(entry, 20));
    __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(state, 16), _mm256_setzero_si256());
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low));
    __m256i fresh = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)*words));
    fresh = _mm256_permutevar8x32_epi32(fresh, _mm256_loadu_si256((const __m256i *)lane_words[mask]));
    __m256i grown = _mm256_or_si256(_mm256_slli_epi32(state, 16), fresh);
    *words += 2 * __builtin_popcount(mask);
    return _mm256_blendv_epi8(state, grown, low);
}

/* As many rounds of KC_LANES symbols as there are surely words for; returns the symbols decoded. */
static uint64_t decode_wide(const uint8_t **words, const uint8_t *end, uint32_t *states, const uint32_t *table,
                            uint8_t *symbols, uint64_t count) {
    __m256i state[4], found[4];
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    uint64_t done = 0;
    for (int part = 0; part < 4; part++) state[part] = _mm256_loadu_si256((const __m256i *)(states + 8 * part));
    while (count - done >= KC_LANES && end - *words >= 2 * KC_LANES) {
        for (int part = 0; part < 4; part++) state[part] = step8(state[part], table, words, &found[part]);
        __m256i pairs = _mm256_packus_epi32(found[0], found[1]), others = _mm256_packus_epi32(found[2], found[3]);
        __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(pairs, others), order);
        _mm256_storeu_si256((__m256i *)(symbols + done), bytes);
        done += KC_LANES;
    }
    for (int part = 0; part < 4; part++) _mm256_storeu_si256((__m256i *)(states + 8 * part), state[part]);
    return done;
}
#else
static void prepare(void) {}
#endif

/* Returns how many words were used, or -1: there are too few. `states` are left as they are at the end. The frequencies
 * sum to KC_PROBS, and each is below that. */
static int64_t rans_decode(const uint8_t *words, uint64_t words_count, uint32_t *states, const uint32_t *frequency,
                           uint8_t *symbols, uint64_t count) {
    uint32_t table[KC_PROBS];
    fill_table(frequency, table);
    const uint8_t *next = words, *end = words + 2 * words_count;
    uint64_t i = 0;
#ifdef __AVX2__
    i = decode_wide(&next, end, states, table, symbols, count);
#endif
    for (; i < count; i++) {
        uint32_t state = step(states[i % KC_LANES], table, symbols + i);
        if (state < KC_STATE_LOW) {
            if (end - next < 2) return -1;
            state = state << 16 | (uint32_t)next[0] | (uint32_t)next[1] << 8;
            next += 2;
        }
        states[i % KC_LANES] = state;
    }
    return (next - words) / 2;
}
