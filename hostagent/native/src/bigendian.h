/* Numbers as the messages of reads have them (hostagent/transport/read_protocol.py). */
#pragma once

#include <stdint.h>

static inline uint64_t get64be(const uint8_t *bytes) {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | bytes[i];
    return value;
}

static inline void put64be(uint8_t *bytes, uint64_t value) {
    for (int i = 7; i >= 0; i--, value >>= 8) bytes[i] = (uint8_t)value;
}
