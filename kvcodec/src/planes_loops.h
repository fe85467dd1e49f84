/* Numbers as planes of bytes, each number turned left by one bit, and back. */

static void split2(const uint8_t *restrict words, uint64_t count, uint8_t *restrict high, uint8_t *restrict low) {
    for (uint64_t i = 0; i < count; i++) {
        uint16_t word;
        memcpy(&word, words + 2 * i, 2);
        word = (uint16_t)(word << 1 | word >> 15);
        high[i] = (uint8_t)(word >> 8);
        low[i] = (uint8_t)word;
    }
}

static void split4(const uint8_t *restrict words, uint64_t count, uint8_t *restrict planes) {
    for (uint64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, words + 4 * i, 4);
        word = word << 1 | word >> 31;
        planes[i] = (uint8_t)(word >> 24);
        planes[count + i] = (uint8_t)(word >> 16);
        planes[2 * count + i] = (uint8_t)(word >> 8);
        planes[3 * count + i] = (uint8_t)word;
    }
}

static void split(const uint8_t *words, uint64_t count, uint32_t width, uint8_t *planes) {
    if (width == 2)
        split2(words, count, planes, planes + count);
    else
        split4(words, count, planes);
}

static void join2(const uint8_t *restrict high, const uint8_t *restrict low, uint64_t count, uint8_t *restrict words) {
    for (uint64_t i = 0; i < count; i++) {
        uint16_t word = (uint16_t)(high[i] << 8 | low[i]);
        word = (uint16_t)(word >> 1 | word << 15);
        memcpy(words + 2 * i, &word, 2);
    }
}

static void join4(const uint8_t *restrict a, const uint8_t *restrict b, const uint8_t *restrict c,
                  const uint8_t *restrict d, uint64_t count, uint8_t *restrict words) {
    for (uint64_t i = 0; i < count; i++) {
        uint32_t word = (uint32_t)a[i] << 24 | (uint32_t)b[i] << 16 | (uint32_t)c[i] << 8 | d[i];
        word = word >> 1 | word << 31;
        memcpy(words + 4 * i, &word, 4);
    }
}

static void join(const uint8_t *const *planes, uint64_t count, uint32_t width, uint8_t *words) {
    if (width == 2)
        join2(planes[0], planes[1], count, words);
    else
        join4(planes[0], planes[1], planes[2], planes[3], count, words);
}
