/* v1model's hash algorithms over whole bytes, as bmv2 computes them. */
#include "externs.h"

static uint32_t crc32_tables[8][256];
static uint16_t crc16_table[256];

__attribute__((constructor)) static void make_tables(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = (c & 1) ? (c >> 1) ^ 0xedb88320u : c >> 1;
        crc32_tables[0][i] = c;
        uint16_t d = (uint16_t)i;
        for (int k = 0; k < 8; k++) d = (d & 1) ? (uint16_t)((d >> 1) ^ 0xa001u) : (uint16_t)(d >> 1);
        crc16_table[i] = d;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++)
            crc32_tables[t][i] = (crc32_tables[t - 1][i] >> 8) ^ crc32_tables[0][crc32_tables[t - 1][i] & 0xff];
}

/* Eight bytes per step ("slicing by 8"). */
uint32_t ps_crc32(const uint8_t *bytes, size_t length) {
    uint32_t c = 0xffffffffu;
    while (length >= 8) {
        uint64_t w;
        memcpy(&w, bytes, 8);
        w ^= c;
        c = crc32_tables[7][w & 0xff] ^ crc32_tables[6][(w >> 8) & 0xff] ^ crc32_tables[5][(w >> 16) & 0xff] ^
            crc32_tables[4][(w >> 24) & 0xff] ^ crc32_tables[3][(w >> 32) & 0xff] ^ crc32_tables[2][(w >> 40) & 0xff] ^
            crc32_tables[1][(w >> 48) & 0xff] ^ crc32_tables[0][w >> 56];
        bytes += 8;
        length -= 8;
    }
    while (length--) c = (c >> 8) ^ crc32_tables[0][(c ^ *bytes++) & 0xff];
    return c ^ 0xffffffffu;
}

uint16_t ps_crc16(const uint8_t *bytes, size_t length) {
    uint16_t c = 0;
    while (length--) c = (uint16_t)((c >> 8) ^ crc16_table[(c ^ *bytes++) & 0xff]);
    return c;
}

/* The one's complement sum of big-endian 16-bit words, padded with a zero byte if the length is odd. It is not
 * complemented. */
uint16_t ps_inet_sum(const uint8_t *bytes, size_t length, uint32_t start) {
    uint64_t sum = 0;
    while (length >= 32) { /* 32-bit words into a 64-bit sum, which the compiler vectorizes */
        uint32_t w[8];
        memcpy(w, bytes, 32);
        for (int i = 0; i < 8; i++) sum += w[i];
        bytes += 32;
        length -= 32;
    }
    while (length >= 2) {
        uint16_t w;
        memcpy(&w, bytes, 2);
        sum += w;
        bytes += 2;
        length -= 2;
    }
    if (length) sum += *bytes; /* little-endian: this byte is the first of its word */
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    uint32_t total = (uint32_t)__builtin_bswap16((uint16_t)sum) + start;
    while (total >> 16) total = (total & 0xffff) + (total >> 16);
    return (uint16_t)total;
}

uint16_t ps_csum16(const uint8_t *bytes, size_t length) { return (uint16_t)~ps_inet_sum(bytes, length, 0); }

uint16_t ps_xor16(const uint8_t *bytes, size_t length) {
    uint16_t x = 0;
    for (; length >= 2; bytes += 2, length -= 2) x ^= ps_load16(bytes);
    if (length) x ^= (uint16_t)(*bytes << 8);
    return x;
}
